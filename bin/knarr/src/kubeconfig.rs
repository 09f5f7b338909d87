//! Kubeconfig files: the administrator's, and those for other users and nodes (`knarr kubeconfig`).

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_api::certificates::signers;
use knarr_client::kubeconfig::Access;

use crate::certificates::issued;
use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::pki::{Credentials, Pki, Subject, read, write_private};
use crate::preflight;

/// The name of the administrator's credentials.
pub const ADMIN: &str = "admin";

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr kubeconfig --node worker-1 > worker-1.kubeconfig\n  \
    knarr kubeconfig --user jane --group developers > jane.kubeconfig")]
pub struct KubeconfigArgs {
    /// The server's data folder
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// Name of a node, for its agent
    #[arg(long, value_name = "NAME", conflicts_with_all = ["user", "group"], required_unless_present = "user")]
    node: Option<String>,
    /// Name of a user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Group of the user; may be given several times
    #[arg(long, value_name = "NAME", requires = "user")]
    group: Vec<String>,
    /// URL of the API server [default: the one in the administrator's kubeconfig]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
}

/// Writes the administrator's kubeconfig into the data folder; returns the credentials in it.
pub fn write_admin(layout: &Layout, pki: &Pki, server: &str) -> Result<Credentials> {
    let credentials = pki.credentials(
        ADMIN,
        &Subject {
            common_name: "kubernetes-admin",
            organizations: &["system:masters"],
            names: &[],
            addresses: &[],
            server: false,
            client: true,
        },
    )?;
    write(layout, pki, server, &credentials)?;
    Ok(credentials)
}

/// Writes the administrator's kubeconfig again, with the current credentials.
pub fn renew_admin(layout: &Layout, pki: &Pki) -> Result<()> {
    let (certificate, key) = pki.files(ADMIN);
    let credentials = Credentials { certificate: read(&certificate)?, key: read(&key)? };
    let server = Access::load(&layout.admin_kubeconfig())
        .with_context(|| format!("{} holds no cluster yet", layout.root().display()))?
        .server;
    write(layout, pki, &server, &credentials)
}

fn write(layout: &Layout, pki: &Pki, server: &str, credentials: &Credentials) -> Result<()> {
    let access = Access {
        server: server.to_owned(),
        certificate_authority: Some(pki.ca_pem().as_bytes().to_vec()),
        client_certificate: Some(credentials.certificate.clone().into_bytes()),
        client_key: Some(credentials.key.clone().into_bytes()),
        ..Access::default()
    };
    let yaml = access.to_yaml("knarr", "kubernetes-admin")?;
    write_private(&layout.admin_kubeconfig(), yaml.as_bytes())
}

/// Returns the names for which the node's certificate also serves. An address is none of them: all clients trust this
/// authority, and addresses move to other machines. A node whose name is an address requests a serving certificate of
/// the kubelets' own authority when it starts.
fn serving_names(node: &str) -> Result<Vec<String>> {
    if signers::is_reserved(node) {
        bail!("--node {node}: clients use this name for API servers, Services or their own machine");
    }
    Ok(if node.parse::<IpAddr>().is_ok() { Vec::new() } else { vec![node.to_owned()] })
}

pub fn run(args: KubeconfigArgs) -> Result<()> {
    preflight::root("read the cluster's keys")?;
    let layout = Layout::at(&args.data_dir);
    let admin = Access::load(&layout.admin_kubeconfig()).with_context(|| {
        format!("{} holds no cluster yet: start `knarr server` first", layout.root().display())
    })?;
    let pki = Pki::open(layout.pki())?;
    let (name, groups, names) = match (&args.node, &args.user) {
        (Some(node), _) => {
            (format!("system:node:{node}"), vec!["system:nodes".to_owned()], serving_names(node)?)
        }
        (None, user) => (user.clone().unwrap_or_default(), args.group.clone(), Vec::new()),
    };
    let organizations: Vec<&str> = groups.iter().map(String::as_str).collect();
    let credentials = pki.sign(&Subject {
        common_name: &name,
        organizations: &organizations,
        names: &names,
        addresses: &[],
        // A node's certificate also serves its kubelet, for which the API server checks the node's name.
        server: !names.is_empty(),
        client: true,
    })?;
    issued::record(&layout.pki(), &credentials.certificate)?;
    let access = Access {
        server: args.server.unwrap_or(admin.server),
        certificate_authority: admin.certificate_authority,
        client_certificate: Some(credentials.certificate.into_bytes()),
        client_key: Some(credentials.key.into_bytes()),
        ..Access::default()
    };
    print!("{}", access.to_yaml("knarr", &name)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_get_no_names_of_others() {
        let none: [&str; 0] = [];
        assert_eq!(serving_names("worker-1").unwrap(), ["worker-1"]);
        assert_eq!(serving_names("10.0.0.7").unwrap(), none);
        assert_eq!(serving_names("fd00::7").unwrap(), none);
        for name in [
            "localhost",
            "kubernetes",
            "kubernetes.default.svc",
            "KUBERNETES.default.",
            "x.svc.cluster.local",
        ] {
            assert!(serving_names(name).is_err(), "{name}");
        }
    }
}
