//! What an API server is told at its start.

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

/// What `/version` says.
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

/// Everything an API server needs to know. [`Config::new`] gives defaults for all that has one.
#[derive(Clone)]
pub struct Config {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    /// The table of served resources.
    pub resources: Vec<&'static Resource>,
    /// Groups beside those of the table, which somebody else in this process answers.
    pub local_apis: Vec<Arc<dyn LocalApi>>,
    /// The certificate that `serve` shows.
    pub serving: Keypair,
    /// The same from files (chain, key), read again when they change; in place of `serving`.
    pub serving_files: Option<(PathBuf, PathBuf)>,
    /// PEM of the authorities that sign client certificates; empty: no client certificates.
    pub client_ca_pem: String,
    /// The same from a file, read again when it changes; in place of `client_ca_pem`.
    pub client_ca_file: Option<PathBuf>,
    /// Who may come beside the holders of client certificates and service-account tokens.
    pub authentication: Authentication,
    /// Who may do what.
    pub authorization: Authorization,
    /// Tokens of service accounts.
    pub service_accounts: ServiceAccounts,
    /// The client certificate with which the API server calls kubelets; `None`: no log, exec, attach, port-forward.
    pub kubelet_client: Option<Keypair>,
    /// The same from files (chain, key), read again when they change; in place of `kubelet_client`.
    pub kubelet_client_files: Option<(PathBuf, PathBuf)>,
    /// PEM of the authorities that sign kubelets' serving certificates.
    pub kubelet_ca_pem: String,
    /// The client certificate with which aggregated API servers are called: it vouches for the user in the headers.
    pub proxy_client: Option<Keypair>,
    /// The same from files (chain, key), read again when they change; in place of `proxy_client`.
    pub proxy_client_files: Option<(PathBuf, PathBuf)>,
    /// Where Services get their addresses; its first one is the `kubernetes` Service's.
    pub service_cidr: (Ipv4Addr, u8),
    pub node_ports: RangeInclusive<u16>,
    /// Where others reach this server; written into the `kubernetes` Service's endpoints.
    pub advertise: SocketAddr,
    pub version: Version,
    pub cluster_domain: String,
    /// Whether other servers use the same store: then each keeps a lease on its place among the endpoints of the
    /// `kubernetes` Service.
    pub shared_store: bool,
    /// Proxies may lead to loopback and link-local addresses: only for tests, whose kubelets listen there.
    pub proxies_to_own_machine: bool,
    /// How long a request that is no watch or stream may take.
    pub request_timeout: Duration,
    /// Larger bodies are refused.
    pub max_request_body_bytes: usize,
    /// Priority and fairness divide the sum of the two limits below; without them they are limits themselves.
    pub priority_and_fairness: bool,
    pub max_requests_inflight: usize,
    pub max_mutating_requests_inflight: usize,
    /// What peers may take of the listener.
    pub connection_limits: Limits,
    /// How likely a request over HTTP/2 is to end its connection, so that clients spread over servers.
    pub goaway_chance: f64,
    /// How long the server goes on after it has said that it is not ready any more.
    pub shutdown_delay: Duration,
    /// What is written into the audit log.
    pub audit: Audit,
    /// What is encrypted in the store.
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
