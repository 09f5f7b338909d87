//! Keeps the name server's records in step with the cluster while it serves.

use std::sync::{Arc, PoisonError, RwLock};

use tokio_util::sync::CancellationToken;

use super::records::Records;
use super::server::DnsServer;
use crate::source::ServiceSource;

/// Serves and follows the services until `stop`. Records are in place before the first question is answered, so that
/// a restart does not tell clients that a service is no more.
pub async fn run(server: DnsServer, source: ServiceSource, stop: CancellationToken) {
    let records = server.records();
    update(&records, &source);
    let follow = async {
        while source.changed(&stop).await {
            update(&records, &source);
        }
    };
    tokio::join!(server.serve(stop.clone()), follow);
}

fn update(records: &Arc<RwLock<Records>>, source: &ServiceSource) {
    let snapshot = source.read();
    let mut records = records.write().unwrap_or_else(PoisonError::into_inner);
    if records.update(&snapshot.services, &snapshot.slices) {
        tracing::debug!(serial = records.serial(), "cluster DNS records are up to date");
    }
}
