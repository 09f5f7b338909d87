//! Keeps the name server's records up to date with the cluster while it serves.

use std::sync::{Arc, PoisonError, RwLock};

use tokio_util::sync::CancellationToken;

use super::records::Records;
use super::server::DnsServer;
use crate::source::ServiceSource;

/// Serves and follows the services until `stop`. The records are complete before the first question is
/// answered, so that clients do not get negative answers after a restart.
pub async fn run(server: &DnsServer, source: ServiceSource, stop: CancellationToken) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use knarr_client::clock::SystemClock;
    use knarr_client::{Supervisor, metrics};
    use tokio::net::UdpSocket;
    use tokio::sync::Notify;

    use super::*;
    use crate::dns::{DnsConfig, Forwarder};
    use crate::source::Snapshot;

    /// A question for the address of `x.cluster.local`.
    const QUESTION: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01x\x07cluster\x05local\x00\x00\x01\x00\x01";

    #[tokio::test]
    async fn a_name_server_that_panics_answers_again_at_the_same_address() {
        let config = DnsConfig::new(vec!["127.0.0.1:0".parse().unwrap()]);
        let server = Arc::new(DnsServer::with_forwarder(&config, Forwarder::to(Vec::new())).unwrap());
        let address = server.local_addrs()[0];
        let supervisor = Supervisor::new(Arc::new(SystemClock));
        let (stop, reads, changed) =
            (CancellationToken::new(), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let running = supervisor.spawn("dns", stop.clone(), {
            let (server, changed) = (Arc::clone(&server), Arc::clone(&changed));
            move |stop| {
                let (server, reads) = (Arc::clone(&server), Arc::clone(&reads));
                let source = ServiceSource::new(Arc::clone(&changed), move || {
                    assert!(reads.fetch_add(1, Ordering::SeqCst) != 1, "a fault in the code");
                    Snapshot::default()
                });
                async move { run(&server, source, stop).await }
            }
        });
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let ask = async || {
            client.send_to(QUESTION, address).await.unwrap();
            let mut answer = [0; 512];
            let length = client.recv(&mut answer).await.unwrap();
            assert!(length >= QUESTION.len() && answer[..2] == QUESTION[..2]);
        };
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, ask()).await.unwrap();
        let down = || supervisor.health().iter().any(|task| task.name == "dns" && task.result.is_err());
        changed.notify_one();
        let failing = async {
            while !down() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(patience, failing).await.unwrap();
        tokio::time::timeout(patience, ask()).await.unwrap();
        assert!(!down());
        assert!(metrics::render().contains("knarr_task_restarts_total{task=\"dns\"} 1\n"));
        stop.cancel();
        running.await.unwrap();
    }
}
