//! What an API server is told at its start.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use knarr_api::resource::Resource;
use knarr_apimachinery::clock::Clock;
use knarr_storage::Store;

/// A certificate chain and its private key (PKCS#8), both in PEM.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Keypair {
    pub certificate_pem: String,
    pub key_pem: String,
}

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
    /// The certificate that `serve` shows.
    pub serving: Keypair,
    /// PEM of the authorities that sign client certificates; empty: no client certificates.
    pub client_ca_pem: String,
    /// PKCS#8 PEM of the key that signs service-account tokens: ECDSA P-256 or RSA; empty: no tokens.
    pub service_account_key_pem: String,
    /// PEM of further public keys that tokens may be signed with.
    pub service_account_public_keys_pem: Vec<String>,
    pub service_account_issuer: String,
    /// Audiences that tokens must name one of; empty: the issuer.
    pub api_audiences: Vec<String>,
    /// The client certificate with which the API server calls kubelets; `None`: no log, exec, attach, port-forward.
    pub kubelet_client: Option<Keypair>,
    /// PEM of the authorities that sign kubelets' serving certificates.
    pub kubelet_ca_pem: String,
    /// The client certificate with which aggregated API servers are called: it vouches for the user in the headers.
    pub proxy_client: Option<Keypair>,
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
}

/// A configuration that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{what} is not valid PEM")]
    Pem {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{what} holds nothing usable: {why}")]
    Unusable { what: &'static str, why: String },
}

impl Config {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, resources: Vec<&'static Resource>) -> Self {
        Self {
            store,
            clock,
            resources,
            serving: Keypair::default(),
            client_ca_pem: String::new(),
            service_account_key_pem: String::new(),
            service_account_public_keys_pem: Vec::new(),
            service_account_issuer: "https://kubernetes.default.svc.cluster.local".into(),
            api_audiences: Vec::new(),
            kubelet_client: None,
            kubelet_ca_pem: String::new(),
            proxy_client: None,
            service_cidr: (Ipv4Addr::new(10, 96, 0, 0), 12),
            node_ports: 30000..=32767,
            advertise: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443),
            version: Version::default(),
            cluster_domain: "cluster.local".into(),
            shared_store: false,
        }
    }
}
