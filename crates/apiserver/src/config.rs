//! The configuration of an API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::resource::Resource;
use knarr_apimachinery::clock::Clock;
use knarr_serving::Limits;
use knarr_storage::Store;

use crate::audit::options::Audit;
use crate::local_api::LocalApi;
use knarr_admission::AdmissionConfig;
use knarr_api::features::Features;
use knarr_auth::authn::options::{Authentication, ServiceAccounts};
use knarr_auth::authz::options::Authorization;
use knarr_registry::encryption::Encryption;
use knarr_wire::keypair::Keypair;

/// The answer of `/version`.
#[derive(Debug, Clone)]
pub struct Version {
    pub git_version: String,
    pub git_commit: String,
    pub build_date: String,
}

/// The Kubernetes version whose API is served.
pub const SYSTEM_VERSION: &str = "v1.37.0";

impl Default for Version {
    fn default() -> Self {
        Self {
            git_version: format!("{SYSTEM_VERSION}+knarr"),
            git_commit: String::new(),
            build_date: "1970-01-01T00:00:00Z".into(),
        }
    }
}

/// The configuration of an API server. [`Config::new`] sets defaults where they exist.
#[derive(Clone)]
pub struct Config {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    /// The table of served resources.
    pub resources: Vec<&'static Resource>,
    /// API groups in addition to those of the table, answered by other components of this process.
    pub local_apis: Vec<Arc<dyn LocalApi>>,
    /// The serving certificate.
    pub serving: Keypair,
    /// The serving certificate from files (chain, key), read again when they change; replaces `serving`.
    pub serving_files: Option<(PathBuf, PathBuf)>,
    /// The CA certificates of client certificates, in PEM; empty disables client certificates.
    pub client_ca_pem: String,
    /// The CA certificates of client certificates from a file, read again when it changes; replaces `client_ca_pem`.
    pub client_ca_file: Option<PathBuf>,
    /// Authenticators in addition to client certificates and service-account tokens.
    pub authentication: Authentication,
    /// The authorizers.
    pub authorization: Authorization,
    /// The settings of service-account tokens.
    pub service_accounts: ServiceAccounts,
    /// The client certificate for calls of kubelets; `None` disables log, exec, attach and port-forward.
    pub kubelet_client: Option<Keypair>,
    /// The client certificate for kubelets from files (chain, key), read again when they change; replaces
    /// `kubelet_client`.
    pub kubelet_client_files: Option<(PathBuf, PathBuf)>,
    /// The CA certificates of kubelets' serving certificates, in PEM.
    pub kubelet_ca_pem: String,
    /// The client certificate for calls of aggregated API servers; it authenticates the user headers.
    pub proxy_client: Option<Keypair>,
    /// The client certificate for aggregated API servers from files (chain, key), read again when they change;
    /// replaces `proxy_client`.
    pub proxy_client_files: Option<(PathBuf, PathBuf)>,
    /// The address range of Services; the `kubernetes` Service has its first address.
    pub service_cidr: (Ipv4Addr, u8),
    pub node_ports: RangeInclusive<u16>,
    /// The address at which other machines reach this server; it is the endpoint of the `kubernetes` Service.
    pub advertise: SocketAddr,
    pub version: Version,
    pub cluster_domain: String,
    /// Whether other servers use the same store. Each server then keeps a lease for its endpoint of the `kubernetes`
    /// Service.
    pub shared_store: bool,
    /// Whether proxies may connect to loopback and link-local addresses. Only for tests, whose kubelets listen there.
    pub proxies_to_own_machine: bool,
    /// The timeout of requests other than watches and streams.
    pub request_timeout: Duration,
    /// The maximum size of a request body; larger ones are refused.
    pub max_request_body_bytes: usize,
    /// Priority and fairness divides the sum of the two limits below. If it is off, each is a limit of its own.
    pub priority_and_fairness: bool,
    pub max_requests_inflight: usize,
    pub max_mutating_requests_inflight: usize,
    /// The limits of connections per listener and peer.
    pub connection_limits: Limits,
    /// The probability that a request over HTTP/2 closes its connection (GOAWAY), so that clients spread over the
    /// servers.
    pub goaway_chance: f64,
    /// How long the server continues to serve after it has reported that it is not ready.
    pub shutdown_delay: Duration,
    /// The audit options.
    pub audit: Audit,
    /// The encryption of the store.
    pub encryption: Encryption,
    pub features: Features,
    /// The flags that the server was started with, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// How long events are kept.
    pub event_ttl: Duration,
    pub admission: AdmissionConfig,
}

impl Config {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, resources: Vec<&'static Resource>) -> Self {
        Self {
            store,
            clock,
            resources,
            local_apis: Vec::new(),
            serving: Keypair::default(),
            serving_files: None,
            client_ca_pem: String::new(),
            client_ca_file: None,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            service_accounts: ServiceAccounts::default(),
            kubelet_client: None,
            kubelet_client_files: None,
            kubelet_ca_pem: String::new(),
            proxy_client: None,
            proxy_client_files: None,
            service_cidr: (Ipv4Addr::new(10, 96, 0, 0), 12),
            node_ports: 30000..=32767,
            advertise: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443),
            version: Version::default(),
            cluster_domain: "cluster.local".into(),
            shared_store: false,
            proxies_to_own_machine: false,
            request_timeout: Duration::from_secs(60),
            max_request_body_bytes: 3 * 1024 * 1024,
            priority_and_fairness: true,
            max_requests_inflight: 400,
            max_mutating_requests_inflight: 200,
            connection_limits: Limits::default(),
            goaway_chance: 0.0,
            shutdown_delay: Duration::ZERO,
            audit: Audit::default(),
            encryption: Encryption::default(),
            features: Features::default(),
            flags: Vec::new(),
            event_ttl: Duration::from_secs(3600),
            admission: AdmissionConfig::default(),
        }
    }
}
