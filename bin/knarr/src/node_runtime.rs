//! The runtime of a node's pods: the built-in runtime on the built-in network or on CNI plugins, or any CRI
//! runtime with its own network.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use knarr_client::Supervisor;
use knarr_client::clock::SystemClock;
use knarr_kubelet::cri::{self, Cri};
use knarr_kubelet::embedded::{Embedded, OciHandler};
use knarr_kubelet::instrumented_runtime::InstrumentedRuntime;
use knarr_kubelet::node_status::NetworkState;
use knarr_kubelet::runtime::ContainerRuntime;
use knarr_network::cidr::Ipv4Cidr;
use knarr_network::pods;
use knarr_runtime::containers::{Cgroups, OciProgram, Runtime, RuntimeOptions};
use knarr_runtime::images::{ImageStore, PullOptions};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::example_images;
use crate::layout::shim_cgroup;
use crate::node::NodeOptions;
use crate::pod_network::NodeNetwork;

/// The options that choose the runtime of pods.
#[derive(Args, Clone, Default)]
pub struct RuntimeArgs {
    /// Socket of a CRI runtime for pods, `unix:///run/containerd/containerd.sock` [default: built-in runtime]
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "network_plugin")]
    container_runtime_endpoint: Option<String>,
    /// Socket of the image service [default: the runtime's]
    #[arg(long, value_name = "ENDPOINT", requires = "container_runtime_endpoint")]
    image_service_endpoint: Option<String>,
    /// Run pods of RuntimeClasses with this handler with an OCI runtime, `crun=/usr/bin/crun`; may be given
    /// several times
    #[arg(long, value_name = "NAME=PATH", conflicts_with = "container_runtime_endpoint")]
    runtime_handler: Vec<HandlerArg>,
}

/// A handler and the OCI runtime that runs its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HandlerArg {
    name: String,
    program: PathBuf,
}

impl FromStr for HandlerArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, program) =
            text.split_once('=').ok_or_else(|| format!("{text} is not of the form crun=/usr/bin/crun"))?;
        // The rule is the same as for the handler of a RuntimeClass.
        match knarr_apimachinery::names::dns1123_label(name).first() {
            Some(problem) => Err(format!("{name:?}: {problem}")),
            None => Ok(Self { name: name.to_owned(), program: PathBuf::from(program) }),
        }
    }
}

/// Checks and opens the programs; blocks.
fn open_handlers(given: &[HandlerArg]) -> Result<Vec<OciHandler>> {
    let mut handlers: Vec<OciHandler> = Vec::with_capacity(given.len());
    for HandlerArg { name, program } in given {
        if handlers.iter().any(|handler| handler.name == *name) {
            bail!("--runtime-handler: {name} is given twice");
        }
        let program = OciProgram::open(program).map_err(|why| anyhow!("--runtime-handler {name}: {why}"))?;
        handlers.push(OciHandler { name: name.clone(), program });
    }
    Ok(handlers)
}

/// A node's runtime, with the part that connects its pods to the network.
pub struct NodeRuntime {
    pub runtime: Arc<dyn ContainerRuntime>,
    /// The tree in which the cgroups of pods are created.
    pub cgroups: Cgroups,
    pods: Pods,
}

enum Pods {
    Ours(NodeNetwork),
    /// The CRI runtime connects pods itself.
    Cri(Cri),
}

impl NodeRuntime {
    /// Opens the runtime and takes over the pods that run already. `known` is the node's range of pod
    /// addresses, if it has one already. Also returns a description for the terminal.
    pub async fn open(
        options: &NodeOptions,
        known: Option<Ipv4Cidr>,
        supervisor: &Supervisor,
        stop: &CancellationToken,
    ) -> Result<(Self, String)> {
        match &options.runtime.container_runtime_endpoint {
            Some(endpoint) => open_cri(options, endpoint, known, supervisor, stop).await,
            None => open_embedded(options, known, supervisor).await,
        }
    }

    /// Sets the node's range of pod addresses once it is assigned. `known` is the value that
    /// [`NodeRuntime::open`] got.
    pub async fn set_pod_cidr(
        &self,
        options: &NodeOptions,
        known: Option<Ipv4Cidr>,
        cidr: Ipv4Cidr,
    ) -> Result<()> {
        match (&self.pods, known) {
            (_, Some(known)) if known == cidr => Ok(()),
            (Pods::Ours(_), Some(known)) => bail!(
                "the node's pod addresses changed from {known} to {cidr}: `knarr reset` removes the old ones"
            ),
            (Pods::Ours(network), None) => network.open(network_config(options, cidr)?),
            (Pods::Cri(runtime), _) => tell_pod_cidr(runtime, options, cidr).await,
        }
    }

    /// Returns whether pods can be connected; `known` means that the node has a range of pod addresses. A CRI
    /// runtime reports its network in its own status.
    pub fn network_state(&self, known: bool) -> NetworkState {
        match &self.pods {
            _ if !known => Err("the node has no pod addresses yet".to_owned()),
            Pods::Ours(network) => network.state(),
            Pods::Cri(_) => Ok(()),
        }
    }

    /// Sends the state of the network, whose addresses are known by now, and each later change, until `stop`.
    pub fn keep_telling(
        &self,
        state: watch::Sender<NetworkState>,
        supervisor: &Supervisor,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let _ = state.send_replace(self.network_state(true));
        if let Pods::Ours(network) = &self.pods {
            network.keep_telling(state, supervisor, tasks, stop);
        }
    }

    /// Describes what pods can do to each other on the network because the kernel lacks a feature.
    pub fn network_weakness(&self) -> Option<&'static str> {
        match &self.pods {
            Pods::Ours(network) => network.weakness(),
            Pods::Cri(_) => None,
        }
    }

    /// Returns whether this program keeps the routes to the pods of other nodes: only with the built-in
    /// network.
    pub fn routes_to_nodes(&self) -> bool {
        matches!(self.pods, Pods::Ours(NodeNetwork::BuiltIn(_)))
    }

    /// Returns the folder in which a network configuration is awaited, if none exists yet.
    pub fn awaited_configuration(&self) -> Option<&Path> {
        match &self.pods {
            Pods::Ours(network) => network.awaited_configuration(),
            Pods::Cri(_) => None,
        }
    }
}

fn network_config(options: &NodeOptions, pod_cidr: Ipv4Cidr) -> Result<pods::PodNetworkConfig> {
    let cluster =
        options.cluster_cidr.parse().with_context(|| format!("cluster CIDR {}", options.cluster_cidr))?;
    let mut config = pods::PodNetworkConfig::new(pod_cidr, cluster, options.layout.network());
    config.service_cidr = Some(Ipv4Cidr::new(options.service_cidr.0, options.service_cidr.1));
    config.local_addresses = vec![options.cluster_dns];
    config.reserved_ports = vec![options.kubelet_port];
    config.reserved_ports.extend(options.healthz.map(|address| address.port()));
    config.reserved_ports.extend(options.api_port);
    config.blocked_destinations = options.network.pod_blocked_destinations();
    Ok(config)
}

async fn tell_pod_cidr(runtime: &Cri, options: &NodeOptions, cidr: Ipv4Cidr) -> Result<()> {
    pods::open_without_pods(&network_config(options, cidr)?)
        .context("the node's network cannot be set up")?;
    let set = runtime.set_pod_cidr(&cidr.to_string()).await;
    set.with_context(|| format!("the container runtime does not take the pod addresses {cidr}"))
}

/// Wraps the runtime so that its operations are counted.
fn instrumented(runtime: impl ContainerRuntime) -> Arc<dyn ContainerRuntime> {
    Arc::new(InstrumentedRuntime::new(Arc::new(runtime), Arc::new(SystemClock)))
}

async fn open_cri(
    options: &NodeOptions,
    endpoint: &str,
    known: Option<Ipv4Cidr>,
    supervisor: &Supervisor,
    stop: &CancellationToken,
) -> Result<(NodeRuntime, String)> {
    let cgroups = Cgroups::detect(&options.cgroup_root)?;
    let runtime_options = cri::Options {
        runtime_endpoint: endpoint.to_owned(),
        image_endpoint: options.runtime.image_service_endpoint.clone(),
        cgroups: cgroups.clone(),
        clock: Arc::new(SystemClock),
        supervisor: supervisor.clone(),
    };
    let runtime = Cri::open(runtime_options, stop.clone()).await.map_err(|error| anyhow!(error))?;
    if let Some(cidr) = known {
        tell_pod_cidr(&runtime, options, cidr).await?;
    }
    let version = runtime.version();
    let taken_up = runtime.list_pod_sandboxes().await?.len();
    let detail = match taken_up {
        0 => format!("{} {}", version.name, version.version),
        n => format!("{} {}, {n} pod sandboxes taken up", version.name, version.version),
    };
    let opened = NodeRuntime { runtime: instrumented(runtime.clone()), cgroups, pods: Pods::Cri(runtime) };
    Ok((opened, detail))
}

async fn open_embedded(
    options: &NodeOptions,
    known: Option<Ipv4Cidr>,
    supervisor: &Supervisor,
) -> Result<(NodeRuntime, String)> {
    let given = options.runtime.runtime_handler.clone();
    let handlers = tokio::task::spawn_blocking(move || open_handlers(&given)).await??;
    let network = NodeNetwork::new(&options.network);
    if let Some(cidr) = known {
        network.open(network_config(options, cidr)?)?;
    }
    let layout = &options.layout;
    let images = ImageStore::open(layout.images()).await?;
    let runtime = Runtime::open(RuntimeOptions {
        state_dir: layout.runtime(),
        shim: std::env::current_exe().context("cannot find this program's own file")?,
        shim_args: vec![crate::layout::SHIM.to_owned()],
        cgroup_root: options.cgroup_root.clone(),
        shim_cgroup: shim_cgroup(&options.cgroup_root),
    })
    .await?;
    let names = example_images::build(&images).await.context("the example images cannot be made")?;
    let taken_up = runtime.list_sandboxes().len();
    let pull = PullOptions { mirrors: options.mirrors.clone(), ..PullOptions::default() };
    let files = layout.runtime().join("sandbox-files");
    let runtime =
        Embedded::open(runtime, images, network.pods(), pull, handlers, files, supervisor.clone()).await?;
    let detail = match taken_up {
        0 => format!("{} example images", names.len()),
        n => format!("{} example images, {n} running pods taken up", names.len()),
    };
    let cgroups = runtime.cgroups();
    let opened = NodeRuntime { runtime: instrumented(runtime), cgroups, pods: Pods::Ours(network) };
    Ok((opened, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_name_programs() {
        let of = |text: &str| text.parse::<HandlerArg>();
        let crun = HandlerArg { name: "crun".to_owned(), program: "/usr/bin/crun".into() };
        assert_eq!(of("crun=/usr/bin/crun"), Ok(crun.clone()));
        for (wrong, why) in [("crun", "is not of the form"), ("=/bin/x", "\"\""), ("Crun=/bin/x", "\"Crun\"")]
        {
            assert!(of(wrong).unwrap_err().contains(why), "{wrong}");
        }
        let error = |given: &[HandlerArg]| open_handlers(given).unwrap_err().to_string();
        let missing = HandlerArg { program: "/no/such/crun".into(), ..crun };
        assert_eq!(
            error(std::slice::from_ref(&missing)),
            "--runtime-handler crun: /no/such/crun: no such file or directory"
        );
        let shell = HandlerArg { program: "/bin/sh".into(), ..missing };
        assert_eq!(error(&[shell.clone(), shell]), "--runtime-handler: crun is given twice");
    }
}
