//! `knarr server`: runs a whole cluster in one process: control plane and node.

mod start;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_api::resource::Resource;
use knarr_api::resources;
use knarr_apimachinery::clock::Clock;
use knarr_apiserver::{AdmissionConfig, Features, TolerationSeconds};
use knarr_client::Supervisor;
use knarr_client::clock::SystemClock;
use knarr_scheduler::config::Configuration;
use knarr_storage::Store;
use tokio_util::sync::CancellationToken;

use crate::api_flags::{ApiArgs, COORDINATED_LEADER_ELECTION, GENERIC_WORKLOAD, STORAGE_VERSION_API};
use crate::backup::schedule::ScheduleArgs;
use crate::certificates::authorities;
use crate::cidrs::parse_cidr;
use crate::controller_flags::ControllerArgs;
use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::{backup, control_plane, node, preflight, scheduler, signals};
use start::Ground;

/// How long the process waits at its end for tasks that cannot be stopped.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr server\n  knarr server --data-dir /srv/knarr --port 7443\n  \
    knarr server --disable-node\n  \
    knarr server --disable-scheduler --disable-controller-manager\n  \
    knarr server --etcd-servers http://10.0.0.5:2379,http://10.0.0.6:2379")]
pub struct ServerArgs {
    /// Data folder of the cluster
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address that the API server listens on
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    bind_address: IpAddr,
    /// Port of the API server
    #[arg(long, default_value_t = 6443)]
    port: u16,
    /// Additional host names and addresses of the API server's certificate
    #[arg(long, value_name = "NAME")]
    tls_san: Vec<String>,
    /// Address range of pods, for all nodes together
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    cluster_cidr: String,
    /// Prefix length of one node's part of that range
    #[arg(long, default_value_t = 24, value_name = "BITS")]
    node_cidr_mask_size: u8,
    /// Address range of Services
    #[arg(long, default_value = "10.43.0.0/16", value_name = "CIDR")]
    service_cidr: String,
    /// Domain of the cluster DNS
    #[arg(long, default_value = "cluster.local", value_name = "NAME")]
    cluster_domain: String,
    /// API versions to enable or disable, such as scheduling.k8s.io/v1beta1=true or api/beta=true
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    runtime_config: Vec<String>,
    /// Run only the control plane, without a node on this machine
    #[arg(long)]
    disable_node: bool,
    /// Do not run the scheduler, because another one, such as upstream's, is used
    #[arg(long)]
    disable_scheduler: bool,
    /// Do not run the controllers, because another controller manager, such as upstream's, is used
    #[arg(long)]
    disable_controller_manager: bool,
    /// Admission plugins to enable besides the default ones
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Default admission plugins to disable
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// AdmissionConfiguration with the settings of admission plugins
    #[arg(long, value_name = "FILE")]
    admission_control_config_file: Option<PathBuf>,
    /// How long pods tolerate a node that is not ready, by default
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    default_not_ready_toleration_seconds: i64,
    /// How long pods tolerate an unreachable node, by default
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
    // A task that hangs in a system call (such as a backup to a lost file system) does not block the exit.
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
            // A restore that began after the folder was checked fails because the store is in use, or its
            // mark is found here.
            layout.check_whole()?;
            let revision = store.current_revision().await?;
            Ok((store, format!("revision {revision}")))
        })
        .await?;
    let ground = Ground {
        args: &args,
        options: &options,
        layout: &layout,
        clock: &clock,
        pki: &pki,
        store: &store,
        progress: &progress,
        stop: &stop,
    };
    let start = ground.start(source, scheduled, listener, rotation, lock);
    let mut running = unless_closed(&*store, start).await?;
    progress.ready(&[
        format!("kubeconfig  {}", layout.admin_kubeconfig().display()),
        format!("try         kubectl --kubeconfig {} get nodes -o wide", layout.admin_kubeconfig().display()),
    ]);

    tokio::select! {
        () = signals::wait_for_stop() => {}
        // Without its listener the server is of no use; the process that the service manager starts next gets
        // a new one.
        ended = &mut running.serving => {
            ended.context("the API server ended unexpectedly")?.context("the API server could not serve")?;
            bail!("the API server no longer listens");
        }
        () = store.closed() => bail!(STORE_ENDED),
    }
    println!("\nStopping; containers keep running, and the next start takes them over");
    stop.cancel();
    running.stopped(&store, &*clock).await
}

/// The error of a server whose store has ended: the next process opens it again, and everything acknowledged
/// is on disk.
const STORE_ENDED: &str = "the store ended unexpectedly";

/// Runs `work` while the store is open; otherwise the start would wait forever for the cluster.
async fn unless_closed<T>(store: &dyn Store, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        () = store.closed() => bail!(STORE_ENDED),
    }
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

/// Features that need resources which are served on request only: feature, resource and API version.
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

/// Returns the configuration of the scheduler: its file, and the feature gates that it reads.
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

#[cfg(test)]
mod tests {
    use knarr_storage::{Embedded, Options};

    use super::*;

    #[tokio::test]
    async fn nothing_waits_for_a_store_that_has_ended() {
        let store = Embedded::memory(Options::default());
        assert_eq!(unless_closed(&store, async { Ok(7) }).await.unwrap(), 7);
        let waits = unless_closed(&store, std::future::pending::<Result<()>>());
        let (ended, closed) = tokio::join!(waits, store.close());
        closed.unwrap();
        assert_eq!(ended.unwrap_err().to_string(), STORE_ENDED);
    }
}
