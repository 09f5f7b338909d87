//! The connection tracking limits that kube-proxy sets: raised, but never lowered.
//!
//! Source: kube-proxy's defaults (`--conntrack-max-per-core`, `--conntrack-min`, `--conntrack-tcp-timeout-established`,
//! `--conntrack-tcp-timeout-close-wait`).

use std::path::Path;

use crate::links::{SysctlError, Sysctls};

const MAX_PER_CORE: u64 = 32_768;
const MIN: u64 = 131_072;
const ESTABLISHED_SECONDS: u64 = 86_400;
/// The timeout of connections that one side has closed; the other side may still send for a long time.
const CLOSE_WAIT_SECONDS: u64 = 3600;

/// Returns names below `/proc/sys` and their minimum values.
fn limits(cores: usize) -> [(&'static str, u64); 3] {
    let cores = u64::try_from(cores).unwrap_or(1);
    [
        ("net/netfilter/nf_conntrack_max", MAX_PER_CORE.saturating_mul(cores).max(MIN)),
        ("net/netfilter/nf_conntrack_tcp_timeout_established", ESTABLISHED_SECONDS),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", CLOSE_WAIT_SECONDS),
    ]
}

/// Raises lower limits, in the network namespace of the calling thread. Previous values are kept in
/// `sysctls_file` for `reset`. A limit that cannot be raised, for example the table's size in a separate
/// namespace, is logged as a warning.
pub fn raise(sysctls_file: &Path) -> Result<(), SysctlError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut sysctls = Sysctls::open(sysctls_file.to_owned())?;
    for (name, at_least) in limits(cores) {
        match sysctls.raise(name, at_least) {
            Ok(()) => {}
            Err(error @ SysctlError::State { .. }) => return Err(error),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, at_least, "a limit of connection tracking is not raised");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_grows_with_the_cores() {
        assert_eq!(limits(1)[0].1, 131_072);
        assert_eq!(limits(4)[0].1, 131_072);
        assert_eq!(limits(64)[0].1, 2_097_152);
    }
}
