//! The server itself: what all requests share, how it starts, serves and stops.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_storage::{RevisionWindow, Store};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::aggregator::{self, Aggregator};
use crate::authn::UserInfo;
use crate::authn::service_account::Tokens;
use crate::authn::x509;
use crate::authz::Authorizer;
use crate::authz::node::NodeAuthorizer;
use crate::authz::rbac::{Rbac, Sources};
use crate::bootstrap;
use crate::cache::{Caches, LoadError};
use crate::config::{Config, ConfigError};
use crate::discovery::Discovery;
use crate::http::listener;
use crate::http::tls;
use crate::in_process::InProcess;
use crate::metrics::Metrics;
use crate::proxy::Kubelets;
use crate::registry::event_leases::{self, EventLeases};
use crate::registry::served::{storage_name, stored_form};
use crate::registry::table::LiveTable;
use crate::webhook::Webhooks;

/// Requests under way, watches and streams apart; further ones wait their turn.
const MAX_INFLIGHT: usize = 600;
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
    #[error("the table of resources lacks {0}")]
    Missing(&'static str),
}

/// What all requests share.
pub struct Inner {
    pub config: Config,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub caches: Arc<Caches>,
    pub table: LiveTable,
    pub authorizer: Authorizer,
    pub certificates: Option<x509::Verifier>,
    pub tokens: Tokens,
    pub kubelets: Option<Kubelets>,
    #[allow(dead_code, reason = "who calls webhooks lands after this client")]
    pub webhooks: Webhooks,
    pub discovery: Discovery,
    pub aggregator: Aggregator,
    pub metrics: Metrics,
    pub events: EventLeases,
    /// One for each request under way that is no watch or stream.
    pub slots: Semaphore,
    /// Cancelled when the server stops.
    pub stop: CancellationToken,
}

/// A running API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
    /// What is still to be done in the store after the stop.
    leaving: TaskTracker,
}

impl ApiServer {
    /// Loads the watch cache, writes what every cluster starts with, and is ready for requests.
    pub async fn new(config: Config) -> Result<Self, StartError> {
        let stop = CancellationToken::new();
        let names = config
            .resources
            .iter()
            .filter(|r| r.is_stored())
            .map(|r| stored_form(r, &config.resources))
            .map(|r| (storage_name(r), r.selectable));
        let (store, clock) = (Arc::clone(&config.store), Arc::clone(&config.clock));
        let caches = Caches::start(Arc::clone(&store), Arc::clone(&clock), names, stop.clone()).await?;
        let table = LiveTable::new(&config.resources, &caches);
        let cache = |name: &'static str| caches.get(name).ok_or(StartError::Missing(name));
        let authorizer = Authorizer {
            rbac: Rbac::new(Sources {
                roles: cache("rbac.authorization.k8s.io/roles")?,
                role_bindings: cache("rbac.authorization.k8s.io/rolebindings")?,
                cluster_roles: cache("rbac.authorization.k8s.io/clusterroles")?,
                cluster_role_bindings: cache("rbac.authorization.k8s.io/clusterrolebindings")?,
            }),
            node: NodeAuthorizer::new(cache("core/pods")?),
        };
        let inner = Arc::new(Inner {
            certificates: tls::client_verifier(&config)?,
            tokens: Tokens::new(&config)?,
            kubelets: Kubelets::new(&config)?,
            webhooks: Webhooks::new(Arc::clone(&clock)),
            discovery: Discovery::new(&config),
            aggregator: Aggregator::new(&config)?,
            metrics: Metrics::default(),
            events: EventLeases::default(),
            slots: Semaphore::new(MAX_INFLIGHT),
            store,
            clock,
            caches,
            table,
            authorizer,
            stop,
            config,
        });
        bootstrap::run(&inner).await.map_err(StartError::Bootstrap)?;
        let place = bootstrap::join(&inner).await.map_err(StartError::Bootstrap)?;
        let leaving = TaskTracker::new();
        if let Some(place) = place {
            leaving.spawn(bootstrap::endpoints::run(Arc::clone(&inner), place));
        }
        leaving.close();
        tokio::spawn(event_leases::expire(Arc::clone(&inner)));
        tokio::spawn(compact(Arc::clone(&inner)));
        tokio::spawn(aggregator::run(Arc::clone(&inner)));
        tokio::spawn(aggregator::follow_custom(Arc::clone(&inner)));
        Ok(Self { inner, leaving })
    }

    /// Answers HTTPS (HTTP/1.1 and HTTP/2) on a listening socket until [`ApiServer::stop`]; then finishes the requests
    /// under way, for a while.
    pub async fn serve(&self, listener: TcpListener) -> Result<(), ConfigError> {
        let tls = tls::server_config(&self.inner.config, self.inner.certificates.as_ref())?;
        listener::serve(Arc::clone(&self.inner), listener, tls).await;
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

    /// Ends watches, the cache feed and `serve`. The store is left open.
    pub fn stop(&self) {
        self.inner.stop.cancel();
    }

    /// Whether [`ApiServer::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.inner.stop.is_cancelled()
    }
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
                Some(old) => server.store.compact(old).await,
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
