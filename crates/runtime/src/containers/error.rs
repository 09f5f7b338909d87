//! Errors on the server side of the container runtime.

use std::io;
use std::path::PathBuf;

/// The result of a call of the runtime.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sandbox \"{0}\": not found")]
    SandboxNotFound(String),
    #[error("container \"{0}\": not found")]
    ContainerNotFound(String),
    #[error("\"{0}\" already exists")]
    AlreadyExists(String),
    #[error("invalid configuration: {0}")]
    Invalid(String),
    /// The call is not possible in the current state of the sandbox or container.
    #[error("{0}")]
    State(String),
    /// A container's process could not be started; the message has runc's wording.
    #[error("{message}")]
    Start { message: String, exit_code: i32 },
    /// An exec'd process could not be started; the message has runc's wording.
    #[error("{message}")]
    Exec { message: String, exit_code: i32 },
    #[error("command {command:?} timed out after {seconds}s")]
    ExecTimeout { command: String, seconds: u64 },
    #[error("the shim of sandbox \"{0}\" is gone")]
    ShimGone(String),
    #[error("the shim did not answer within {0}s")]
    ShimTimeout(u64),
    #[error("the shim could not set up the sandbox: {0}")]
    Setup(String),
    #[error("{what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{what}")]
    Io { what: &'static str, source: io::Error },
    #[error(transparent)]
    Cgroup(#[from] super::cgroups::CgroupError),
    #[error("{0}")]
    Shim(String),
}

impl Error {
    pub(super) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { what, path, source }
    }

    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { what, source }
    }

    /// Returns whether the sandbox or container does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::SandboxNotFound(_) | Error::ContainerNotFound(_))
    }
}
