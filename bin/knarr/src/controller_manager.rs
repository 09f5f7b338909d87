//! `knarr controller-manager`: runs some or all controllers for the cluster of any API server.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_client::Client;
use knarr_client::kubeconfig::Access;
use knarr_client::service_account::{ServiceAccounts, user_name};
use knarr_controllers::names::{by_name, on_by_default};
use knarr_controllers::{ClientOf, Options, names, run_chosen};
use serde_json::json;

use crate::component::{Component, ComponentArgs, Identity, Shown};
use crate::controller_flags::ControllerArgs;
use crate::leading;
use crate::private_files::read;
use crate::signer::{CertificateKeys, SigningKey, TokenKey};

/// The name that it uses at the API.
pub const NAME: &str = "kube-controller-manager";
const IDENTITY: Identity = Identity { name: NAME, port: 10257 };
/// The namespace of the controllers' service accounts.
pub const ACCOUNTS_IN: &str = "kube-system";

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr controller-manager --kubeconfig controllers.kubeconfig\n  \
    knarr controller-manager --kubeconfig jobs.kubeconfig --controllers job-controller,cronjob-controller \\\n    \
    --leader-elect-resource-name jobs\n\n\
    A controller must run once in a cluster: `knarr server --disable-controller-manager` runs none itself.")]
pub struct ControllerManagerArgs {
    /// Controllers to run: `NAME`, `-NAME` to leave one out, `*` for all that are on by default
    #[arg(long, default_value = "*", value_name = "NAME", value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Run each controller under its own service account in kube-system, created if missing
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    use_service_account_credentials: bool,
    /// Address range of pods, for all nodes together
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    cluster_cidr: String,
    /// Prefix length of one node's part of that range
    #[arg(long, default_value_t = 24, value_name = "BITS")]
    node_cidr_mask_size: u8,
    /// Address range of Services, which no node gets
    #[arg(long, value_name = "CIDR")]
    service_cluster_ip_range: Option<String>,
    /// Certificate with which pods verify the API server [default: the kubeconfig's]
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// Key that signs the tokens in Secrets of service accounts; these stay empty without it
    #[arg(long, value_name = "FILE")]
    service_account_private_key_file: Option<PathBuf>,
    /// Certificate of the authority that signs approved certificate requests; none are signed without it
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Key of that authority
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
    /// Certificate of the authority that signs kubelets' serving certificates [default: the one above]
    #[arg(long, value_name = "FILE", requires_all = ["cluster_signing_kubelet_serving_key_file", "cluster_signing_cert_file"])]
    cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Key of that authority
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_serving_cert_file")]
    cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    #[command(flatten)]
    component: ComponentArgs,
    #[command(flatten)]
    settings: ControllerArgs,
}

pub fn run(args: ControllerManagerArgs) -> Result<()> {
    let chosen = Chosen::parse(&args.controllers)?;
    crate::cidrs::parse_cidr("--cluster-cidr", &args.cluster_cidr, args.node_cidr_mask_size)?;
    if let Some(range) = &args.service_cluster_ip_range {
        crate::cidrs::parse_cidr("--service-cluster-ip-range", range, 32)?;
    }
    crate::memory::run_to_end(async {
        let component = Component::start(&args.component, IDENTITY).await?;
        let options = options(&args, &component.access)?;
        let (client, supervisor) = (component.client.clone(), component.supervisor.clone());
        let client_of = identities(&args, &component)?;
        component
            .run(shown(&args), move |leading| {
                run_chosen(
                    &|name| chosen.takes(name),
                    leading::clients_under(&leading, &client_of),
                    client.clone().under(&leading),
                    supervisor.clone(),
                    options.clone(),
                    leading.until,
                )
            })
            .await
    })
}

fn shown(args: &ControllerManagerArgs) -> Shown {
    let config = json!({"kubecontrollermanager.config.k8s.io": {
        "apiVersion": "kubecontrollermanager.config.k8s.io/v1alpha1",
        "kind": "KubeControllerManagerConfiguration",
        "Generic": {
            "ClientConnection": args.component.connection_config(),
            "Controllers": args.controllers,
            "LeaderElection": args.component.lease_config(NAME),
        },
        "KubeCloudShared": {
            "AllocateNodeCIDRs": true,
            "ClusterCIDR": args.cluster_cidr,
            "UseServiceAccountCredentials": args.use_service_account_credentials,
        },
        "NodeIPAMController": {
            "NodeCIDRMaskSize": args.node_cidr_mask_size,
            "ServiceCIDR": args.service_cluster_ip_range,
        },
        "CSRSigningController": {
            "ClusterSigningCertFile": args.cluster_signing_cert_file,
            "ClusterSigningKeyFile": args.cluster_signing_key_file,
            "KubeletServingSignerConfiguration": {
                "CertFile": args.cluster_signing_kubelet_serving_cert_file,
                "KeyFile": args.cluster_signing_kubelet_serving_key_file,
            },
        },
        "SAController": {
            "RootCAFile": args.root_ca_file,
            "ServiceAccountKeyFile": args.service_account_private_key_file,
        },
    }});
    // The controllers are supervised tasks, which are among the checks already.
    let (checks, metrics) = (Box::new(Vec::new), Box::new(knarr_controllers::metrics::render));
    Shown { checks, count_at: &["healthz"], metrics, config }
}

/// Returns how controllers get their clients: with the kubeconfig's identity, or each with its own service
/// account.
fn identities(args: &ControllerManagerArgs, component: &Component) -> Result<ClientOf> {
    let client = component.client.clone();
    if !args.use_service_account_credentials {
        return Ok(Arc::new(move |_| client.clone()));
    }
    let accounts = ServiceAccounts::new(client, component.without_identity(), ACCOUNTS_IN);
    let clock = Arc::clone(&component.clock);
    Ok(Arc::new(move |name| {
        let client = Client::new(accounts.transport(name), Arc::clone(&clock), NAME);
        client.on_behalf_of(&user_name(ACCOUNTS_IN, name))
    }))
}

fn options(args: &ControllerManagerArgs, access: &Access) -> Result<Options> {
    let root_ca = match &args.root_ca_file {
        Some(file) => read(file)?,
        None => String::from_utf8(access.certificate_authority.clone().unwrap_or_default())
            .context("the kubeconfig's certificate authority is not PEM")?,
    };
    let open = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
        let files = certificate.as_deref().zip(key.as_deref());
        files.map(|(certificate, key)| SigningKey::open(certificate, key)).transpose()
    };
    let kubelet_serving = open(
        &args.cluster_signing_kubelet_serving_cert_file,
        &args.cluster_signing_kubelet_serving_key_file,
    )?;
    let certificate_signer = open(&args.cluster_signing_cert_file, &args.cluster_signing_key_file)?
        .map(|clients| CertificateKeys { clients, kubelet_serving });
    let token_key = args.service_account_private_key_file.as_deref().map(TokenKey::open).transpose()?;
    Ok(Options {
        cluster_cidr: args.cluster_cidr.clone(),
        node_cidr_mask_size: args.node_cidr_mask_size,
        service_cidr: args.service_cluster_ip_range.clone(),
        root_ca,
        certificate_signer: certificate_signer.map(|s| Arc::new(s) as _),
        token_signer: token_key.map(|s| Arc::new(s) as _),
        settings: args.settings.settings()?,
    })
}

/// The controllers that `--controllers` selects.
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
            let Some(name) = by_name(name) else {
                let known: Vec<_> = names().collect();
                bail!("--controllers: no controller is called {name:?}; there are {}", known.join(", "));
            };
            to.push(name.to_owned());
        }
        Ok(chosen)
    }

    fn takes(&self, name: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|n| n == name);
        listed(&self.on) || (self.others && on_by_default(name) && !listed(&self.off))
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
        let usual: Vec<_> = names().filter(|name| on_by_default(name)).collect();
        assert_eq!(taken("*").unwrap(), usual);
        assert_eq!(
            taken("job-controller,deployment-controller").unwrap(),
            ["deployment-controller", "job-controller"]
        );
        let but_one = taken("*,-job-controller").unwrap();
        assert!(!but_one.contains(&"job-controller") && but_one.len() + 1 == usual.len());
        assert_eq!(taken("*,tokencleaner").unwrap().len(), usual.len() + 1);
        assert_eq!(taken("job,-cronjob").unwrap(), ["job-controller"]);
        assert!(taken("-job-controller").unwrap().is_empty());
        let error = taken("jobs").unwrap_err().to_string();
        assert!(error.starts_with("--controllers: no controller is called \"jobs\"; there are "), "{error}");
    }
}
