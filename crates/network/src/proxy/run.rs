//! The proxy's loop: syncs when services or endpoints have changed, and again after a pause when a sync failed.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{ProxyMetrics, ServiceProxy, SyncReport};
use crate::source::ServiceSource;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// After a sync the loop pauses for as long as the sync took, up to this limit: a large cluster must not occupy
/// a core.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Keeps the proxy up to date with the cluster until `stop`, and records metrics. The rules stay in force
/// afterwards, because a restart of the node's agent must not break traffic.
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
        // The kernel applies the rules within the system call, which takes a while for thousands of services.
        let worked = tokio::task::spawn_blocking(move || {
            let snapshot = reading.read();
            let result = proxy.sync(&snapshot.services, &snapshot.slices);
            let slices = proxy.acted_on(snapshot.slices);
            (proxy, result, slices)
        });
        let (returned, result, slices) = match worked.await {
            Ok(worked) => worked,
            // The proxy is lost with the panic: the supervisor creates another one.
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
