//! The limit of open files: the kernel's maximum for a server, the usual one for the processes that it
//! starts.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The soft limit that programs expect at their start. Source: file-nr in `man 2 getrlimit`; programs that use select(2)
/// cannot handle descriptors above it.
const USUAL: u64 = 1024;
/// A server with a lower limit logs a warning: each connection, watch and container needs some files.
const FEW: u64 = 4096;

/// Raises the soft limit to the hard one, as Go does for its programs. Processes that this one starts get
/// [`USUAL`] again.
pub fn raise() {
    match set_soft(|hard| hard) {
        Ok(limit) if limit < FEW => {
            tracing::warn!(limit, "few files can be open at a time: raise the hard limit (LimitNOFILE)");
        }
        Ok(limit) => tracing::info!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}

/// Lowers the limit to [`USUAL`] in a process that a server has started and that will start containers.
pub fn restore() {
    // If the limit cannot be lowered, it does no harm.
    let _ = set_soft(|hard| hard.min(USUAL));
}

/// Returns the soft limit.
pub fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| soft)
}

fn set_soft(chosen: impl Fn(u64) -> u64) -> nix::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let soft = chosen(hard);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    Ok(soft)
}
