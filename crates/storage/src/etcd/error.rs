//! The errors of calls to etcd, and their meaning for the caller of the store.

use knarr_grpc::{CallError, Code};

use crate::Error;

/// The meaning of a failed call. etcd's own errors are recognized by their text alone.
pub trait Meaning {
    fn has_message(&self, text: &str) -> bool;

    /// Returns whether another member, or the same one a little later, may succeed.
    fn is_passing(&self) -> bool;

    /// Returns whether the token of an authenticated client has expired.
    fn is_token_expired(&self) -> bool;

    fn is_compacted(&self) -> bool {
        self.has_message("etcdserver: mvcc: required revision has been compacted")
    }

    fn is_future_revision(&self) -> bool {
        self.has_message("etcdserver: mvcc: required revision is a future revision")
    }

    fn is_lease_not_found(&self) -> bool {
        self.has_message("etcdserver: requested lease not found")
    }
}

impl Meaning for CallError {
    fn has_message(&self, text: &str) -> bool {
        matches!(self, Self::Status { message, .. } if message == text)
    }

    fn is_passing(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Broken(_) | Self::Timeout => true,
            Self::Status { code, .. } => {
                *code == Code::UNAVAILABLE || self.has_message("etcdserver: no leader")
            }
        }
    }

    fn is_token_expired(&self) -> bool {
        matches!(self, Self::Status { code, .. } if *code == Code::UNAUTHENTICATED)
            || self.has_message("etcdserver: invalid auth token")
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Timeout => Self::Timeout,
            CallError::Status { message, .. } if message.starts_with("etcdserver: ") => {
                Self::Backend(message.into())
            }
            other => Self::Backend(other.to_string().into()),
        }
    }
}
