//! `knarr server`: a whole cluster in one process: control plane and node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures_util::future::join_all;
use knarr_api::resource::Resource;
use knarr_api::{gates, resources};
use knarr_apimachinery::clock::Clock;
use knarr_apiserver::steps::LEADER_ELECTION;
use knarr_apiserver::{AdmissionConfig, ApiServer, Features, TolerationSeconds};
use knarr_client::Supervisor;
use knarr_client::clock::SystemClock;
use knarr_client::events::EventRecorder;
use knarr_kubelet::server::{ClientAuthorities, ServingCertificate};
use knarr_scheduler::config::Configuration;
use knarr_storage::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api_flags::{
    API_SERVER_IDENTITY, ApiArgs, COORDINATED_LEADER_ELECTION, GENERIC_WORKLOAD, STORAGE_VERSION_API,
};
use crate::backup::schedule::{ScheduleArgs, Scheduled};
use crate::certificates::authorities::plan::Rotation;
use crate::certificates::authorities::{self, served};
use crate::cidrs::parse_cidr;
use crate::control_plane::IdentitySteps;
use crate::controller_flags::ControllerArgs;
use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::node::{NodeAccess, NodeOptions};
use crate::pki::{Credentials, Pki, Subject};
use crate::progress::Progress;
use crate::renewal::Renewal;
use crate::scrub::Scrub;
use crate::shown_flags::ShownFlags;
use crate::store::StoreArgs;
use crate::{addons, backup, control_plane, kubeconfig, leading, node, preflight, scheduler, signals};

/// For how long the process waits at its end for what cannot be stopped.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr server\n  knarr server --data-dir /srv/knarr --port 7443\n  \
    knarr server --disable-node\n  \
    knarr server --disable-scheduler --disable-controller-manager\n  \
    knarr server --etcd-servers http://10.0.0.5:2379,http://10.0.0.6:2379")]
pub struct ServerArgs {
    /// Where the cluster lives
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address that the API server listens on
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    bind_address: IpAddr,
    /// Port of the API server
    #[arg(long, default_value_t = 6443)]
    port: u16,
    /// Further host names and addresses for the API server's certificate
    #[arg(long, value_name = "NAME")]
    tls_san: Vec<String>,
    /// Addresses of pods, all nodes together
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    cluster_cidr: String,
    /// Prefix length of one node's part of them
    #[arg(long, default_value_t = 24, value_name = "BITS")]
    node_cidr_mask_size: u8,
    /// Addresses of services
    #[arg(long, default_value = "10.43.0.0/16", value_name = "CIDR")]
    service_cidr: String,
    /// Domain of the cluster DNS
    #[arg(long, default_value = "cluster.local", value_name = "NAME")]
    cluster_domain: String,
    /// API versions to serve or not, such as scheduling.k8s.io/v1beta1=true or api/beta=true
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    runtime_config: Vec<String>,
    /// Run the control plane alone, without a node on this machine
    #[arg(long)]
    disable_node: bool,
    /// Leave scheduling to another scheduler, such as upstream's own
    #[arg(long)]
    disable_scheduler: bool,
    /// Leave the controllers to another controller manager, such as upstream's own
    #[arg(long)]
    disable_controller_manager: bool,
    /// Admission plugins to run beside those that run by default
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins not to run though they run by default
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// AdmissionConfiguration: the settings of admission plugins
    #[arg(long, value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
    /// How long pods that say nothing tolerate a node that is not ready
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    default_not_ready_toleration_seconds: i64,
    /// How long pods that say nothing tolerate a node that is out of reach
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    default_unreachable_toleration_seconds: i64,
    /// File with a KubeSchedulerConfiguration: profiles, plugins and their arguments
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    node: node::NodeArgs,
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    controllers: ControllerArgs,
    #[command(flatten)]
    backups: ScheduleArgs,
}

pub fn run(args: ServerArgs) -> Result<()> {
    let runtime = crate::memory::runtime()?;
    let ended = runtime.block_on(run_async(args));
    // What hangs in a system call (a backup to a file system that is gone) does not keep the process.
    runtime.shutdown_timeout(LEFT_BEHIND);
    ended
}

async fn run_async(args: ServerArgs) -> Result<()> {
    if !args.disable_node {
        preflight::node()?;
    }
    let progress = Progress::start();
    let stop = CancellationToken::new();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let layout = Layout::create(&args.data_dir)?;
    let options = options(&args, &clock)?;
    check_features(&args.api.features()?, &resources::enabled(&options.runtime_config))?;
    let source = backup::Source {
        layout: layout.clone(),
        node: options.node_name.clone(),
        shared_store: options.shared_store,
        encryption_config: args.api.encryption_config().map(ToOwned::to_owned),
    };
    let scheduled = args.backups.scheduled(source.clone())?;
    let listener = preflight::listen(SocketAddr::new(args.bind_address, args.port), "--port")?;

    let authorities::Opened { pki, rotation, lock } = progress
        .step("certificates", async {
            let (folder, clock) = (layout.pki(), Arc::clone(&clock));
            let opened = tokio::task::spawn_blocking(move || authorities::open(&folder, clock)).await??;
            Ok((opened, String::new()))
        })
        .await?;
    let pki = Arc::new(pki);
    let store = progress
        .step("store", async {
            let store = args.store.open(&layout, &pki).await?;
            // A restore that began after the folder was looked at sees that it is in use, or is seen here.
            layout.check_whole()?;
            let revision = store.current_revision().await?;
            Ok((store, format!("revision {revision}")))
        })
        .await?;
    let url = format!(
        "https://{}:{}",
        if args.bind_address.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { args.bind_address },
        args.port
    );
    let server = progress
        .step("API server", async {
            let server =
                control_plane::api_server(Arc::clone(&store), Arc::clone(&clock), &pki, &options, &args.api)
                    .await?;
            kubeconfig::write_admin(&layout, &pki, &url)?;
            Ok((server, url.clone()))
        })
        .await?;
    let listener = tokio::net::TcpListener::from_std(listener).context("cannot use the listening socket")?;
    // Whoever asks for the server's health is to know of them from the first answer on.
    let shows = args.api.features()?.is_on(API_SERVER_IDENTITY);
    let steps = shows.then(|| IdentitySteps::of(&server));
    let mut serving = tokio::spawn({
        let server = server.clone();
        async move { server.serve(listener).await }
    });
    let backups = Backups { source: &source, server: &server, store: &store, clock: &clock };
    let admin = backups.start(scheduled, &options.supervisor, &stop)?;
    if !options.shared_store {
        start_scrub(&server, &store, &options, &clock, &stop);
    }
    let components = start_components(&args, &server, &clock, &pki, &options, &stop);
    let access = (!args.disable_node).then(|| node_access(&server, &clock, &pki, &options)).transpose()?;
    // All of this start is read and written. Authorities may be replaced from here on.
    drop(lock);
    if let Some(rotation) = rotation {
        follow_rotation(rotation, &server, &clock, &pki, &options, &stop);
    }
    let identity = steps.map(|steps| {
        let client = control_plane::own_client(&server, &clock, &options.supervisor);
        let of = options.clone();
        let identity = move |stop| control_plane::identity(client.clone(), &of, steps.clone(), stop);
        options.supervisor.spawn("apiserver-identity", stop.clone(), identity)
    });
    progress
        .step("scheduler, controllers", async {
            let client = control_plane::client(&server, &clock, control_plane::ADDONS, &[], "knarr");
            addons::ensure_dns_service(&client, options.service_ip(10)).await?;
            addons::ensure_storage_class(&client).await?;
            Ok(((), String::new()))
        })
        .await?;
    let mut renewal = Renewal {
        server: server.clone(),
        pki: Arc::clone(&pki),
        options: options.clone(),
        layout: layout.clone(),
        url: url.clone(),
        kubelet: None,
        external: [args.api.certificate_files(), args.store.certificate_files()].concat(),
    };
    let node = match access {
        None => None,
        Some(access) => {
            renewal.kubelet = Some(Arc::clone(&access.serving));
            Some(node::start(node_options(&args, &options, &layout)?, access, &progress, stop.clone()).await?)
        }
    };
    let renewal = Arc::new(renewal);
    options.supervisor.spawn("certificate-renewal", stop.clone(), {
        let clock = Arc::clone(&clock);
        move |stop| {
            let (renewal, clock) = (Arc::clone(&renewal), Arc::clone(&clock));
            async move { renewal.run(&clock, stop).await }
        }
    });
    progress.ready(&[
        format!("kubeconfig  {}", layout.admin_kubeconfig().display()),
        format!("try         kubectl --kubeconfig {} get nodes -o wide", layout.admin_kubeconfig().display()),
    ]);

    tokio::select! {
        () = signals::wait_for_stop() => {}
        // Without its listener the server is of no use, and a new process gets one.
        ended = &mut serving => {
            ended.context("the API server ended unexpectedly")?.context("the API server could not serve")?;
            bail!("the API server does not listen any more");
        }
        // Nor without its store, which a new process opens again: everything acknowledged is on the disk.
        () = store.closed() => bail!("the store ended unexpectedly"),
    }
    println!("\nStopping; containers go on and are taken up again at the next start");
    stop.cancel();
    if let Some(node) = node {
        node.stopped().await;
    }
    // Through this server they give up their leases, so that another one's need not wait.
    tokio::select! {
        _ = join_all(components) => {}
        () = clock.sleep(LEFT_BEHIND) => tracing::warn!("scheduler and controllers do not end"),
    }
    let identity = match identity {
        Some(identity) => identity.await.context("the API server's lease is not kept any more"),
        None => Ok(()),
    };
    let admin = admin.await.context("the administrator's socket ended unexpectedly");
    server.shut_down().await;
    let served = serving.await.context("the API server ended unexpectedly");
    // Whatever went wrong before, the store is closed.
    let closed = store.close().await.context("the store was not closed cleanly");
    identity.and(admin)?;
    served?.context("the API server could not serve")?;
    closed
}

/// What backups are taken from.
struct Backups<'a> {
    source: &'a backup::Source,
    server: &'a ApiServer,
    store: &'a Arc<dyn Store>,
    clock: &'a Arc<dyn Clock>,
}

impl Backups<'_> {
    /// Starts what gives out and takes backups; the task ends some time after `stop`.
    fn start(
        &self,
        scheduled: Option<Scheduled>,
        supervisor: &Supervisor,
        stop: &CancellationToken,
    ) -> Result<JoinHandle<()>> {
        let socket = backup::AdminSocket::bind(&self.source.layout)?;
        let (store, clock) = (Arc::clone(self.store), Arc::clone(self.clock));
        if let Some(scheduled) = scheduled {
            self.server.show_metrics("backups", scheduled.metrics());
            let scheduled = Arc::new(scheduled);
            let client = control_plane::own_client(self.server, &clock, supervisor);
            let node = self.source.node.clone();
            supervisor.spawn("scheduled-backups", stop.clone(), {
                let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
                move |stop| {
                    let events = EventRecorder::new(client.clone(), "knarr", &node, stop.clone());
                    Arc::clone(&scheduled).run(Arc::clone(&store), events, Arc::clone(&clock), stop)
                }
            });
        }
        let socket = Arc::new(socket);
        let source = self.source.clone();
        Ok(supervisor.spawn("admin-socket", stop.clone(), move |stop| {
            Arc::clone(&socket).serve(Arc::clone(&store), source.clone(), Arc::clone(&clock), stop)
        }))
    }
}

/// Starts what looks for damage in the file of the store.
fn start_scrub(
    server: &ApiServer,
    store: &Arc<dyn Store>,
    options: &control_plane::Options,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
) {
    let scrub = Scrub::default();
    server.show_metrics("scrub", scrub.metrics());
    let client = control_plane::own_client(server, clock, &options.supervisor);
    let (node, store, clock) = (options.node_name.clone(), Arc::clone(store), Arc::clone(clock));
    options.supervisor.spawn("store-scrub", stop.clone(), move |stop| {
        let events = EventRecorder::new(client.clone(), "knarr", &node, stop.clone());
        scrub.clone().run(Arc::clone(&store), node.clone(), events, Arc::clone(&clock), stop)
    });
}

/// Starts what records that the authorities of the phase, in which the server has started, are published.
fn follow_rotation(
    rotation: Rotation,
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Arc<Pki>,
    options: &control_plane::Options,
    stop: &CancellationToken,
) {
    let client = control_plane::own_client(server, clock, &options.supervisor);
    let (pki, clock) = (Arc::clone(pki), Arc::clone(clock));
    let followed = options.supervisor.run_until_done("rotation-of-authorities", stop.clone(), move |stop| {
        let (client, rotation) = (client.clone(), rotation.clone());
        let (pki, clock) = (Arc::clone(&pki), Arc::clone(&clock));
        async move { served::follow(&client, pki.ca_pem(), pki.folder(), &rotation, &*clock, stop).await }
    });
    tokio::spawn(followed);
}

/// Starts what works on the cluster in the background, as far as it is not left to others. The tasks end after `stop`.
fn start_components(
    args: &ServerArgs,
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Arc<Pki>,
    options: &control_plane::Options,
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let identity = leading::identity(&options.node_name);
    let supervisor = &options.supervisor;
    let mut tasks = Vec::new();
    if gates::COORDINATED_LEADER_ELECTION.is_on() {
        let client = control_plane::own_client(server, clock, supervisor);
        let (step, identity) = (server.step(LEADER_ELECTION), identity.clone());
        let elections = move |stop| {
            step.finish();
            control_plane::elections(client.clone(), &identity, stop)
        };
        tasks.push(supervisor.spawn("lease-elections", stop.clone(), elections));
    }
    if !args.disable_scheduler {
        let scheduler = control_plane::scheduler(server, clock, options, &identity, stop.clone());
        tasks.push(tokio::spawn(scheduler));
    }
    if !args.disable_controller_manager {
        let controllers = control_plane::controllers(server, clock, pki, options, &identity, stop.clone());
        tasks.push(tokio::spawn(controllers));
    }
    tasks
}

fn options(args: &ServerArgs, clock: &Arc<dyn Clock>) -> Result<control_plane::Options> {
    let node_name = args.node.name()?;
    let node_ip = args.node.ip()?;
    Ok(control_plane::Options {
        health: Arc::default(),
        supervisor: Supervisor::new(Arc::clone(clock)),
        admission: AdmissionConfig {
            enabled: args.enable_admission_plugins.clone(),
            disabled: args.disable_admission_plugins.clone(),
            toleration_seconds: TolerationSeconds {
                not_ready: args.default_not_ready_toleration_seconds,
                unreachable: args.default_unreachable_toleration_seconds,
            },
            control_config_file: args.admission_control_config_file.clone(),
            control_plane_node: (!args.disable_node).then(|| node_name.clone()),
            ..AdmissionConfig::default()
        },
        node_name,
        node_ip,
        port: args.port,
        service_cidr: parse_cidr("--service-cidr", &args.service_cidr, 28)?,
        cluster_cidr: {
            parse_cidr("--cluster-cidr", &args.cluster_cidr, args.node_cidr_mask_size)?;
            args.cluster_cidr.clone()
        },
        node_cidr_mask_size: args.node_cidr_mask_size,
        cluster_domain: args.cluster_domain.clone(),
        tls_san: args.tls_san.clone(),
        runtime_config: runtime_config(args),
        shared_store: args.store.shared(),
        scheduler: scheduler_config(args)?,
        controllers: args.controllers.settings()?,
    })
}

/// Features that need resources which are served on request: these, and where they are.
const NEEDED: [(&str, &str, &str); 3] = [
    (GENERIC_WORKLOAD, "podgroups", "scheduling.k8s.io/v1beta1"),
    (COORDINATED_LEADER_ELECTION, "leasecandidates", "coordination.k8s.io/v1beta1"),
    (STORAGE_VERSION_API, "storageversions", "internal.apiserver.k8s.io/v1alpha1"),
];

fn check_features(features: &Features, served: &[&Resource]) -> Result<()> {
    for (feature, plural, version) in NEEDED {
        if features.is_on(feature) && !served.iter().any(|r| r.types.plural == plural) {
            bail!("--feature-gates: {feature} needs --runtime-config {version}=true");
        }
    }
    Ok(())
}

/// What the scheduler is told: its file, and the features that are its business.
fn scheduler_config(args: &ServerArgs) -> Result<Configuration> {
    Ok(Configuration {
        generic_workload: args.api.features()?.is_on(GENERIC_WORKLOAD),
        ..scheduler::configuration("--scheduler-config", args.scheduler_config.as_deref())?
    })
}

fn runtime_config(args: &ServerArgs) -> BTreeMap<String, String> {
    let pairs = args.runtime_config.iter().map(|pair| pair.split_once('=').unwrap_or((pair, "true")));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn node_options(args: &ServerArgs, options: &control_plane::Options, layout: &Layout) -> Result<NodeOptions> {
    Ok(NodeOptions {
        name: options.node_name.clone(),
        ip: options.node_ip,
        layout: layout.clone(),
        kubelet_dir: args.node.kubelet_dir(layout)?,
        cgroup_root: args.node.cgroup_root(),
        cluster_cidr: options.cluster_cidr.clone(),
        service_cidr: options.service_cidr,
        cluster_dns: options.service_ip(10),
        cluster_domain: options.cluster_domain.clone(),
        control_plane: true,
        labels: args.node.labels()?,
        resolv_conf: args.node.resolv_conf(),
        kubelet_port: args.node.kubelet_port(),
        healthz: args.node.healthz(),
        api_port: Some(options.port),
        thresholds: args.node.thresholds(),
        pod_max_pids: args.node.pod_max_pids(),
        reservation: args.node.reservation(true),
        allowed_unsafe_sysctls: args.node.allowed_unsafe_sysctls(),
        seccomp_default: args.node.seccomp_default(),
        image_verification: args.node.image_verification()?,
        mirrors: args.node.mirrors(),
        runtime: args.node.runtime(),
        network: args.node.network(),
        flags: ShownFlags::of_process().of::<node::NodeArgs>(),
    })
}

/// What the kubelet of this process shows.
pub fn node_serving(pki: &Pki, options: &control_plane::Options) -> Result<Credentials> {
    let name = &options.node_name;
    pki.kubelet_serving()?.credentials(
        "kubelet",
        &Subject {
            common_name: &format!("system:node:{name}"),
            organizations: &["system:nodes"],
            names: std::slice::from_ref(name),
            addresses: &[options.node_ip],
            server: true,
            client: false,
        },
    )
}

/// The node of this process uses the API server directly, under the node's own identities.
fn node_access(
    server: &knarr_apiserver::ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Pki,
    options: &control_plane::Options,
) -> Result<NodeAccess> {
    let name = &options.node_name;
    let node_user = format!("system:node:{name}");
    let serving = node_serving(pki, options)?;
    let serving = ServingCertificate::new(&serving.certificate, &serving.key)
        .context("the kubelet's certificate cannot be used")?;
    // One of the node's own: what fails in the scheduler or a controller is not the kubelet's health.
    let supervisor = Supervisor::new(Arc::clone(clock));
    server.show_tasks(&supervisor);
    let client = |user: &str, groups: &[&str], manager: &str| {
        control_plane::client(server, clock, user, groups, manager).supervised_by(&supervisor)
    };
    Ok(NodeAccess {
        kubelet: client(&node_user, &["system:nodes"], "kubelet"),
        network: client("system:kube-proxy", &[], "kube-proxy"),
        serving,
        // It speaks to the API server inside the process.
        client_not_after: Arc::new(|| None),
        clients: ClientAuthorities::new(pki.ca_pem()).context("the cluster's authorities cannot be used")?,
        supervisor,
    })
}
