//! The server's OOM score: when memory runs out the kernel kills pods first, not the server.

use std::io;

/// The same value as upstream's kubelet and kube-proxy. Guaranteed and critical pods have -997; shims have
/// -998.
const SERVER: &str = "-999";
const FILE: &str = "/proc/self/oom_score_adj";

/// Protects a server from the OOM killer. Lowering the score needs CAP_SYS_RESOURCE, which some machines
/// withhold even from root.
pub fn protect() {
    match std::fs::write(FILE, SERVER) {
        Ok(()) => {}
        Err(error) if is_denied(&error) => tracing::info!(
            "the server may be killed when memory runs out: lowering oom_score_adj needs CAP_SYS_RESOURCE"
        ),
        Err(error) => tracing::warn!(%error, "cannot write {FILE}"),
    }
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}
