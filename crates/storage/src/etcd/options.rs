//! The options of the etcd engine: endpoints, credentials and limits.

use std::time::Duration;

use crate::options::TimeSource;

/// Certificates for `https` endpoints, in PEM.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// The CAs of the members' certificates; `None` for the system's.
    pub ca_pem: Option<String>,
    /// A client certificate and its key.
    pub client_pem: Option<(String, String)>,
}

/// All options of the etcd engine.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`. Any member that is up is used.
    pub endpoints: Vec<String>,
    /// The prefix of all keys in etcd. Nothing else may write below it.
    pub prefix: String,
    pub tls: EtcdTls,
    /// User and password, for an etcd with authentication enabled.
    pub user: Option<(String, String)>,
    /// The time limit of a request, including all attempts at all endpoints.
    pub request_timeout: Duration,
    /// The time limit of one attempt to connect.
    pub connect_timeout: Duration,
    /// The number of operations, and of conditions, in one transaction: etcd's `--max-txn-ops`.
    pub max_txn_ops: usize,
    /// The number of batches that may wait for a watch's reader before etcd must wait.
    pub watch_buffer: usize,
    pub time: TimeSource,
}

impl EtcdOptions {
    /// Returns the default options for these endpoints.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            prefix: "/knarr".into(),
            tls: EtcdTls::default(),
            user: None,
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            max_txn_ops: 128,
            watch_buffer: 128,
            time: TimeSource::system(),
        }
    }
}

/// Why options are unusable.
#[derive(Debug, thiserror::Error)]
pub enum EtcdConfigError {
    #[error("no endpoint of etcd is given")]
    NoEndpoint,
    #[error("{endpoint} is not an endpoint of etcd: {why}")]
    Endpoint { endpoint: String, why: &'static str },
    #[error("{what} for etcd cannot be used: {why}")]
    Tls { what: &'static str, why: String },
}
