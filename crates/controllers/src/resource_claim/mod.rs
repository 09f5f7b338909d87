//! ResourceClaims of pods: created from templates, reserved while a pod needs them, deallocated afterwards.
//!
//! Source: `k8s.io/kubernetes/pkg/controller/resourceclaim`, KEP-4381.

mod pods;
#[cfg(test)]
mod tests;
mod unused;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::status::StatusError;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Error, Event, Lister};

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "resourceclaim-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The field manager of pod statuses and the source of events; the name is upstream's.
const FIELD_MANAGER: &str = "ResourceClaimController";
/// The index of pods by `namespace/name` of their claims and of the templates of these.
const BY_CLAIM: &str = "pod-resource-claim";
const BY_TEMPLATE: &str = "pod-resource-claim-template";
/// The index of claims by `namespace/uid` of the pod that owns them.
const BY_OWNER: &str = "claim-pod-owner";
/// The annotation of a claim with the name of the claim in its pod's spec.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The annotation of a claim that was created for a pod's extended resources.
const EXTENDED_RESOURCE: &str = "resource.kubernetes.io/extended-resource-claim";
/// The finalizer that keeps a claim from being deleted while devices are allocated to it.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Pod(ObjectKey),
    Claim(ObjectKey),
}

/// What reconciling needs: listers and clients.
struct Work {
    cx: Arc<Context>,
    /// Applies the statuses of pods.
    applier: Client,
    pods: Lister<Pod>,
    claims: Lister<ResourceClaim>,
    templates: Lister<ResourceClaimTemplate>,
    /// The claims created recently, by uid of the pod and name within it, because informers may not show them yet. An
    /// entry is removed with its pod.
    made: Mutex<BTreeMap<(String, String), String>>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new(Arc::clone(&cx.clock));
    let pods = cx.informers.informer::<Pod>();
    let claims = cx.informers.informer::<ResourceClaim>();
    let templates = cx.informers.informer::<ResourceClaimTemplate>();
    pods.add_index(BY_CLAIM, |pod| {
        pods::claim_names(pod).map(|name| format!("{}/{name}", pod.namespace())).collect()
    });
    pods.add_index(BY_TEMPLATE, |pod| {
        pods::template_names(pod).map(|name| format!("{}/{name}", pod.namespace())).collect()
    });
    claims.add_index(BY_OWNER, |claim| {
        unused::owner(claim).map(|pod| format!("{}/{}", claim.namespace(), pod.uid)).into_iter().collect()
    });
    let clock = Arc::clone(&cx.clock);
    let work = Arc::new(Work {
        applier: Client::new(Arc::clone(cx.client.transport()), clock, FIELD_MANAGER),
        pods: pods.lister(),
        claims: claims.lister(),
        templates: templates.lister(),
        made: Mutex::default(),
        cx: Arc::clone(&cx),
    });
    let (on_pod, of_work) = (Arc::clone(&queue), Arc::clone(&work));
    pods.add_handler(move |event| {
        let gone = matches!(event, Event::Deleted(_));
        if gone {
            of_work.forget(event.object());
        }
        enqueue(&on_pod, event.object(), gone);
    });
    let (on_claim, of_claim) = (Arc::clone(&queue), pods.lister());
    claims.add_handler(move |event| {
        let key = event.object().key();
        of_claim.by_index(BY_CLAIM, &key.to_string()).iter().for_each(|pod| enqueue(&on_claim, pod, false));
        if !matches!(event, Event::Deleted(_)) {
            on_claim.add(Key::Claim(key));
        }
    });
    let (on_template, of_template) = (Arc::clone(&queue), pods.lister());
    templates.add_handler(move |event| {
        let key = event.object().key().to_string();
        of_template.by_index(BY_TEMPLATE, &key).iter().for_each(|pod| enqueue(&on_template, pod, false));
    });
    if !(pods.wait_synced().await && claims.wait_synced().await && templates.wait_synced().await) {
        return;
    }
    let counted = claims.lister();
    metrics::at_scrape(DESCRIPTOR.name, move || count(&counted.list()));
    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let reconcile = move |key: Key| {
        let work = Arc::clone(&work);
        async move {
            match key {
                Key::Pod(key) => work.pod(&key).await,
                Key::Claim(key) => work.claim(&key).await,
            }
        }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// Queues the pod, and its claims once the pod no longer needs them.
fn enqueue(queue: &WorkQueue<Key>, pod: &Pod, gone: bool) {
    if !pods::has_claims(pod) {
        return;
    }
    if gone || pods::is_done(pod) {
        for name in pods::claim_names(pod) {
            queue.add(Key::Claim(ObjectKey::new(pod.namespace(), name)));
        }
    }
    if !gone && pod.metadata.deletion_timestamp.is_none() {
        queue.add(Key::Pod(pod.key()));
    }
}

/// Returns whether a request of the claim has admin access, which ignores allocations to others.
fn has_admin_access(claim: &ResourceClaim) -> bool {
    let devices = claim.spec.as_ref().and_then(|s| s.devices.as_ref());
    let requests = devices.into_iter().flat_map(|d| d.requests.iter().flatten());
    { requests }.any(|r| r.exactly.as_ref().is_some_and(|e| e.admin_access == Some(true)))
}

/// Records the number of claims by kind in the metrics.
fn count(claims: &[Arc<ResourceClaim>]) {
    let mut sorts: BTreeMap<[&str; 3], f64> = BTreeMap::new();
    for claim in claims {
        let annotation = |name: &str| claim.metadata.annotations.as_ref().and_then(|a| a.get(name));
        let source = if annotation(EXTENDED_RESOURCE).is_some_and(|value| value == "true") {
            "extended_resource"
        } else if annotation(POD_CLAIM).is_some_and(|value| !value.is_empty()) {
            "resource_claim_template"
        } else {
            ""
        };
        let word = |is: bool| if is { "true" } else { "false" };
        let allocated = claim.status.as_ref().is_some_and(|s| s.allocation.is_some());
        *sorts.entry([word(has_admin_access(claim)), word(allocated), source]).or_default() += 1.0;
    }
    metrics::clear(Metric::ResourceClaims);
    sorts.iter().for_each(|(labels, n)| metrics::set(Metric::ResourceClaims, labels, *n));
}

impl Work {
    fn made(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, pod: &Pod) {
        self.made().retain(|(uid, _), _| uid != pod.uid());
    }
}

/// Makes the error that carries the text of an event; the key is retried.
fn failure(text: String) -> Error {
    Error::Status(StatusError::new(500, "", text))
}
