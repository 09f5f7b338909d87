//! Where etcd is, how it is spoken to, and the limits of that.

use std::time::Duration;

use crate::options::TimeSource;

/// Certificates for `https` endpoints, in PEM.
#[derive(Clone, Default)]
pub struct EtcdTls {
    /// The authorities that sign the members' certificates; `None`: those of the system.
    pub ca_pem: Option<String>,
    /// A client certificate and its key.
    pub client_pem: Option<(String, String)>,
}

/// Everything the etcd engine needs to know.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`, of which any live one will do.
    pub endpoints: Vec<String>,
    /// What every key begins with in etcd. Nobody else may write below it.
    pub prefix: String,
    pub tls: EtcdTls,
    /// For an etcd with authentication switched on: user and password.
    pub user: Option<(String, String)>,
    /// How long a request may take, with all attempts at all endpoints.
    pub request_timeout: Duration,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// Operations, and conditions, of one transaction: etcd's `--max-txn-ops`.
    pub max_txn_ops: usize,
    /// Batches that wait for a watch's reader before etcd is made to wait.
    pub watch_buffer: usize,
    pub time: TimeSource,
}

impl EtcdOptions {
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

/// Options that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum EtcdConfigError {
    #[error("no endpoint of etcd is given")]
    NoEndpoint,
    #[error("{endpoint} is not an endpoint of etcd: {why}")]
    Endpoint { endpoint: String, why: &'static str },
    #[error("{what} for etcd cannot be used: {why}")]
    Tls { what: &'static str, why: String },
}
