//! `knarr controller-manager`: the controllers alone, all or some of them, for the cluster of any API server.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_client::kubeconfig::Access;
use knarr_controllers::{ClientOf, Options, names, run_chosen};

use crate::component::{Component, ComponentArgs};
use crate::pki::read;
use crate::signer::{CertificateKeys, TokenKey};

/// Its name towards the API.
pub const NAME: &str = "kube-controller-manager";

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr controller-manager --kubeconfig controllers.kubeconfig\n  \
    knarr controller-manager --kubeconfig jobs.kubeconfig --controllers job-controller,cronjob-controller \\\n    \
    --leader-elect-resource-name jobs\n\n\
    A controller must run once in a cluster: `knarr server --disable-controller-manager` runs none itself.")]
pub struct ControllerManagerArgs {
    /// The controllers to run: names, `-NAME` for those not to run, `*` for all others
    #[arg(long, default_value = "*", value_name = "NAME", value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Addresses of pods, all nodes together
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    cluster_cidr: String,
    /// Prefix length of one node's part of them
    #[arg(long, default_value_t = 24, value_name = "BITS")]
    node_cidr_mask_size: u8,
    /// Certificate that pods check the API server's against [default: the kubeconfig's]
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// Key that signs the tokens in Secrets of service accounts; without it they stay empty
    #[arg(long, value_name = "FILE")]
    service_account_private_key_file: Option<PathBuf>,
    /// Certificate of the authority that signs approved certificate requests; without it nobody does
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Key of that authority
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
    #[command(flatten)]
    component: ComponentArgs,
}

pub fn run(args: ControllerManagerArgs) -> Result<()> {
    let chosen = Chosen::parse(&args.controllers)?;
    crate::server::parse_cidr("--cluster-cidr", &args.cluster_cidr, args.node_cidr_mask_size)?;
    crate::memory::runtime()?.block_on(async {
        let component = Component::start(&args.component, NAME).await?;
        let options = options(&args, &component.access)?;
        let (client, clock) = (component.client.clone(), Arc::clone(&component.clock));
        let same = client.clone();
        // As upstream does by default: every controller under the kubeconfig's identity.
        let client_of: ClientOf = Arc::new(move |_| same.clone());
        component
            .run(move |stop| {
                let chosen = chosen.clone();
                run_chosen(
                    move |name| chosen.takes(name),
                    Arc::clone(&client_of),
                    client.clone(),
                    Arc::clone(&clock),
                    options.clone(),
                    stop,
                )
            })
            .await
    })
}

fn options(args: &ControllerManagerArgs, access: &Access) -> Result<Options> {
    let root_ca = match &args.root_ca_file {
        Some(file) => read(file)?,
        None => String::from_utf8(access.certificate_authority.clone().unwrap_or_default())
            .context("the kubeconfig's certificate authority is not PEM")?,
    };
    let keys = args.cluster_signing_cert_file.as_deref().zip(args.cluster_signing_key_file.as_deref());
    let certificate_signer =
        keys.map(|(certificate, key)| CertificateKeys::open(certificate, key)).transpose()?;
    let token_key = args.service_account_private_key_file.as_deref().map(TokenKey::open).transpose()?;
    Ok(Options {
        cluster_cidr: args.cluster_cidr.clone(),
        node_cidr_mask_size: args.node_cidr_mask_size,
        root_ca,
        certificate_signer: certificate_signer.map(|s| Arc::new(s) as _),
        token_signer: token_key.map(|s| Arc::new(s) as _),
    })
}

/// What `--controllers` says.
#[derive(Clone, Debug)]
struct Chosen {
    others: bool,
    on: Vec<String>,
    off: Vec<String>,
}

impl Chosen {
    fn parse(list: &[String]) -> Result<Self> {
        let mut chosen = Self { others: false, on: Vec::new(), off: Vec::new() };
        for entry in list {
            let (name, to) = match entry.strip_prefix('-') {
                None if entry == "*" => {
                    chosen.others = true;
                    continue;
                }
                None => (entry.as_str(), &mut chosen.on),
                Some(name) => (name, &mut chosen.off),
            };
            if !names().any(|known| known == name) {
                let known: Vec<_> = names().collect();
                bail!("--controllers: no controller is called {name:?}; there are {}", known.join(", "));
            }
            to.push(name.to_owned());
        }
        Ok(chosen)
    }

    fn takes(&self, name: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|n| n == name);
        listed(&self.on) || (self.others && !listed(&self.off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(list: &str) -> Result<Vec<&'static str>> {
        let list: Vec<_> = list.split(',').map(str::to_owned).collect();
        let chosen = Chosen::parse(&list)?;
        Ok(names().filter(|name| chosen.takes(name)).collect())
    }

    #[test]
    fn controllers_are_chosen_as_upstream_does() {
        assert_eq!(taken("*").unwrap(), names().collect::<Vec<_>>());
        assert_eq!(
            taken("job-controller,deployment-controller").unwrap(),
            ["deployment-controller", "job-controller"]
        );
        let but_one = taken("*,-job-controller").unwrap();
        assert!(!but_one.contains(&"job-controller") && but_one.len() + 1 == names().count());
        assert!(taken("-job-controller").unwrap().is_empty());
        let error = taken("jobs").unwrap_err().to_string();
        assert!(error.starts_with("--controllers: no controller is called \"jobs\"; there are "), "{error}");
    }
}
