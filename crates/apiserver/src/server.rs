//! The server itself: what all requests share, how it starts, serves and stops.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use knarr_api::gates;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::zpages;
use knarr_client::{Client, Supervisor};
use knarr_storage::{RevisionWindow, Store};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{Admission, ChainError, ConfigurationError, read_configuration};
use crate::aggregator::{self, Aggregator};
use crate::audit::Auditor;
use crate::authn::chain::Chain;
use crate::authn::service_account::Tokens;
use crate::authn::{MASTERS, UserInfo};
use crate::authz::node::NodeAuthorizer;
use crate::authz::rbac::{Rbac, Sources};
use crate::authz::{self, Authorizer};
use crate::bootstrap;
use crate::cache::{Caches, LoadError};
use crate::cluster_ips;
use crate::config::{Config, ConfigError};
use crate::custom_resources::{self, CustomResources};
use crate::discovery::{Discovery, HealthPace, LogCheck};
use crate::encryption::{EncryptedStore, EncryptionConfig, KeyServices};
use crate::flowcontrol::{self, Fairness};
use crate::http::listener;
use crate::http::tls::{self, Tls};
use crate::in_process::InProcess;
use crate::metrics::{MeteredStore, Metric, Metrics};
use crate::proxy::Kubelets;
use crate::registry::event_leases::{self, EventLeases};
use crate::registry::served::{storage_name, stored_form};
use crate::registry::table::LiveTable;
use crate::reload::Reloaded;
use crate::resource_metrics::ResourceMetrics;
use crate::steps::{Step, Steps};
use crate::thread_safe::ThreadSafe;
use crate::webhook::Webhooks;

/// History is kept for between one and two of these.
const COMPACT_EVERY: Duration = Duration::from_secs(300);

/// A server that stops gives up its place among the others within this time, or its lease does it.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot load the watch cache")]
    Load(#[from] LoadError),
    #[error("cannot write the bootstrap objects: {0}")]
    Bootstrap(#[source] knarr_apimachinery::status::StatusError),
    #[error("admission: {0}")]
    Admission(#[from] ChainError),
    #[error("admission: {0}")]
    AdmissionConfiguration(#[from] ConfigurationError),
    #[error("the table of resources lacks {0}")]
    Missing(&'static str),
}

/// Metrics in the text format of Prometheus.
pub type MetricsSource = Box<dyn Fn() -> String + Send + Sync>;

/// What all requests share.
pub struct State {
    pub config: Config,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub caches: Arc<Caches>,
    /// What was before this revision has been forgotten by the store.
    pub compacted: AtomicU64,
    pub table: LiveTable,
    pub authorizer: Authorizer,
    pub tls: Reloaded<Tls>,
    pub authentication: Chain,
    pub tokens: Tokens,
    pub kubelets: Option<Reloaded<Kubelets>>,
    pub webhooks: Webhooks,
    pub discovery: Discovery,
    pub aggregator: Aggregator,
    pub resource_metrics: ResourceMetrics,
    pub metrics: Arc<Metrics>,
    /// What other components of the process have counted, by their name.
    pub other_metrics: Mutex<BTreeMap<&'static str, MetricsSource>>,
    /// Runs the server's own loops.
    pub supervisor: Supervisor,
    /// Run other components of the process.
    pub other_supervisors: Mutex<Vec<Supervisor>>,
    /// What has been done of the start.
    pub steps: Arc<Steps>,
    pub log_check: LogCheck,
    pub health_pace: HealthPace,
    /// The key services that the encryption of the store depends on, where their health is to be shown.
    pub key_services: Option<KeyServices>,
    pub admission: Admission,
    pub events: EventLeases,
    pub custom_resources: CustomResources,
    /// Whose turn it is; `None`: by the plain limits.
    pub fairness: Option<Arc<Fairness>>,
    /// Reading and writing requests under way, without priority and fairness.
    pub inflight: (Arc<Semaphore>, Arc<Semaphore>),
    pub audit: Arc<Auditor>,
    /// What `/flagz` and `/statusz` show.
    pub zpages: zpages::Component,
    /// Cancelled when the server is about to stop: it is not ready any more.
    pub leaving: CancellationToken,
    /// Cancelled when the server stops.
    pub stop: CancellationToken,
}

/// What every request and every loop of the server refers to.
pub type Inner = ThreadSafe<State>;

/// A running API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
    /// What is still to be done in the store after the stop.
    leaving: TaskTracker,
}

impl ApiServer {
    /// Loads the watch cache, writes what every cluster starts with, and is ready for requests.
    pub fn new(config: Config) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::started(config))
    }

    async fn started(mut config: Config) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let metrics = Arc::new(Metrics::default());
        config.features.notes().iter().for_each(|note| tracing::warn!("{note}"));
        config.features.show(&metrics);
        gates::GENERIC_WORKLOAD.set(config.features.is_on("GenericWorkload"));
        gates::COORDINATED_LEADER_ELECTION.set(config.features.is_on("CoordinatedLeaderElection"));
        gates::STORAGE_VERSION_API.set(config.features.is_on("StorageVersionAPI"));
        show_build(&config, &metrics);
        let (store, key_services) = encrypted(&config, &metrics)?;
        config.store = store;
        config.admission = read_configuration(std::mem::take(&mut config.admission))?;
        let names = config
            .resources
            .iter()
            .filter(|r| r.is_stored())
            .map(|r| stored_form(r, &config.resources))
            .map(|r| (storage_name(r), r.selectable));
        let (store, clock) = (Arc::clone(&config.store), Arc::clone(&config.clock));
        let supervisor = Supervisor::new(Arc::clone(&clock));
        let steps = Steps::of(&config);
        let caches =
            Caches::start(Arc::clone(&store), Arc::clone(&clock), names, &supervisor, stop.clone()).await?;
        steps.finish(&[
            "generic-apiserver-start-informers",
            "start-kube-aggregator-informers",
            "start-apiextensions-informers",
            "storage-object-count-tracker-hook",
        ]);
        let table = LiveTable::new(&config.resources, &caches);
        let cache = |name: &'static str| caches.get(name).ok_or(StartError::Missing(name));
        let authorizer = Authorizer {
            rbac: Rbac::new(Sources {
                roles: cache("rbac.authorization.k8s.io/roles")?,
                role_bindings: cache("rbac.authorization.k8s.io/rolebindings")?,
                cluster_roles: cache("rbac.authorization.k8s.io/clusterroles")?,
                cluster_role_bindings: cache("rbac.authorization.k8s.io/clusterrolebindings")?,
            }),
            node: NodeAuthorizer::new(Arc::clone(&caches), &config.features),
            steps: authz::config::steps(&config.authorization)?,
            metrics: Arc::clone(&metrics),
            clock: Arc::clone(&clock),
        };
        let (metered, ticking) = (Arc::clone(&metrics), Arc::clone(&clock));
        let audit = Auditor::new(&config.audit, metered, ticking, &supervisor, stop.clone())?;
        let fairness = config.priority_and_fairness.then(|| {
            let seats = config.max_requests_inflight + config.max_mutating_requests_inflight;
            let patience = (config.request_timeout / 4).min(Duration::from_secs(60));
            let (caches, clock) = (Arc::clone(&caches), Arc::clone(&clock));
            Arc::new(Fairness::new(seats as u64, patience, caches, clock, Arc::clone(&metrics)))
        });
        let inner = Arc::new(Inner::new(State {
            tls: tls::open(&config)?,
            authentication: Chain::new(&config.authentication)?,
            tokens: Tokens::new(&config)?,
            kubelets: Kubelets::open(&config)?,
            webhooks: Webhooks::new(Arc::clone(&clock)),
            discovery: Discovery::new(&config),
            aggregator: Aggregator::new(&config)?,
            resource_metrics: ResourceMetrics::default(),
            other_metrics: Mutex::default(),
            supervisor,
            other_supervisors: Mutex::default(),
            steps,
            log_check: LogCheck::default(),
            health_pace: HealthPace::default(),
            key_services,
            metrics,
            admission: Admission::new(&config.admission)?,
            events: EventLeases::default(),
            custom_resources: CustomResources::default(),
            fairness: fairness.clone(),
            inflight: (
                Arc::new(Semaphore::new(config.max_requests_inflight)),
                Arc::new(Semaphore::new(config.max_mutating_requests_inflight)),
            ),
            audit: Arc::new(audit),
            zpages: zpages::Component::new(
                "apiserver",
                &config.version.git_version,
                config.flags.clone(),
                Arc::clone(&clock),
            ),
            leaving: CancellationToken::new(),
            store,
            clock,
            caches,
            compacted: AtomicU64::new(0),
            table,
            authorizer,
            stop,
            config,
        }));
        // All of these are parts of the state that was just made.
        inner.steps.finish(&[
            "start-apiserver-admission-initializer",
            "start-encryption-provider-config-automatic-reload",
            "aggregator-reload-proxy-client-cert",
            "max-in-flight-filter",
        ]);
        bootstrap::run(&inner).await.map_err(StartError::Bootstrap)?;
        custom_resources::start(&inner).await;
        inner.steps.finish(&["start-apiextensions-controllers"]);
        supervise(&inner, "custom-resources", custom_resources::run);
        let place = bootstrap::join(&inner).await.map_err(StartError::Bootstrap)?;
        inner.steps.finish(&["bootstrap-controller"]);
        // Roles and all else that was just written hold from the first request on.
        if let Ok(revision) = inner.store.current_revision().await {
            inner.caches.wait_for(revision).await;
        }
        inner.steps.finish(&["storage-readiness", "crd-informer-synced"]);
        let leaving = TaskTracker::new();
        if let Some(place) = place {
            leaving.spawn(bootstrap::endpoints::keep(&inner, place));
        }
        leaving.close();
        if let Some(fairness) = fairness {
            let shared = Arc::clone(&fairness);
            supervise(&inner, "priority-and-fairness-seats", move |_, stop| {
                flowcontrol::rebalance(Arc::clone(&shared), stop)
            });
            supervise(&inner, "priority-and-fairness-status", move |server, _| {
                flowcontrol::maintain_status(server, Arc::clone(&fairness))
            });
            inner.steps.finish(&["priority-and-fairness-config-consumer", "priority-and-fairness-filter"]);
        }
        supervise(&inner, "lease-expiry", |server, _| event_leases::expire(server));
        supervise(&inner, "store-compaction", |server, _| compact(server));
        supervise(&inner, "apiservice-availability", aggregator::run);
        supervise(&inner, "apiservice-registration", |server, _| aggregator::follow_custom(server));
        supervise(&inner, "repair-cluster-ips", cluster_ips::run);
        Ok(Self { inner, leaving })
    }

    /// Answers HTTPS (HTTP/1.1 and HTTP/2) on a listening socket until [`ApiServer::stop`]; then finishes the requests
    /// under way, for a while.
    pub fn serve(&self, listener: TcpListener) -> BoxFuture<'_, Result<(), ConfigError>> {
        Box::pin(self.answer(listener))
    }

    async fn answer(&self, listener: TcpListener) -> Result<(), ConfigError> {
        listener::serve(Arc::clone(&self.inner), listener).await;
        tokio::select! {
            () = self.leaving.wait() => {}
            () = self.inner.clock.sleep(LEAVE_WITHIN) => {}
        }
        Ok(())
    }

    /// A way in for a component of the same process, with this identity: authorized and admitted like any other.
    pub fn transport(&self, user: UserInfo) -> Arc<dyn knarr_client::Transport> {
        Arc::new(InProcess::new(Arc::clone(&self.inner), user))
    }

    /// Shows the metrics of a component of the same process at `/metrics`, too. A later source of the name replaces this.
    pub fn show_metrics(&self, of: &'static str, source: impl Fn() -> String + Send + Sync + 'static) {
        let mut sources = self.inner.other_metrics.lock().unwrap_or_else(PoisonError::into_inner);
        sources.insert(of, Box::new(source));
    }

    /// Shows the tasks of other components of the same process among the checks of `/readyz`. They do not count: a server
    /// answers as well without them.
    pub fn show_tasks(&self, of: &Supervisor) {
        self.inner.other_supervisors.lock().unwrap_or_else(PoisonError::into_inner).push(of.clone());
    }

    /// A step of the start that is not done yet and that the caller does: one of those named in [`crate::steps`].
    pub fn step(&self, name: &'static str) -> Step {
        self.inner.steps.expect(name)
    }

    /// Ends watches, the cache feed and `serve`. The store is left open.
    pub fn stop(&self) {
        self.inner.leaving.cancel();
        self.inner.stop.cancel();
    }

    /// As `stop`, in upstream's order: first the server says that it is not ready, and goes on for a while so that
    /// nobody is sent to it any more.
    pub async fn shut_down(&self) {
        self.inner.leaving.cancel();
        if !self.inner.config.shutdown_delay.is_zero() {
            self.inner.clock.sleep(self.inner.config.shutdown_delay).await;
        }
        self.stop();
    }

    /// Families of metrics in which nothing was ever recorded.
    pub fn unused_metrics(&self) -> Vec<&'static str> {
        self.inner.metrics.untouched()
    }

    /// Whether [`ApiServer::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.inner.stop.is_cancelled()
    }
}

/// Runs a loop of the server until its stop, and again whenever it fails.
fn supervise<F, Fut>(server: &Arc<Inner>, name: &'static str, run: F)
where
    F: Fn(Arc<Inner>, CancellationToken) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let own = Arc::clone(server);
    server.supervisor.spawn(name, server.stop.clone(), move |stop| run(Arc::clone(&own), stop));
}

/// The server's own way in, for its loops.
pub fn own_client(server: &Arc<Inner>) -> Client {
    let user = UserInfo::new("system:apiserver", &[MASTERS]);
    let transport = Arc::new(InProcess::new(Arc::clone(server), user));
    Client::new(transport, Arc::clone(&server.clock), "kube-apiserver").supervised_by(&server.supervisor)
}

fn show_build(config: &Config, metrics: &Metrics) {
    let version = &config.version;
    let mut numbers = version.git_version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    let labels = [
        version.build_date.as_str(),
        "rustc",
        &version.git_commit,
        "clean",
        &version.git_version,
        "none",
        major,
        minor,
        &platform,
    ];
    metrics.set(Metric::BuildInfo, &labels, 1.0);
}

/// The store, measured, and with encryption before it where that is asked for; with what that depends on.
fn encrypted(
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<(Arc<dyn Store>, Option<KeyServices>), ConfigError> {
    let store: Arc<dyn Store> = Arc::new(MeteredStore::new(
        Arc::clone(&config.store),
        Arc::clone(metrics),
        Arc::clone(&config.clock),
    ));
    let Some(file) = &config.encryption.config_file else { return Ok((store, None)) };
    let unusable = |why: String| ConfigError::Unusable { what: "the encryption configuration", why };
    let parse =
        |texts: &[Vec<u8>]| EncryptionConfig::parse(texts.first().map(Vec::as_slice).unwrap_or_default());
    let rules = Reloaded::open(vec![file.clone()], parse).map_err(unusable)?;
    let reload = config.encryption.reload;
    let rules = if reload { rules } else { rules.frozen() };
    let store = EncryptedStore::new(store, rules, Arc::clone(&config.clock), Arc::clone(metrics));
    let services = store.key_services(reload);
    Ok((Arc::new(store), services))
}

/// Lets the store forget old history, until the server stops.
async fn compact(server: Arc<Inner>) {
    let mut window = RevisionWindow::default();
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            () = server.clock.sleep(COMPACT_EVERY) => {}
        }
        let done = match server.store.current_revision().await {
            Ok(revision) => match window.tick(revision) {
                Some(old) => {
                    let done = server.store.compact(old).await;
                    done.map(|()| server.compacted.store(old, Ordering::Release))
                }
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        match done {
            Err(knarr_storage::Error::Closed) => return,
            Err(error) => tracing::warn!(%error, "cannot compact the store"),
            Ok(()) => {}
        }
    }
}
