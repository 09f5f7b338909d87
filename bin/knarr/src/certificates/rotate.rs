//! `knarr certificates rotate`: renews certificates at once, with their present subjects and names.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::inventory::{self, Entry, Origin};
use crate::agent::names::{CLIENT, SERVING};
use crate::kubeconfig;
use crate::layout::Layout;
use crate::pki::{self, Pki, write_private};

/// The extension of a file beside an agent's certificate that requests its renewal.
pub const REQUESTED: &str = "rotate";

#[derive(Args)]
#[command(
    after_help = "Examples:\n  knarr certificates rotate --all\n  knarr certificates rotate apiserver admin\n  \
    knarr certificates rotate --all --data-dir /var/lib/knarr-agent\n\n\
    A running server shows the new certificates within seconds; one that is stopped at its next start. An agent requests \
    its certificates from the cluster, at once or at its next start. `rotate-ca` is for authorities."
)]
pub struct RotateArgs {
    /// Names as listed by `knarr certificates`
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// All except the authorities
    #[arg(long)]
    all: bool,
}

pub fn run(layout: &Layout, args: &RotateArgs) -> Result<()> {
    let entries = inventory::read(layout)?;
    if !layout.pki().join("ca.key").exists() {
        let chosen = choose(&[CLIENT, SERVING], args)?;
        for name in chosen {
            request(&layout.pki(), &name)?;
            println!("{name}: the agent requests a new one");
        }
        return Ok(());
    }
    let own = |entry: &&Entry| entry.origin == Origin::Own && !entry.is_authority() && !entry.is_kubeconfig();
    let known: Vec<&str> = entries.iter().filter(own).map(|entry| entry.name.as_str()).collect();
    let chosen = choose(&known, args)?;
    let _lock = pki::lock_soon(&layout.pki())?;
    let pki = Pki::open(layout.pki())?;
    for name in chosen {
        let (authority, stem) = match name.rsplit_once('/') {
            Some(("front-proxy", stem)) => (pki.front_proxy()?, stem),
            Some(("kubelet-serving", stem)) => (pki.kubelet_serving()?, stem),
            _ => (pki.another()?, name.as_str()),
        };
        authority.renew(stem).with_context(|| format!("cannot renew {name}"))?;
        println!("{name}: renewed");
        if name == kubeconfig::ADMIN {
            kubeconfig::renew_admin(layout, &pki)?;
            println!("{}: written", layout.admin_kubeconfig().display());
        }
    }
    Ok(())
}

/// Returns the names of the certificates to renew, of those that can be renewed here.
fn choose(known: &[&str], args: &RotateArgs) -> Result<Vec<String>> {
    if args.all {
        return Ok(known.iter().map(|name| (*name).to_owned()).collect());
    }
    let mut chosen: Vec<String> = Vec::new();
    for name in &args.names {
        let stem = name.strip_suffix(".kubeconfig").unwrap_or(name);
        if !known.contains(&stem) {
            bail!("{name} cannot be renewed here: choose among {}", known.join(", "));
        }
        if !chosen.iter().any(|c| c == stem) {
            chosen.push(stem.to_owned());
        }
    }
    Ok(chosen)
}

/// Requests the renewal of the certificate of this name, in the folder of an agent's certificates.
pub fn request(pki: &Path, name: &str) -> Result<()> {
    write_private(&pki.join(name).with_extension(REQUESTED), b"")
}

/// Returns whether the renewal of the certificate of this name was requested.
pub fn is_requested(pki: &Path, name: &str) -> bool {
    pki.join(name).with_extension(REQUESTED).exists()
}

/// Removes the request after it was carried out.
pub fn done(pki: &Path, name: &str) -> Result<()> {
    let path = pki.join(name).with_extension(REQUESTED);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::facts;
    use crate::pki::Subject;

    #[test]
    fn certificates_keep_their_subject_and_names() {
        let folder = std::env::temp_dir().join(format!("knarr-rotate-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let layout = Layout::create(&folder).unwrap();
        let pki = Pki::open(layout.pki()).unwrap();
        let subject = Subject {
            common_name: "system:node:n1",
            organizations: &["system:nodes", "more"],
            names: &["n1".to_owned()],
            addresses: &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            server: true,
            client: true,
        };
        let before = pki.kubelet_serving().unwrap().credentials("kubelet", &subject).unwrap();
        let admin = kubeconfig::write_admin(&layout, &pki, "https://10.0.0.9:6443").unwrap();
        let rotate = |names: &[&str], all: bool| {
            run(&layout, &RotateArgs { names: names.iter().map(|n| (*n).to_owned()).collect(), all })
        };
        for wrong in ["ca", "nonsense", "../ca"] {
            let error = rotate(&[wrong], false).unwrap_err().to_string();
            assert!(error.ends_with("choose among admin, kubelet-serving/kubelet"), "{error}");
        }
        rotate(&["kubelet-serving/kubelet"], false).unwrap();
        let authority = pki.kubelet_serving().unwrap();
        let (certificate, key) = authority.files("kubelet");
        let (after, key) = (pki::read(&certificate).unwrap(), pki::read(&key).unwrap());
        assert!(after != before.certificate && key != before.key);
        let facts = |pem: &str| facts::Facts::of(&facts::chain(pem.as_bytes()).unwrap()[0]).unwrap();
        let (old, new) = (facts(&before.certificate), facts(&after));
        assert_eq!((old.subject, old.groups, old.uses), (new.subject, new.groups, new.uses));
        // The server would keep it as it is.
        assert_eq!(authority.credentials("kubelet", &subject).unwrap().certificate, after);
        assert_eq!(pki.files("admin").0, layout.pki().join("admin.crt"));
        assert_eq!(pki::read(&pki.files("admin").0).unwrap(), admin.certificate);

        rotate(&[], true).unwrap();
        let admin_now = pki::read(&pki.files("admin").0).unwrap();
        assert_ne!(admin_now, admin.certificate);
        let access = knarr_client::kubeconfig::Access::load(&layout.admin_kubeconfig()).unwrap();
        assert_eq!(access.server, "https://10.0.0.9:6443");
        assert_eq!(access.client_certificate.unwrap(), admin_now.into_bytes());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_agents_certificates_are_asked_for() {
        let folder = std::env::temp_dir().join(format!("knarr-rotate-agent-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let layout = Layout::create(&folder).unwrap();
        fs::create_dir_all(layout.pki()).unwrap();
        assert!(!is_requested(&layout.pki(), "kubelet"));
        run(&layout, &RotateArgs { names: Vec::new(), all: true }).unwrap();
        assert!(is_requested(&layout.pki(), "kubelet") && is_requested(&layout.pki(), "kubelet-client"));
        done(&layout.pki(), "kubelet").unwrap();
        done(&layout.pki(), "kubelet").unwrap();
        assert!(!is_requested(&layout.pki(), "kubelet"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
