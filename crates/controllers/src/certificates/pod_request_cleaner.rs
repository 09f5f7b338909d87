//! PodCertificateRequest cleaner: deletes requests 15 minutes after their creation.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::PodCertificateRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "podcertificaterequest-cleaner-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const KEPT_FOR: Duration = Duration::from_secs(15 * 60);

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let requests = cx.informers.informer::<PodCertificateRequest>();
    let on_request = Arc::clone(&queue);
    requests.add_handler(move |event| {
        if matches!(event, Event::Added(_)) {
            on_request.add(event.object().key());
        }
    });
    if !requests.wait_synced().await {
        return;
    }
    let (requests, again, stop) = (requests.lister(), Arc::clone(&queue), cx.stop.clone());
    let reconcile = move |key: ObjectKey| {
        let (cx, requests, queue) = (Arc::clone(&cx), requests.clone(), Arc::clone(&again));
        async move { reconcile(&cx, &requests, &queue, key).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn reconcile(
    cx: &Context,
    requests: &Lister<PodCertificateRequest>,
    queue: &WorkQueue<ObjectKey>,
    key: ObjectKey,
) -> Result<()> {
    let Some(request) = requests.get_key(&key) else { return Ok(()) };
    let made = request.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let age = made.and_then(|made| Duration::try_from(cx.clock.now().duration_since(made)).ok());
    let left = KEPT_FOR.saturating_sub(age.unwrap_or_default());
    if !left.is_zero() {
        queue.add_after(key, left);
        return Ok(());
    }
    let preconditions = Preconditions { uid: Some(request.uid().to_owned()), resource_version: None };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    match cx.client.delete::<PodCertificateRequest>(request.namespace(), request.name(), &options).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn requests_go_after_a_while() {
        let world = World::new(&[PodCertificateRequest::RESOURCE]);
        let request = json!({"metadata": {"name": "r", "namespace": "ns", "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"signerName": "example.com/signer", "podName": "p",
            "podUID": "u", "serviceAccountName": "a", "serviceAccountUID": "u", "nodeName": "n", "nodeUID": "u"}});
        world.api.add::<PodCertificateRequest>(&serde_json::from_value(request).unwrap());
        world.start(&DESCRIPTOR);
        world.pass(14.0 * 60.0).await;
        assert!(world.api.get::<PodCertificateRequest>("ns", "r").is_some());
        world.pass(2.0 * 60.0).await;
        assert!(world.api.get::<PodCertificateRequest>("ns", "r").is_none());
    }
}
