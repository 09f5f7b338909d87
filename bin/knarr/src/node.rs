//! A node: container runtime, kubelet, pod network, service proxy, cluster DNS. Part of `server`, or alone as `agent`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference};
use knarr_client::events::{EventRecorder, EventType};
use knarr_client::transport::ListOptions;
use knarr_client::{Client, Informer, Informers, Supervisor};
use knarr_kubelet::config::{Config, DEFAULT_POD_PIDS};
use knarr_kubelet::csi::{CsiPlugins, Drivers, NodeInfo, allocatable};
use knarr_kubelet::folders;
use knarr_kubelet::host_security::HostSecurity;
use knarr_kubelet::kubelet::{Dependencies, Kubelet};
use knarr_kubelet::node_status::machine::Machine;
use knarr_kubelet::node_status::{self, Enforce, Reserved, Thresholds};
use knarr_kubelet::plugins::{PluginHandler, PluginManager};
use knarr_kubelet::pulled_images::{PolicyName, VerificationPolicy};
use knarr_kubelet::runtime::ContainerRuntime;
use knarr_kubelet::server as kubelet_server;
use knarr_kubelet::sysctls::SysctlPattern;
use knarr_kubelet::volumes::{self, Csi, ObjectSource, VolumeManager};
use knarr_network::cidr::Ipv4Cidr;
use knarr_runtime::images::Mirror;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::layout::{DEFAULT_CGROUP_ROOT, Layout};
use crate::node_network::{self, NetworkMetrics};
use crate::node_runtime::{NodeRuntime, RuntimeArgs};
use crate::open_files;
use crate::pod_network::NetworkArgs;
use crate::preflight;
use crate::progress::Progress;

/// The command-line options of a node.
#[derive(Args)]
pub struct NodeArgs {
    /// Name of the node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Address of the node [default: the one of the default route]
    #[arg(long, value_name = "IP")]
    node_ip: Option<IpAddr>,
    /// Labels of the node, `key=value`; may be given several times
    #[arg(long, value_name = "LABEL")]
    node_label: Vec<String>,
    /// Control group below which the pods' groups are created
    #[arg(long, default_value = DEFAULT_CGROUP_ROOT, value_name = "PATH")]
    cgroup_root: String,
    /// Resolvers for names outside of the cluster
    #[arg(long, default_value = "/etc/resolv.conf", value_name = "FILE")]
    resolv_conf: PathBuf,
    /// Folder of the kubelet, where storage drivers expect it [default: kubelet/ in the data folder]
    #[arg(long, value_name = "DIR")]
    kubelet_dir: Option<PathBuf>,
    /// Port of the kubelet's own server
    #[arg(long, default_value_t = 10250, value_name = "PORT")]
    kubelet_port: u16,
    /// Port of the kubelet's /healthz over plain HTTP; 0 for none. The node works without it if the port is
    /// taken
    #[arg(long, default_value_t = 10248, value_name = "PORT")]
    healthz_port: u16,
    /// Address of the /healthz port
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    healthz_bind_address: IpAddr,
    /// Free resources below which the node is under pressure and gets no pods, such as
    /// `memory.available<100Mi,nodefs.available<5%`; resources that are not named have no threshold [default:
    /// memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%]
    #[arg(long, value_name = "THRESHOLDS")]
    eviction_hard: Option<Thresholds>,
    /// Most processes and threads of one pod; -1 for as many as the node allows
    #[arg(long, default_value_t = DEFAULT_POD_PIDS, value_name = "NUMBER", allow_negative_numbers = true)]
    pod_max_pids: i64,
    /// Resources reserved for Knarr, such as `cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000`: pods do
    /// not get them [default: for `server` a twentieth of the memory, at most 512Mi, and 1000 process ids;
    /// for `agent` nothing]
    #[arg(long, value_name = "RESOURCES")]
    kube_reserved: Option<Reserved>,
    /// Resources reserved for the system, in the same form [default: nothing]
    #[arg(long, value_name = "RESOURCES")]
    system_reserved: Option<Reserved>,
    /// Limit of all pods together: the allocatable resources (`pods`) or the machine's (`none`)
    #[arg(long, value_name = "WHAT", default_value_t)]
    enforce_node_allocatable: Enforce,
    /// Sysctls that pods may set besides the safe ones, such as `kernel.msg*,net.core.somaxconn`: they apply
    /// to the pod alone, but may harm other pods of the node
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    allowed_unsafe_sysctls: Vec<SysctlPattern>,
    /// Give containers without a seccomp profile the runtime's default one; `false` leaves them unconfined
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    seccomp_default: bool,
    /// When a pod must present credentials for an image that is on the node: NeverVerify,
    /// NeverVerifyPreloadedImages (for images that were pulled), NeverVerifyAllowlistedImages or AlwaysVerify
    #[arg(long, value_name = "POLICY", default_value_t)]
    image_pull_credentials_verification_policy: PolicyName,
    /// Images that pods may use without credentials, such as
    /// `docker.io/library/busybox,registry.example/base/*`; for the policy NeverVerifyAllowlistedImages
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    preloaded_images_verification_allowlist: Vec<String>,
    /// Try another address first for a registry's images, `docker.io=https://mirror.example`; `*` stands for
    /// all registries; may be given several times
    #[arg(long, value_name = "REGISTRY=URL")]
    registry_mirror: Vec<Mirror>,
    #[command(flatten)]
    runtime: RuntimeArgs,
    #[command(flatten)]
    network: NetworkArgs,
}

impl NodeArgs {
    pub fn name(&self) -> Result<String> {
        let name = self.node_name.clone().map_or_else(preflight::node_name, Ok)?;
        let problems = knarr_apimachinery::names::dns1123_subdomain(&name);
        match problems.first() {
            Some(problem) => {
                bail!("the node cannot be called {name:?}: {problem}: choose another with --node-name")
            }
            None => Ok(name),
        }
    }

    /// Returns the name that `--node-name` gave, if any.
    pub fn given_name(&self) -> Option<&str> {
        self.node_name.as_deref()
    }

    pub fn ip(&self) -> Result<IpAddr> {
        self.node_ip.map_or_else(preflight::node_ip, Ok)
    }

    pub fn cgroup_root(&self) -> String {
        self.cgroup_root.clone()
    }

    pub fn resolv_conf(&self) -> PathBuf {
        self.resolv_conf.clone()
    }

    pub fn kubelet_dir(&self, layout: &Layout) -> Result<PathBuf> {
        match &self.kubelet_dir {
            Some(dir) => std::path::absolute(dir).with_context(|| format!("--kubelet-dir {}", dir.display())),
            None => Ok(layout.kubelet()),
        }
    }

    pub fn kubelet_port(&self) -> u16 {
        self.kubelet_port
    }

    /// Returns the address of `/healthz` over plain HTTP; `None` if it is off.
    pub fn healthz(&self) -> Option<SocketAddr> {
        (self.healthz_port != 0).then(|| SocketAddr::new(self.healthz_bind_address, self.healthz_port))
    }

    pub fn thresholds(&self) -> Thresholds {
        self.eviction_hard.unwrap_or_default()
    }

    pub fn pod_max_pids(&self) -> i64 {
        self.pod_max_pids
    }

    /// Returns the reserved resources; `control_plane` is true if the control plane runs in the same process.
    pub fn reservation(&self, control_plane: bool) -> Reservation {
        let default = if control_plane { Reserved::of_server(&Machine::read()) } else { Reserved::default() };
        Reservation {
            kube: self.kube_reserved.unwrap_or(default),
            system: self.system_reserved.unwrap_or_default(),
            enforce: self.enforce_node_allocatable,
        }
    }

    pub fn allowed_unsafe_sysctls(&self) -> Vec<SysctlPattern> {
        self.allowed_unsafe_sysctls.clone()
    }

    pub fn image_verification(&self) -> Result<VerificationPolicy> {
        let allowlist = &self.preloaded_images_verification_allowlist;
        Ok(VerificationPolicy::new(self.image_pull_credentials_verification_policy, allowlist)?)
    }

    pub fn seccomp_default(&self) -> bool {
        self.seccomp_default
    }

    pub fn mirrors(&self) -> Vec<Mirror> {
        self.registry_mirror.clone()
    }

    pub fn runtime(&self) -> RuntimeArgs {
        self.runtime.clone()
    }

    pub fn network(&self) -> NetworkArgs {
        self.network.clone()
    }

    pub fn labels(&self) -> Result<BTreeMap<String, String>> {
        let parse = |text: &String| {
            let (key, value) =
                text.split_once('=').with_context(|| format!("--node-label: {text} is not key=value"))?;
            let problems =
                [knarr_apimachinery::names::label_key(key), knarr_apimachinery::names::label_value(value)];
            match problems.concat().first() {
                Some(problem) => bail!("--node-label: {text}: {problem}"),
                None => Ok((key.to_owned(), value.to_owned())),
            }
        };
        self.node_label.iter().map(parse).collect()
    }
}

/// Resources of the machine that pods do not get.
#[derive(Clone, Copy)]
pub struct Reservation {
    kube: Reserved,
    system: Reserved,
    enforce: Enforce,
}

/// The settings of a node.
pub struct NodeOptions {
    pub name: String,
    pub ip: IpAddr,
    pub layout: Layout,
    pub cgroup_root: String,
    pub cluster_cidr: String,
    pub service_cidr: (Ipv4Addr, u8),
    pub cluster_dns: Ipv4Addr,
    pub cluster_domain: String,
    /// Whether the control plane runs in the same process.
    pub control_plane: bool,
    pub labels: BTreeMap<String, String>,
    pub resolv_conf: PathBuf,
    pub kubelet_dir: PathBuf,
    pub kubelet_port: u16,
    pub healthz: Option<SocketAddr>,
    /// The port of the API server in the same process.
    pub api_port: Option<u16>,
    pub thresholds: Thresholds,
    pub pod_max_pids: i64,
    pub reservation: Reservation,
    pub allowed_unsafe_sysctls: Vec<SysctlPattern>,
    pub seccomp_default: bool,
    pub image_verification: VerificationPolicy,
    pub mirrors: Vec<Mirror>,
    pub runtime: RuntimeArgs,
    pub network: NetworkArgs,
    /// The flags of the node's command line, for `/flagz`.
    pub flags: Vec<(String, String)>,
}

/// How the parts of a node reach the API server, and how the API server reaches the node's kubelet.
pub struct NodeAccess {
    pub kubelet: Client,
    /// The client of the service proxy, the name server and the routes.
    pub network: Client,
    /// The kubelet's serving certificate; the task that renews it keeps a reference.
    pub serving: Arc<kubelet_server::ServingCertificate>,
    /// When the client certificate that the kubelet shows to the API server expires.
    pub client_not_after: kubelet_server::NotAfter,
    /// The authorities of the client certificates that the kubelet accepts; the task that follows their
    /// changes keeps a reference.
    pub clients: Arc<kubelet_server::ClientAuthorities>,
    /// Runs the long-running tasks of the node.
    pub supervisor: Supervisor,
}

/// A running node.
pub struct RunningNode {
    tasks: TaskTracker,
    recorder: EventRecorder,
}

impl RunningNode {
    /// Waits until all tasks have stopped and the last events are written, after the stop that [`start`] got
    /// is cancelled.
    pub async fn stopped(self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.recorder.written().await;
    }
}

/// Starts the node; returns when it is Ready.
pub async fn start(
    options: NodeOptions,
    access: NodeAccess,
    progress: &Progress,
    stop: CancellationToken,
) -> Result<RunningNode> {
    let begun = access.kubelet.clock().now();
    let tasks = TaskTracker::new();
    let layout = &options.layout;
    std::fs::write(layout.cgroup_root_file(), &options.cgroup_root)
        .context("cannot write to the data folder")?;
    let known = kept_pod_cidr(&options);
    let runtime = progress
        .step("container runtime", NodeRuntime::open(&options, known, &access.supervisor, &stop))
        .await?;
    let informers = Arc::new(Informers::new(access.kubelet.clone(), stop.clone()));
    let (network_state, network_ready) = tokio::sync::watch::channel(runtime.network_state(known.is_some()));
    let node = own_node(&informers, &options.name);
    let counted = Arc::new(NetworkMetrics::new(access.kubelet.clock()));
    let network = NetworkView { state: network_ready, metrics: Arc::clone(&counted) };
    let recorder = progress
        .step("kubelet", start_kubelet(&options, &access, &informers, &runtime, network, &tasks, &stop))
        .await?;
    progress
        .step("pod network", async {
            let cidr = assigned_pod_cidr(&node, &options.name).await?;
            runtime.set_pod_cidr(&options, known, cidr).await?;
            if known != Some(cidr) {
                keep_pod_cidr(&options, cidr)?;
            }
            if let Some(weakness) = runtime.network_weakness() {
                record_weakness(&options, &recorder, weakness);
            }
            runtime.keep_telling(network_state, &access.supervisor, &tasks, &stop);
            let routes = runtime.routes_to_nodes();
            node_network::start(&options, &access, routes, &counted, &tasks, &stop).await?;
            Ok(((), cidr.to_string()))
        })
        .await?;
    progress
        .step("node Ready", async {
            if let Some(folder) = runtime.awaited_configuration() {
                let detail = format!("once there is a network configuration in {}", folder.display());
                return Ok(((), detail));
            }
            let pressure = wait_for(&node, &options.name, |node| ready_under(node, begun)).await;
            if pressure.is_empty() {
                return Ok(((), options.name.clone()));
            }
            let what = pressure.join(", ");
            let why = "gets no pods until more of the machine is free than --eviction-hard says";
            Ok(((), format!("{}, but under {what}: {why}", options.name)))
        })
        .await?;
    Ok(RunningNode { tasks, recorder })
}

/// Returns the informer of this node's own object, the only Node that a node may watch.
fn own_node(informers: &Informers, name: &str) -> Informer<Node> {
    let selection =
        ListOptions { field_selector: Some(format!("metadata.name={name}")), ..ListOptions::default() };
    informers.selected::<Node>(selection)
}

/// Waits until `test` returns a value for the node; returns that value.
async fn wait_for<T>(node: &Informer<Node>, name: &str, test: impl Fn(&Node) -> Option<T>) -> T {
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    node.add_handler(move |_| notify.notify_one());
    loop {
        if let Some(answer) = node.lister().get("", name).and_then(|node| test(&node)) {
            return answer;
        }
        changed.notified().await;
    }
}

/// Returns the pressure conditions of a node that is Ready. Returns `None` while the node is not Ready, or if
/// its last heartbeat is from before `since`, which means from an earlier run.
fn ready_under(node: &Node, since: Timestamp) -> Option<Vec<String>> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let hold = |c: &&NodeCondition| c.status == "True";
    let ready = conditions.iter().filter(hold).find(|c| c.type_ == "Ready")?;
    // The API stores whole seconds.
    let heartbeat = ready.last_heartbeat_time.as_ref()?.0.as_second();
    let short = conditions.iter().filter(hold).filter(|c| c.type_.ends_with("Pressure"));
    (heartbeat >= since.as_second()).then(|| short.map(|c| c.type_.clone()).collect())
}

/// Waits until the controllers have assigned pod addresses to the node; returns them.
async fn assigned_pod_cidr(node: &Informer<Node>, name: &str) -> Result<Ipv4Cidr> {
    let assigned = |node: &Node| node.spec.as_ref()?.pod_cidr.clone().filter(|c| !c.is_empty());
    let text = wait_for(node, name, assigned).await;
    text.parse().with_context(|| format!("the node's pod addresses {text}"))
}

/// Reads the pod addresses of an earlier run. They are stored beside the address leases, so that a restarted
/// node has its network before it reaches an API server.
fn kept_pod_cidr(options: &NodeOptions) -> Option<Ipv4Cidr> {
    std::fs::read_to_string(pod_cidr_file(options)).ok()?.trim().parse().ok()
}

fn keep_pod_cidr(options: &NodeOptions, cidr: Ipv4Cidr) -> Result<()> {
    let path = pod_cidr_file(options);
    std::fs::write(&path, format!("{cidr}\n")).with_context(|| format!("cannot write {}", path.display()))
}

fn pod_cidr_file(options: &NodeOptions) -> PathBuf {
    options.layout.network().join("pod-cidr")
}

/// The parts of the node's network that the kubelet needs.
struct NetworkView {
    state: tokio::sync::watch::Receiver<node_status::NetworkState>,
    metrics: Arc<NetworkMetrics>,
}

/// Starts the kubelet and the tasks that report the node's status, until `stop`.
async fn start_kubelet(
    options: &NodeOptions,
    access: &NodeAccess,
    informers: &Arc<Informers>,
    runtime: &NodeRuntime,
    network: NetworkView,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<(EventRecorder, String)> {
    let client = access.kubelet.clone();
    let config = kubelet_config(options);
    let folder = &config.data_dir;
    folders::make(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    std::fs::write(options.layout.kubelet_dir_file(), folder.as_os_str().as_encoded_bytes())
        .context("cannot write to the data folder")?;
    let mut status = node_status::Options::new(&config);
    status.labels = node_labels(options);
    status.kubelet_port = i32::from(options.kubelet_port);
    status.thresholds = options.thresholds;
    status.watch_pods(&config, &runtime.cgroups);
    if let Some(fault) = status.reservation_fault() {
        bail!("{fault}");
    }
    // The kubelet still emits events while it stops: see `RunningNode::stopped`.
    let recorder = EventRecorder::new(client.clone(), "kubelet", &options.name, CancellationToken::new());
    let objects = ObjectSource::new(client.clone(), access.supervisor.clone(), stop.clone());
    let volume_options = volumes::Options { dirs: config.dirs(), allocatable: status.allocatable() };
    let csi = start_plugins(&config, informers, &objects, &access.supervisor, tasks, stop);
    let volumes_in_use = csi.in_use();
    let volumes = VolumeManager::new(
        client.clone(),
        Arc::clone(&objects),
        csi,
        volume_options,
        Some(recorder.clone()),
        stop.clone(),
    );
    let dependencies = Dependencies {
        client,
        informers: Arc::clone(informers),
        cgroups: Some(runtime.cgroups.clone()),
        runtime: Arc::clone(&runtime.runtime),
        volumes,
        objects,
        recorder: recorder.clone(),
        memory_capacity: i64::try_from(Machine::read().memory_bytes).unwrap_or(i64::MAX),
        host_security: HostSecurity::read(),
    };
    let kubelet = Kubelet::new(config, dependencies, stop.clone());
    let served = bind_kubelet_server(options, access, &kubelet, &runtime.runtime, network.metrics).await?;
    let supervisor = &access.supervisor;
    tasks.spawn(supervisor.run("kubelet-server", stop.clone(), move |stop| served.serve(stop)));
    if let Some(address) = options.healthz {
        let (pods, clock) = (Arc::clone(&kubelet), Arc::clone(access.kubelet.clock()));
        tasks.spawn(supervisor.run("healthz", stop.clone(), move |stop| {
            kubelet_server::healthz_port::serve(
                address,
                Arc::<Kubelet>::clone(&pods),
                Arc::clone(&clock),
                stop,
            )
        }));
    }
    let manager = node_status::NodeStatusManager::new(
        status,
        informers,
        Arc::clone(&runtime.runtime),
        network.state,
        volumes_in_use,
        recorder.clone(),
        kubelet.image_changes(),
    );
    tasks.spawn(supervisor.run("node-status", stop.clone(), move |stop| Arc::clone(&manager).run(stop)));
    tasks.spawn(supervisor.run("kubelet", stop.clone(), move |_| {
        let running = Arc::clone(&kubelet).run();
        async move {
            if let Err(error) = running.await {
                tracing::error!(error, "the kubelet could not start");
            }
        }
    }));
    Ok((recorder, format!("port {}", options.kubelet_port)))
}

/// Emits the event about the weakness; the network itself logs it.
fn record_weakness(options: &NodeOptions, recorder: &EventRecorder, weakness: &str) {
    let (kind, name) = (Some("Node".to_owned()), Some(options.name.clone()));
    let about = ObjectReference { kind, name: name.clone(), uid: name, ..ObjectReference::default() };
    recorder.event_about(about, EventType::Warning, "PodAddressesNotEnforced", weakness);
}

/// Starts the registration of storage drivers, which use sockets in a folder of their own.
fn start_plugins(
    config: &Config,
    informers: &Arc<Informers>,
    objects: &Arc<ObjectSource>,
    supervisor: &Supervisor,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Arc<Csi> {
    let client = informers.client();
    let drivers = Arc::new(Drivers::new(Arc::clone(client.clock())));
    let node_info = NodeInfo::new(client.clone(), &config.node_name, own_node(informers, &config.node_name));
    let (dirs, name) = (config.dirs(), &config.node_name);
    let csi = Csi::new(informers, name, Arc::clone(&drivers), dirs, Arc::clone(objects), stop.clone());
    let (kept, known, asked) = (Arc::clone(&node_info), Arc::clone(&node_info), Arc::clone(&node_info));
    tasks.spawn(supervisor.run("csi-node", stop.clone(), move |stop| Arc::clone(&kept).keep(stop)));
    let (of_drivers, of_objects) = (Arc::clone(&drivers), Arc::clone(informers));
    tasks.spawn(supervisor.run("csi-allocatable", stop.clone(), move |stop| {
        let objects = of_objects.until(stop.clone()).informer();
        allocatable::keep(Arc::clone(&of_drivers), Arc::clone(&asked), objects, stop)
    }));
    let handlers: Vec<Arc<dyn PluginHandler>> = vec![Arc::new(CsiPlugins::new(drivers, node_info))];
    let registry = config.data_dir.join("plugins_registry");
    let plugins = PluginManager::new(registry, handlers, Arc::clone(client.clock()), supervisor.clone());
    tasks.spawn(supervisor.run("plugins", stop.clone(), move |until| {
        let (known, plugins) = (Arc::clone(&known), Arc::clone(&plugins));
        async move {
            // Registration of a driver that is found before the Node exists would fail.
            tokio::select! {
                () = until.cancelled() => return,
                () = known.wait_for_node() => {}
            }
            plugins.run(until).await;
        }
    }));
    csi
}

/// Binds the kubelet's server, which serves logs, exec and the rest to the API server and other clients.
async fn bind_kubelet_server(
    options: &NodeOptions,
    access: &NodeAccess,
    kubelet: &Arc<Kubelet>,
    runtime: &Arc<dyn ContainerRuntime>,
    network: Arc<NetworkMetrics>,
) -> Result<kubelet_server::BoundServer> {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.kubelet_port);
    // Checks the port first, for its clear error message.
    drop(preflight::listen(address, "--kubelet-port")?);
    let mut configz = kubelet_config(options).configz();
    configz["kubeletconfig"]["address"] = address.ip().to_string().into();
    configz["kubeletconfig"]["port"] = address.port().into();
    configz["kubeletconfig"]["healthzPort"] = options.healthz.map_or(0, |address| address.port()).into();
    if let Some(address) = options.healthz {
        configz["kubeletconfig"]["healthzBindAddress"] = address.ip().to_string().into();
    }
    let server_options = kubelet_server::Options {
        address,
        serving: Arc::clone(&access.serving),
        client_not_after: Arc::clone(&access.client_not_after),
        clients: Arc::clone(&access.clients),
        node_name: options.name.clone(),
        configz,
        flags: options.flags.clone(),
        other_metrics: Arc::new(move || network.render()),
        folders: kubelet_server::Folders {
            local_path: options.layout.local_path(),
            system_logs: "/var/log".into(),
        },
        open_files: open_files::limit(),
    };
    let (pods, runtime) = (Arc::<Kubelet>::clone(kubelet), Arc::clone(runtime));
    kubelet_server::bind(server_options, pods, runtime, access.kubelet.clone())
        .await
        .context("the kubelet's server cannot be set up")
}

fn kubelet_config(options: &NodeOptions) -> Config {
    let mut config = Config::new(&options.name, options.ip, &options.kubelet_dir);
    config.cluster_dns = vec![IpAddr::V4(options.cluster_dns)];
    config.cluster_domain.clone_from(&options.cluster_domain);
    config.resolv_conf.clone_from(&options.resolv_conf);
    config.cgroup_root.clone_from(&options.cgroup_root);
    config.pod_pids_limit = options.pod_max_pids;
    let Reservation { kube, system, enforce } = options.reservation;
    (config.kube_reserved, config.system_reserved) = (kube, system);
    config.enforce_node_allocatable = enforce;
    config.seccomp_default = options.seccomp_default;
    config.image_verification.clone_from(&options.image_verification);
    config.allowed_unsafe_sysctls.clone_from(&options.allowed_unsafe_sysctls);
    config
}

fn node_labels(options: &NodeOptions) -> BTreeMap<String, String> {
    let mut labels = options.labels.clone();
    if options.control_plane {
        labels.insert("node-role.kubernetes.io/control-plane".to_owned(), String::new());
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_node_is_ready_once_it_says_so_in_this_run() {
        let since: Timestamp = "2026-01-02T03:04:05.9Z".parse().unwrap();
        let ready = |conditions: Value| {
            let node = json!({"metadata": {}, "status": {"conditions": conditions}});
            ready_under(&serde_json::from_value(node).unwrap(), since)
        };
        let at = |type_: &str, status: &str, second: u32| {
            let heard = format!("2026-01-02T03:04:{second:02}Z");
            json!({"type": type_, "status": status, "lastHeartbeatTime": heard})
        };
        assert_eq!(ready(json!([])), None);
        assert_eq!(ready(json!([at("Ready", "False", 6)])), None);
        assert_eq!(ready(json!([at("Ready", "True", 4), at("DiskPressure", "True", 4)])), None);
        assert_eq!(ready(json!([at("Ready", "True", 5), at("DiskPressure", "False", 5)])), Some(Vec::new()));
        let short = json!([
            at("MemoryPressure", "True", 7),
            at("NetworkUnavailable", "True", 7),
            at("Ready", "True", 7)
        ]);
        assert_eq!(ready(short), Some(vec!["MemoryPressure".to_owned()]));
    }
}
