//! The coarse reasons of errors with images.

/// The coarse reason, for callers that act on it (an ErrImagePull's wording, an exit code).
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
    /// The gRPC code a CRI runtime answers with, as it is spelled in the kubelet's messages.
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
