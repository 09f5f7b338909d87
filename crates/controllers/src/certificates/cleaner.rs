//! csrcleaner: deletes requests that were decided an hour ago, that were pending for a day, or whose certificate has
//! expired.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::certificates::request::not_after;
use knarr_api::certificates::signers::{self, APPROVED, AUTO_APPROVAL, DENIED, FAILED};
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-cleaner-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const DECIDED_FOR: Duration = Duration::from_secs(3600);
const PENDING_FOR: Duration = Duration::from_secs(24 * 3600);

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let requests = cx.informers.informer::<CertificateSigningRequest>();
    let on_request = Arc::clone(&queue);
    requests.add_handler(move |event| {
        if !matches!(event, Event::Deleted(_)) {
            on_request.add(event.object().name().to_owned());
        }
    });
    if !requests.wait_synced().await {
        return;
    }
    let (requests, again, stop) = (requests.lister(), Arc::clone(&queue), cx.stop.clone());
    let reconcile = move |name: String| {
        let (cx, requests, queue) = (Arc::clone(&cx), requests.clone(), Arc::clone(&again));
        async move { reconcile(&cx, &requests, &queue, &name).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn reconcile(
    cx: &Context,
    requests: &Lister<CertificateSigningRequest>,
    queue: &WorkQueue<String>,
    name: &str,
) -> Result<()> {
    let Some(csr) = requests.get("", name) else { return Ok(()) };
    let Some(due) = due(&csr) else { return Ok(()) };
    let left = Duration::try_from(due.duration_since(cx.clock.now())).unwrap_or(Duration::ZERO);
    if !left.is_zero() {
        queue.add_after(name.to_owned(), left);
        return Ok(());
    }
    let preconditions = Preconditions { uid: Some(csr.uid().to_owned()), resource_version: None };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    match cx.client.delete::<CertificateSigningRequest>("", name, &options).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

/// Returns when the request is to be deleted.
fn due(csr: &CertificateSigningRequest) -> Option<Timestamp> {
    let status = csr.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let issued = signers::is_issued(csr);
    let after = |since: Timestamp, period: Duration| since.checked_add(period).ok();
    // The condition that only explains why a request waits is no decision.
    if conditions.iter().all(|c| c.type_ == AUTO_APPROVAL) {
        return after(csr.metadata.creation_timestamp.as_ref()?.0, PENDING_FOR);
    }
    let mut ends = Vec::new();
    for condition in conditions {
        let period = match condition.type_.as_str() {
            DENIED | FAILED => DECIDED_FOR,
            APPROVED if issued => DECIDED_FOR,
            APPROVED => PENDING_FOR,
            _ => continue,
        };
        ends.extend(condition.last_update_time.and_then(|at| after(at.0, period)));
        if issued && condition.type_ == APPROVED {
            ends.extend(status.certificate.as_ref().and_then(|c| not_after(&c.0)));
        }
    }
    ends.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{client_request, csr, decided};
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn every_request_has_its_end() {
        let made = csr("a", signers::KUBE_APISERVER_CLIENT_KUBELET, client_request("n1"), "u", &[]);
        let hours = |n: i64| Timestamp::from_second(n * 3600).ok();
        // The test's requests are created and decided at the epoch.
        assert_eq!(due(&made), hours(24));
        assert_eq!(due(&decided(made.clone(), &[APPROVED])), hours(24));
        assert_eq!(due(&decided(made.clone(), &[DENIED])), hours(1));
        assert_eq!(due(&decided(made.clone(), &[APPROVED, FAILED])), hours(1));
        let mut issued = decided(made.clone(), &[APPROVED]);
        issued.status.as_mut().unwrap().certificate = Some(ByteString(b"x".to_vec()));
        assert_eq!(due(&issued), hours(1));
        assert_eq!(due(&decided(made, &["Seen"])), None);
    }
}
