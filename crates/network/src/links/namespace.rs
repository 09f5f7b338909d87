//! Runs work inside another network namespace, on a separate thread.

use std::os::fd::AsFd;

use nix::sched::{CloneFlags, setns};
use thiserror::Error;

/// Why work in a namespace could not start.
#[derive(Debug, Error)]
pub enum NamespaceError {
    #[error("starting a thread")]
    Thread(#[source] std::io::Error),
    #[error("entering the network namespace")]
    Enter(#[source] nix::Error),
    #[error("the work in the network namespace panicked")]
    Panicked,
}

/// Runs `work` in the network namespace behind `namespace` (an open `/proc/PID/ns/net` or bind mount of it).
/// Only a new thread changes its namespace, and it ends afterwards, so no thread of the process stays in a pod.
pub fn in_namespace<T: Send>(
    namespace: impl AsFd + Send,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, move || {
                setns(namespace, CloneFlags::CLONE_NEWNET).map_err(NamespaceError::Enter)?;
                Ok(work())
            })
            .map_err(NamespaceError::Thread)?;
        thread.join().map_err(|_| NamespaceError::Panicked)?
    })
}
