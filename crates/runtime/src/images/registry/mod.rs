//! Registries: the pull side of the OCI distribution API over HTTP/1.1.

mod auth;
mod client;
mod http;
mod mirror;
mod pace;
mod pull;

use std::io;

use ::http::StatusCode;

use super::error::{ContentError, ErrorKind};
use super::oci::DocumentError;

pub use mirror::{Mirror, MirrorError};
pub use pace::Pace;
pub use pull::{Progress, ProgressFn, PullOptions, Pulled};

/// Why a registry did not deliver what was requested.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The host, the repository, and the tag or digest.
    #[error("{0}: not found")]
    NotFound(String),
    #[error("pull access denied, repository does not exist or may require authorization: {0}")]
    Denied(String),
    #[error("failed to authorize: failed to fetch {kind} token")]
    Authorize { kind: &'static str, source: Box<RegistryError> },
    #[error("failed to do request: {method} {url:?}")]
    Network { method: String, url: String, source: NetworkError },
    #[error("unexpected status from {method} request to {url}: {status}{message}")]
    Status { method: String, url: String, status: StatusCode, message: String },
    #[error("invalid answer of the registry: {0}")]
    Protocol(String),
    #[error("{what} is larger than the limit of {limit} bytes")]
    TooLarge { what: String, limit: u64 },
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// Why an HTTP exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("dial tcp {address}")]
    Dial { address: String, source: io::Error },
    #[error("tls handshake with {host}")]
    Tls { host: String, source: io::Error },
    #[error("no usable root certificates")]
    Roots(#[source] rustls::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("timeout awaiting {0}")]
    Timeout(&'static str),
    #[error("too slow: {bytes} bytes in {seconds} s")]
    Slow { bytes: u64, seconds: u64 },
    #[error("connection ended after {got} of {wanted} bytes")]
    Short { got: u64, wanted: u64 },
}

impl RegistryError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            RegistryError::NotFound(_) => ErrorKind::NotFound,
            RegistryError::Denied(_) => ErrorKind::Unauthorized,
            RegistryError::Authorize { source, .. } => match **source {
                RegistryError::Status { status, .. } if status.is_client_error() => ErrorKind::Unauthorized,
                _ => source.kind(),
            },
            RegistryError::Status { status, .. } => match *status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Unauthorized,
                StatusCode::NOT_FOUND => ErrorKind::NotFound,
                _ => ErrorKind::Network,
            },
            RegistryError::Network { .. } | RegistryError::Protocol(_) => ErrorKind::Network,
            RegistryError::TooLarge { .. } | RegistryError::Document(_) => ErrorKind::InvalidImage,
            RegistryError::Content(source) => source.kind(),
        }
    }

    /// Returns whether a retry may succeed.
    fn is_transient(&self) -> bool {
        match self {
            RegistryError::Network { source, .. } => {
                use NetworkError::{Roots, Slow, Tls};
                !matches!(source, Roots(_) | Tls { .. } | Slow { .. })
            }
            RegistryError::Status { status, .. } => status.is_server_error() || status.as_u16() == 429,
            RegistryError::Authorize { source, .. } => source.is_transient(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
