//! The state that all requests share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::zpages;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::aggregator::Aggregator;
use crate::audit::Auditor;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::flowcontrol::Fairness;
use crate::health::Health;
use crate::proxy::Proxy;
use crate::resource_metrics::ResourceMetrics;
use crate::tls::Tls;
use knarr_admission::Chain as Admission;
use knarr_auth::authn::chain::Chain as Authentication;
use knarr_auth::authz::Authorizer;
use knarr_registry::Registry;
use knarr_reload::Reloaded;
use knarr_wire::metrics::Metrics;

/// Returns metrics in the Prometheus text format.
pub type MetricsSource = Box<dyn Fn() -> String + Send + Sync>;

/// The components that a request passes, in order of the pipeline.
pub struct State {
    pub config: Config,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// The metrics of other components of the process, by component name.
    pub other_metrics: Mutex<BTreeMap<&'static str, MetricsSource>>,
    pub tls: Reloaded<Tls>,
    pub authentication: Authentication,
    pub audit: Arc<Auditor>,
    /// Flow control; `None` means the plain limits.
    pub fairness: Option<Arc<Fairness>>,
    /// The limits of reading and writing requests in progress, without priority and fairness.
    pub inflight: (Arc<Semaphore>, Arc<Semaphore>),
    pub authorizer: Arc<Authorizer>,
    pub admission: Arc<Admission>,
    pub registry: Arc<Registry>,
    pub proxy: Arc<Proxy>,
    pub aggregator: Arc<Aggregator>,
    pub discovery: Discovery,
    pub resource_metrics: ResourceMetrics,
    pub health: Health,
    /// The content of `/flagz` and `/statusz`.
    pub zpages: zpages::Component,
    /// Cancelled when the server stops.
    pub stop: CancellationToken,
}
