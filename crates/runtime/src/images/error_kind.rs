//! The coarse reasons of image errors.

/// The coarse reason, for callers that act on it (the wording of ErrImagePull, an exit code).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    Unauthorized,
    Network,
    InvalidReference,
    DigestMismatch,
    InvalidImage,
    AlreadyExists,
    Io,
}

impl ErrorKind {
    /// Returns the gRPC code that a CRI runtime answers with, in the spelling of the kubelet's messages.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "NotFound",
            ErrorKind::InvalidReference => "InvalidArgument",
            ErrorKind::DigestMismatch => "FailedPrecondition",
            ErrorKind::AlreadyExists => "AlreadyExists",
            ErrorKind::Network => "Unavailable",
            ErrorKind::Unauthorized | ErrorKind::InvalidImage | ErrorKind::Io => "Unknown",
        }
    }
}
