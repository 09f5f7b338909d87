//! The server: the state that all requests share, and how it starts, serves and stops.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use knarr_api::gates;
use knarr_apimachinery::zpages;
use knarr_client::Supervisor;
use knarr_storage::{RevisionWindow, Store};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::aggregator::{self, Aggregator};
use crate::audit::Auditor;
use crate::bootstrap;
use crate::cluster_ips;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::flowcontrol::{self, Fairness};
use crate::health::{Health, LogCheck, Pace};
use crate::in_process::{InProcess, own_client};
use crate::listener;
use crate::proxy::{Dialer, Kubelets, Proxy};
use crate::resource_metrics::ResourceMetrics;
use crate::state::State;
use crate::steps::{Step, Steps};
use crate::tls;
use knarr_admission::{Chain as Admission, ChainError, ConfigurationError, read_configuration};
use knarr_auth::authn::UserInfo;
use knarr_auth::authn::chain::Chain as Authentication;
use knarr_auth::authn::service_account::Tokens;
use knarr_auth::authz::node::NodeAuthorizer;
use knarr_auth::authz::rbac::{Rbac, Sources};
use knarr_auth::authz::{self, Authorizer};
use knarr_outgoing::webhook::Webhooks;
use knarr_registry::cache::{Caches, LoadError};
use knarr_registry::custom_resources::{self, CustomResources};
use knarr_registry::encryption::{EncryptedStore, EncryptionConfig, KeyServices};
use knarr_registry::event_leases::EventLeases;
use knarr_registry::served::{storage_name, stored_form};
use knarr_registry::table::LiveTable;
use knarr_registry::{MeteredStore, Registry, Settings};
use knarr_reload::Reloaded;
use knarr_wire::keypair::ConfigError;
use knarr_wire::metrics::{Metric, Metrics};

/// The store keeps the history of between one and two of these intervals.
const COMPACT_EVERY: Duration = Duration::from_secs(300);

/// How long a stopping server tries to remove its endpoint; otherwise its lease expires.
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

/// A running API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<State>,
    /// Work that remains in the store after the stop.
    leaving: TaskTracker,
}

impl ApiServer {
    /// Loads the watch cache and writes the bootstrap objects; the server is then ready for requests.
    pub fn new(config: Config) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::started(config))
    }

    async fn started(mut config: Config) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let metrics = Arc::new(Metrics::default());
        config.features.notes().iter().for_each(|note| tracing::warn!("{note}"));
        for (name, stage, on) in config.features.all() {
            metrics.set(Metric::FeatureEnabled, &[name, stage], f64::from(u8::from(on)));
        }
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
        let authorizer = Arc::new(authorizer(&config, &caches, &metrics)?);
        let admission = Arc::new(Admission::new(
            config.admission.clone(),
            config.features.clone(),
            Arc::clone(&authorizer),
        )?);
        let registry = Arc::new(Registry {
            table: LiveTable::new(&config.resources, &caches),
            clock: Arc::clone(&clock),
            caches,
            metrics: Arc::clone(&metrics),
            settings: Settings { service_cidr: config.service_cidr, node_ports: config.node_ports.clone() },
            compacted: AtomicU64::new(0),
            events: EventLeases::new(Arc::clone(&store), Arc::clone(&clock), config.event_ttl),
            store,
            webhooks: Webhooks::new(Arc::clone(&clock)),
            admission: Arc::clone(&admission) as Arc<dyn knarr_registry::Admission>,
            permissions: Arc::clone(&authorizer) as Arc<dyn knarr_registry::Permissions>,
            stop: stop.clone(),
        });
        let (metered, ticking) = (Arc::clone(&metrics), Arc::clone(&clock));
        let audit = Arc::new(Auditor::new(&config.audit, metered, ticking, &supervisor, stop.clone())?);
        let fairness = fairness(&config, &registry);
        let proxy = Arc::new(Proxy {
            registry: Arc::clone(&registry),
            authorizer: Arc::clone(&authorizer),
            dialer: Arc::new(Dialer { clock: Arc::clone(&clock), kubelets: Kubelets::open(&config)? }),
            to_own_machine: config.proxies_to_own_machine,
            upgrades_need_create: config.features.is_on("AuthorizePodWebsocketUpgradeCreatePermission"),
        });
        let aggregator = Arc::new(Aggregator::new(
            &config,
            Arc::clone(&registry),
            Arc::clone(&proxy),
            Arc::clone(&steps),
        )?);
        let inner = Arc::new(State {
            tls: tls::open(&config)?,
            authentication: Authentication::new(
                &config.authentication,
                Tokens::new(&config.service_accounts)?,
            )?,
            discovery: Discovery::new(&config, Arc::clone(&aggregator), Arc::clone(&metrics)),
            resource_metrics: ResourceMetrics::new(Arc::clone(&registry), Arc::clone(&proxy)),
            other_metrics: Mutex::default(),
            health: Health {
                registry: Arc::clone(&registry),
                aggregator: Arc::clone(&aggregator),
                steps: Arc::clone(&steps),
                log_check: LogCheck::default(),
                pace: Pace::default(),
                key_services,
                supervisor: supervisor.clone(),
                others: Mutex::default(),
                leaving: CancellationToken::new(),
            },
            fairness: fairness.clone(),
            inflight: (
                Arc::new(Semaphore::new(config.max_requests_inflight)),
                Arc::new(Semaphore::new(config.max_mutating_requests_inflight)),
            ),
            zpages: zpages::Component::new(
                "apiserver",
                &config.version.git_version,
                config.flags.clone(),
                Arc::clone(&clock),
            ),
            authorizer,
            admission,
            registry: Arc::clone(&registry),
            proxy,
            aggregator: Arc::clone(&aggregator),
            audit,
            metrics,
            clock,
            stop: stop.clone(),
            config,
        });
        // The state that was just created contains all of these.
        steps.finish(&[
            "start-apiserver-admission-initializer",
            "start-encryption-provider-config-automatic-reload",
            "aggregator-reload-proxy-client-cert",
            "max-in-flight-filter",
        ]);
        bootstrap::run(&inner).await.map_err(StartError::Bootstrap)?;
        let custom_resources = Arc::new(CustomResources::new(Arc::clone(&registry), supervisor.clone()));
        custom_resources::start(&custom_resources).await;
        steps.finish(&["start-apiextensions-controllers"]);
        let loops = Loops { supervisor: &supervisor, stop };
        loops.run("custom-resources", move |stop| custom_resources::run(Arc::clone(&custom_resources), stop));
        let place = bootstrap::join(&inner).await.map_err(StartError::Bootstrap)?;
        steps.finish(&["bootstrap-controller"]);
        // The roles and other objects just written apply from the first request on.
        if let Ok(revision) = registry.store.current_revision().await {
            registry.caches.wait_for(revision).await;
        }
        steps.finish(&["storage-readiness", "crd-informer-synced"]);
        let leaving = TaskTracker::new();
        if let Some(place) = place {
            leaving.spawn(bootstrap::endpoints::keep(&inner, place));
        }
        leaving.close();
        if let Some(fairness) = fairness {
            let (shared, of) = (Arc::clone(&fairness), Arc::clone(&registry));
            loops.run("priority-and-fairness-seats", move |stop| {
                flowcontrol::rebalance(Arc::clone(&shared), stop)
            });
            loops.run("priority-and-fairness-status", move |_| {
                flowcontrol::maintain_status(Arc::clone(&of), Arc::clone(&fairness))
            });
            steps.finish(&["priority-and-fairness-config-consumer", "priority-and-fairness-filter"]);
        }
        let of = Arc::clone(&registry);
        loops.run("lease-expiry", move |stop| {
            let of = Arc::clone(&of);
            async move { of.events.expire(stop).await }
        });
        let of = Arc::clone(&registry);
        loops.run("store-compaction", move |_| compact(Arc::clone(&of)));
        let (of, client) = (Arc::clone(&aggregator), own_client(&inner));
        loops.run("apiservice-availability", move |stop| {
            aggregator::run(Arc::clone(&of), client.clone(), stop)
        });
        let client = own_client(&inner);
        loops.run("apiservice-registration", move |_| {
            aggregator::follow_custom(Arc::clone(&aggregator), client.clone())
        });
        let client = own_client(&inner);
        loops.run("repair-cluster-ips", move |stop| {
            cluster_ips::run(Arc::clone(&registry), client.clone(), Arc::clone(&steps), stop)
        });
        Ok(Self { inner, leaving })
    }

    /// Answers HTTPS (HTTP/1.1 and HTTP/2) on a listening socket until [`ApiServer::stop`]; then waits a limited time
    /// for the requests in progress.
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

    /// Returns an in-process transport with this identity. Its requests are authorized and admitted like any other.
    pub fn transport(&self, user: UserInfo) -> Arc<dyn knarr_client::Transport> {
        Arc::new(InProcess::new(Arc::clone(&self.inner), user))
    }

    /// Adds the metrics of a component of the same process to `/metrics`. A later source of the same name replaces
    /// the earlier one.
    pub fn show_metrics(&self, of: &'static str, source: impl Fn() -> String + Send + Sync + 'static) {
        let mut sources = self.inner.other_metrics.lock().unwrap_or_else(PoisonError::into_inner);
        sources.insert(of, Box::new(source));
    }

    /// Adds the tasks of other components of the same process to the checks of `/readyz`. They do not affect the
    /// result: the server can answer without them.
    pub fn show_tasks(&self, of: &Supervisor) {
        self.inner.health.others.lock().unwrap_or_else(PoisonError::into_inner).push(of.clone());
    }

    /// Returns a step of the start that the caller must finish: one of those named in [`crate::steps`].
    pub fn step(&self, name: &'static str) -> Step {
        self.inner.health.steps.expect(name)
    }

    /// Ends watches, the cache feed and `serve`. The store stays open.
    pub fn stop(&self) {
        self.inner.health.leaving.cancel();
        self.inner.stop.cancel();
    }

    /// Stops in upstream's order: the server first reports that it is not ready, and continues to serve for a while
    /// so that load balancers stop sending requests.
    pub async fn shut_down(&self) {
        self.inner.health.leaving.cancel();
        if !self.inner.config.shutdown_delay.is_zero() {
            self.inner.clock.sleep(self.inner.config.shutdown_delay).await;
        }
        self.stop();
    }

    /// Returns the metric families in which nothing was ever recorded.
    pub fn unused_metrics(&self) -> Vec<&'static str> {
        self.inner.metrics.untouched()
    }

    /// Returns whether [`ApiServer::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.inner.stop.is_cancelled()
    }
}

/// Starts the server's own loops, which run until it stops. Each is restarted if it fails.
struct Loops<'a> {
    supervisor: &'a Supervisor,
    stop: CancellationToken,
}

impl Loops<'_> {
    fn run<F, Fut>(&self, name: &'static str, run: F)
    where
        F: Fn(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.supervisor.spawn(name, self.stop.clone(), run);
    }
}

fn authorizer(
    config: &Config,
    caches: &Arc<Caches>,
    metrics: &Arc<Metrics>,
) -> Result<Authorizer, StartError> {
    let cache = |name: &'static str| caches.get(name).ok_or(StartError::Missing(name));
    Ok(Authorizer {
        rbac: Rbac::new(Sources {
            roles: cache("rbac.authorization.k8s.io/roles")?,
            role_bindings: cache("rbac.authorization.k8s.io/rolebindings")?,
            cluster_roles: cache("rbac.authorization.k8s.io/clusterroles")?,
            cluster_role_bindings: cache("rbac.authorization.k8s.io/clusterrolebindings")?,
        }),
        node: NodeAuthorizer::new(Arc::clone(caches), &config.features),
        steps: authz::config::steps(&config.authorization)?,
        metrics: Arc::clone(metrics),
        clock: Arc::clone(&config.clock),
    })
}

fn fairness(config: &Config, registry: &Registry) -> Option<Arc<Fairness>> {
    config.priority_and_fairness.then(|| {
        let seats = config.max_requests_inflight + config.max_mutating_requests_inflight;
        let patience = (config.request_timeout / 4).min(Duration::from_secs(60));
        let (caches, clock) = (Arc::clone(&registry.caches), Arc::clone(&registry.clock));
        Arc::new(Fairness::new(seats as u64, patience, caches, clock, Arc::clone(&registry.metrics)))
    })
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

/// Wraps the store: with metrics, and with encryption if it is configured. Also returns what depends on the
/// encryption.
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

/// Compacts old history of the store periodically, until the server stops.
async fn compact(registry: Arc<Registry>) {
    let mut window = RevisionWindow::default();
    loop {
        tokio::select! {
            () = registry.stop.cancelled() => return,
            () = registry.clock.sleep(COMPACT_EVERY) => {}
        }
        let done = match registry.store.current_revision().await {
            Ok(revision) => match window.tick(revision) {
                Some(old) => {
                    let done = registry.store.compact(old).await;
                    done.map(|()| registry.compacted.store(old, Ordering::Release))
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
