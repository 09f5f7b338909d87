//! The network of the node's pods: the built-in network, or CNI plugins.

mod built_in;
mod plugins;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use knarr_client::Supervisor;
use knarr_kubelet::node_status::NetworkState;
use knarr_kubelet::pod_network::PodNetwork;
use knarr_network::cidr::{CidrError, Ipv4Cidr};
use knarr_network::cni::{self, Cni, CniConfig};
use knarr_network::pods::{self, PodNetworkConfig};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use built_in::BuiltIn;
use plugins::Plugins;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkPlugin {
    /// Built-in network: routed pods, host ports, routes to the other nodes
    BuiltIn,
    /// Plugins in --cni-bin-dir, configured by the first file in --cni-conf-dir
    Cni,
}

#[derive(Debug, Clone, Args)]
pub struct NetworkArgs {
    /// Network of the pods
    #[arg(long, value_enum, default_value = "built-in", value_name = "PLUGIN")]
    network_plugin: NetworkPlugin,
    /// Folder of network configurations, for --network-plugin cni
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "FOLDER")]
    cni_conf_dir: PathBuf,
    /// Folders of network plugins, for --network-plugin cni
    #[arg(long, default_value = "/opt/cni/bin", value_delimiter = ',', value_name = "FOLDER")]
    cni_bin_dir: Vec<PathBuf>,
    /// Prefixes that pods of the built-in network cannot reach, except by DNS (port 53); addresses of the
    /// cluster's pods and of the node itself are exempt. The default is the link-local range, where clouds
    /// serve a machine's metadata and credentials; '' for none
    #[arg(long, default_value = "169.254.0.0/16", value_delimiter = ',', value_name = "CIDRS", value_parser = prefix)]
    pod_blocked_destinations: Vec<Option<Ipv4Cidr>>,
}

/// Parses a prefix; `None` for the empty text, which an empty list is split into.
fn prefix(text: &str) -> Result<Option<Ipv4Cidr>, CidrError> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

impl NetworkArgs {
    pub fn pod_blocked_destinations(&self) -> Vec<Ipv4Cidr> {
        self.pod_blocked_destinations.iter().flatten().copied().collect()
    }
}

/// The pod network of this node, which is opened once the node's range of pod addresses is known.
pub enum NodeNetwork {
    BuiltIn(Arc<BuiltIn>),
    Cni { plugins: Arc<Plugins>, args: NetworkArgs },
}

impl NodeNetwork {
    pub fn new(args: &NetworkArgs) -> Self {
        match args.network_plugin {
            NetworkPlugin::BuiltIn => Self::BuiltIn(Arc::default()),
            NetworkPlugin::Cni => Self::Cni { plugins: Arc::default(), args: args.clone() },
        }
    }

    /// Returns the interface with which the container runtime connects pods.
    pub fn pods(&self) -> Arc<dyn PodNetwork> {
        match self {
            Self::BuiltIn(network) => Arc::<BuiltIn>::clone(network),
            Self::Cni { plugins, .. } => Arc::<Plugins>::clone(plugins),
        }
    }

    /// Opens the network, so that pods can be connected. A second call changes nothing.
    pub fn open(&self, config: PodNetworkConfig) -> Result<()> {
        match self {
            Self::BuiltIn(network) => {
                network.open(pods::PodNetwork::open(config).context("the pod network cannot be set up")?);
            }
            Self::Cni { plugins, args } => {
                pods::open_without_pods(&config).context("the node's network cannot be set up")?;
                let config = CniConfig {
                    conf_dir: args.cni_conf_dir.clone(),
                    bin_dirs: args.cni_bin_dir.clone(),
                    state_dir: config.state_dir.join("cni"),
                    pod_cidr: config.pod_cidr,
                };
                plugins.open(Cni::open(config).context("the pod network cannot be set up")?);
            }
        }
        Ok(())
    }

    /// Describes what pods can do to each other because the kernel lacks a feature; `None` before the network
    /// is open.
    pub fn weakness(&self) -> Option<&'static str> {
        match self {
            Self::BuiltIn(network) => network.weakness(),
            Self::Cni { .. } => None,
        }
    }

    /// Returns whether pods can be connected, once the network is open.
    pub fn state(&self) -> NetworkState {
        match self {
            Self::BuiltIn(_) => Ok(()),
            Self::Cni { args, .. } => cni::state(&args.cni_conf_dir),
        }
    }

    /// Sends every change of the state, until `stop`.
    pub fn keep_telling(
        &self,
        state: watch::Sender<NetworkState>,
        supervisor: &Supervisor,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let Self::Cni { args, .. } = self else { return };
        let (folder, state) = (args.cni_conf_dir.clone(), Arc::new(state));
        tasks.spawn(supervisor.run("network-configurations", stop.clone(), move |stop| {
            let (folder, state) = (folder.clone(), Arc::clone(&state));
            async move {
                let tell = |now: NetworkState| {
                    state.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
                };
                if let Err(error) = cni::watch(&folder, tell, stop).await {
                    tracing::error!(%error, folder = %folder.display(), "cannot watch the network configurations");
                }
            }
        }));
    }

    /// Returns the folder in which a configuration is awaited, if none exists yet.
    pub fn awaited_configuration(&self) -> Option<&Path> {
        match self {
            Self::Cni { args, .. } if self.state().is_err() => Some(&args.cni_conf_dir),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        network: NetworkArgs,
    }

    #[test]
    fn blocked_destinations_are_link_local_unless_others_are_named() {
        for (given, expected) in [
            (None, Some(&["169.254.0.0/16"][..])),
            (Some(""), Some(&[])),
            (Some("169.254.0.0/16,100.100.100.200/32"), Some(&["169.254.0.0/16", "100.100.100.200/32"])),
            (Some("fe80::/10"), None),
            (Some("169.254.169.254"), None),
        ] {
            let flag = given.map(|text| ["--pod-blocked-destinations", text]);
            let words = ["knarr"].into_iter().chain(flag.into_iter().flatten());
            let parsed = Program::try_parse_from(words).ok().map(|p| p.network.pod_blocked_destinations());
            let parsed = parsed.map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(
                parsed.as_deref().map(|l| l.iter().map(String::as_str).collect::<Vec<_>>()),
                expected.map(<[_]>::to_vec),
                "{given:?}"
            );
        }
    }
}
