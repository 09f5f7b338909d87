//! The proxy's loop: a sync whenever services or endpoints changed, again after a pause when it failed.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{ProxyMetrics, ServiceProxy, SyncReport};
use crate::source::ServiceSource;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// After a sync the loop rests for as long as it took, up to this: a large cluster must not fill a core.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Keeps the proxy in step with the cluster until `stop`, and counts that. The rules stay in force afterwards: a restart of the node
/// must not break traffic.
pub async fn run(
    mut proxy: ServiceProxy,
    source: ServiceSource,
    metrics: Arc<ProxyMetrics>,
    stop: CancellationToken,
    mut synced: impl FnMut(&SyncReport) + Send,
) {
    let mut retry = FIRST_RETRY;
    let mut failed = false;
    loop {
        if failed {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(retry) => {}
            }
            retry = (retry * 2).min(LAST_RETRY);
        } else if !source.changed(&stop).await {
            return;
        }
        let reading = source.clone();
        let started = Instant::now();
        // The kernel works within the system call, which for thousands of services takes a while.
        let worked = tokio::task::spawn_blocking(move || {
            let snapshot = reading.read();
            let result = proxy.sync(&snapshot.services, &snapshot.slices);
            (proxy, result, snapshot.slices)
        });
        let (returned, result, slices) = match worked.await {
            Ok(worked) => worked,
            // The proxy is lost with it: whoever supervises this makes another.
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => return,
        };
        proxy = returned;
        metrics.ended(started.elapsed());
        failed = match result {
            Ok(report) => {
                tracing::debug!(?report, took = ?started.elapsed(), "service rules are in force");
                metrics.in_force(&slices);
                synced(&report);
                retry = FIRST_RETRY;
                tokio::time::sleep(started.elapsed().min(LONGEST_REST)).await;
                false
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, retry_in = ?retry, "service rules are not in force");
                true
            }
        };
    }
}
