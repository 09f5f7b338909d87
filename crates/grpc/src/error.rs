//! Why a call failed, in the wording of gRPC's Go library.

/// Users see the display form in events and conditions: `rpc error: code = NotFound desc = no such volume`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server was not reached, so the call had no effect.
    #[error("rpc error: code = Unavailable desc = connection error: desc = \"{0}\"")]
    NotSent(String),
    /// The connection failed during the call, which may have had an effect.
    #[error("rpc error: code = Unavailable desc = {0}")]
    Broken(String),
    /// The answer did not arrive in time; the call may have had an effect.
    #[error("rpc error: code = DeadlineExceeded desc = context deadline exceeded")]
    Timeout,
    /// The server's own answer.
    #[error("rpc error: code = {} desc = {message}", code.name())]
    Status { code: Code, message: String },
}

impl CallError {
    /// Returns the status code.
    pub fn code(&self) -> Code {
        match self {
            Self::NotSent(_) | Self::Broken(_) => Code::UNAVAILABLE,
            Self::Timeout => Code::DEADLINE_EXCEEDED,
            Self::Status { code, .. } => *code,
        }
    }
}

/// A status code; numbers above 16 have no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const OK: Self = Self(0);
    pub const CANCELED: Self = Self(1);
    pub const UNKNOWN: Self = Self(2);
    pub const INVALID_ARGUMENT: Self = Self(3);
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    pub const NOT_FOUND: Self = Self(5);
    pub const ALREADY_EXISTS: Self = Self(6);
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    pub const FAILED_PRECONDITION: Self = Self(9);
    pub const ABORTED: Self = Self(10);
    pub const OUT_OF_RANGE: Self = Self(11);
    pub const UNIMPLEMENTED: Self = Self(12);
    pub const INTERNAL: Self = Self(13);
    pub const UNAVAILABLE: Self = Self(14);
    pub const UNAUTHENTICATED: Self = Self(16);

    /// Returns the code's name in Go's library.
    pub fn name(self) -> &'static str {
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
        NAMES.get(self.0 as usize).copied().unwrap_or("Unknown")
    }
}
