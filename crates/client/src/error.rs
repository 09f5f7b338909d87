//! Errors between a component and the API server.

use std::time::Duration;

use knarr_api::kind::DecodeError;
use knarr_apimachinery::status::StatusError;

/// An error of a request to the API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a failure status.
    #[error("{0}")]
    Status(StatusError),
    /// The server could not be reached, or the connection was lost.
    #[error("cannot reach the API server at {server}")]
    Connection {
        server: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The answer violates the protocol.
    #[error("unexpected answer of the API server: {0}")]
    Protocol(String),
    /// The write was not sent, because its sender is no longer the leader.
    #[error("not sent: the lease under which this was to be written is not held any more")]
    LeaseLost,
}

/// The result of a request to the API server.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<StatusError> for Error {
    fn from(e: StatusError) -> Self {
        Self::Status(e)
    }
}

impl Error {
    /// The API status, if the server sent one.
    pub fn status(&self) -> Option<&StatusError> {
        match self {
            Self::Status(s) => Some(s),
            _ => None,
        }
    }

    /// Returns whether the server answered that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(StatusError::is_not_found)
    }

    /// Returns whether the server answered that the object exists already.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(StatusError::is_already_exists)
    }

    /// Returns whether the server answered with a conflict (409).
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(StatusError::is_conflict)
    }

    /// Returns whether the server answered that a resourceVersion or a continue token is too old.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(StatusError::is_expired)
    }

    /// How long to wait before retrying, if the server could not take the request and said so.
    pub fn retry_after(&self) -> Option<Duration> {
        let status = self.status().filter(|s| s.code() == 429 || s.code() >= 500)?;
        let seconds = status.0.details.as_ref()?.retry_after_seconds.filter(|s| *s > 0)?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    }
}
