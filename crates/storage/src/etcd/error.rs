//! What goes wrong in a call to etcd, and what it means to the caller of the store.

use crate::Error;

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// No member was reached: nothing can have happened.
    NotSent(String),
    /// The connection failed with the request under way: it may have happened.
    Broken(String),
    /// No answer in time: it may have happened.
    Timeout,
    /// A member's own answer.
    Status { code: u32, message: String },
}

const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

impl CallError {
    /// Whether another member, or the same one a little later, may do better.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Broken(_) | Self::Timeout => true,
            Self::Status { code, message } => *code == UNAVAILABLE || message == "etcdserver: no leader",
        }
    }

    /// Whether the token of an authenticated client has run out.
    pub fn is_token_expired(&self) -> bool {
        matches!(self, Self::Status { code, message }
            if *code == UNAUTHENTICATED || message == "etcdserver: invalid auth token")
    }

    pub fn is_compacted(&self) -> bool {
        self.says("etcdserver: mvcc: required revision has been compacted")
    }

    pub fn is_future_revision(&self) -> bool {
        self.says("etcdserver: mvcc: required revision is a future revision")
    }

    pub fn is_lease_not_found(&self) -> bool {
        self.says("etcdserver: requested lease not found")
    }

    fn says(&self, text: &str) -> bool {
        matches!(self, Self::Status { message, .. } if message == text)
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(why) => Self::Backend(
                format!("rpc error: code = Unavailable desc = connection error: desc = \"{why}\"").into(),
            ),
            CallError::Broken(why) => {
                Self::Backend(format!("rpc error: code = Unavailable desc = {why}").into())
            }
            CallError::Timeout => Self::Timeout,
            // etcd's own errors are known by their text alone.
            CallError::Status { message, .. } if message.starts_with("etcdserver: ") => {
                Self::Backend(message.into())
            }
            CallError::Status { code, message } => {
                Self::Backend(format!("rpc error: code = {} desc = {message}", code_name(code)).into())
            }
        }
    }
}

fn code_name(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    NAMES.get(code as usize).copied().unwrap_or("Unknown")
}
