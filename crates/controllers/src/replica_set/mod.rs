//! ReplicaSet: keeps the number of pods that the spec asks for.
//!
//! A stale informer cannot make it create too many: after each write it waits until the informer has seen that write
//! before it counts pods again.

mod plan;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, Informer, Lister, Patch, Result};

use crate::manager::{Context, Descriptor, namespace_is_terminating};
use crate::owners::{Claim, adopt_patch, claim, controller_of, controller_reference, release_patch};
use crate::pod_state::available_in;
use crate::written::{CATCH_UP, Written};
use plan::{Plan, plan};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "replicaset-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const WORKERS: usize = 5;
/// Pods created or deleted in one go.
const BURST: usize = 500;
/// The index of pods by the uid of their managing owner.
const BY_OWNER: &str = "replicaset-owner";

struct Controller {
    cx: Arc<Context>,
    sets: Lister<ReplicaSet>,
    pods: Informer<Pod>,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// Among the sets' pods.
    written: Written,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let sets = cx.informers.informer::<ReplicaSet>();
    let pods = cx.informers.informer::<Pod>();
    pods.add_index(BY_OWNER, |pod| controller_of(&pod.metadata).map(|o| o.uid.clone()).into_iter().collect());

    let on_set = Arc::clone(&queue);
    sets.add_handler(move |event| on_set.add(event.object().key()));
    let (on_pod, known) = (Arc::clone(&queue), sets.lister());
    pods.add_handler(move |event| pod_changed(&on_pod, &known, event));
    sets.wait_synced().await;
    pods.wait_synced().await;

    let (stop, sets) = (cx.stop.clone(), sets.lister());
    let controller =
        Arc::new(Controller { cx, sets, pods, queue: Arc::clone(&queue), written: Written::default() });
    queue
        .run(DESCRIPTOR.name, WORKERS, stop, move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        })
        .await;
}

/// Wakes the sets that a pod's change concerns: its owner, its former owner, or all that could adopt it.
fn pod_changed(queue: &WorkQueue<ObjectKey>, sets: &Lister<ReplicaSet>, event: &Event<Pod>) {
    let owner = |pod: &Pod| {
        let owner = controller_of(&pod.metadata).filter(|o| o.kind == "ReplicaSet")?;
        Some(ObjectKey::new(pod.namespace(), &owner.name))
    };
    if let Event::Updated { old, new } = event
        && controller_of(&old.metadata) != controller_of(&new.metadata)
        && let Some(key) = owner(old)
    {
        queue.add(key);
    }
    let pod = event.object();
    if let Some(key) = owner(pod) {
        return queue.add(key);
    }
    if controller_of(&pod.metadata).is_some() || matches!(event, Event::Deleted(_)) {
        return;
    }
    for set in sets.list_namespace(pod.namespace()) {
        if selector_of(&set).is_some_and(|s| s.matches_optional(pod.metadata.labels.as_ref())) {
            queue.add(set.key());
        }
    }
}

/// The set's selector; `None` where it is broken or would select everything.
fn selector_of(set: &ReplicaSet) -> Option<Selector> {
    let selector = Selector::from_label_selector(Some(&set.spec.selector)).ok()?;
    (!selector.is_everything()).then_some(selector)
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        let Some(set) = self.sets.get_key(&key) else {
            self.written.forget(&key);
            return Ok(());
        };
        if self.written.is_pending(&key, self.pods.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let Some(selector) = selector_of(&set) else { return Ok(()) };
        let pods = self.claim_pods(&set, &selector).await?;
        let plan = plan(&set, &pods, self.cx.clock.now(), |node| self.family_on_node(&set, node));
        let result = if set.metadata.deletion_timestamp.is_some() {
            Ok(())
        } else {
            self.carry_out(&set, &plan).await
        };
        self.write_status(&set, &pods, result.as_ref().err()).await?;
        self.look_again_when_available(&set, &pods);
        result
    }

    /// The set's pods, after adopting orphans that match and releasing own ones that no longer do.
    async fn claim_pods(&self, set: &ReplicaSet, selector: &Selector) -> Result<Vec<Arc<Pod>>> {
        let mut candidates = self.pods.lister().by_index(BY_OWNER, set.uid());
        let matching = self.pods.lister().select(set.namespace(), selector);
        candidates.extend(matching.into_iter().filter(|p| controller_of(&p.metadata).is_none()));
        let mut pods = Vec::with_capacity(candidates.len());
        for pod in candidates {
            let matches = selector.matches_optional(pod.metadata.labels.as_ref());
            let patch = match claim(set, &pod.metadata, matches) {
                Claim::Keep => {
                    pods.push(pod);
                    continue;
                }
                Claim::Ignore => continue,
                Claim::Adopt => {
                    // The informer may be behind: adopt only for a set that still is the one we know.
                    let live = self.cx.client.get::<ReplicaSet>(set.namespace(), set.name()).await?;
                    if live.uid() != set.uid() || live.metadata.deletion_timestamp.is_some() {
                        continue;
                    }
                    adopt_patch(set, pod.uid())
                }
                Claim::Release => release_patch(set.uid(), pod.uid()),
            };
            let adopting = !patch["metadata"]["ownerReferences"][0]["controller"].is_null();
            let sent = self
                .cx
                .client
                .patch::<Pod>(pod.namespace(), pod.name(), None, &Patch::Strategic(patch))
                .await;
            match sent {
                Ok(patched) => {
                    self.written.note(&set.key(), &patched.metadata);
                    if adopting {
                        pods.push(Arc::new(patched));
                    }
                }
                // Gone or replaced meanwhile: nothing to claim.
                Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.reason() == "Invalid") => {}
                Err(e) => return Err(e),
            }
        }
        Ok(pods)
    }

    async fn carry_out(&self, set: &ReplicaSet, plan: &Plan<'_>) -> Result<()> {
        match plan {
            Plan::Enough => Ok(()),
            Plan::Create(count) => self.create_pods(set, (*count).min(BURST)).await,
            Plan::Delete(pods) => {
                for pod in pods.iter().take(BURST) {
                    self.delete_pod(set, pod).await?;
                }
                Ok(())
            }
        }
    }

    /// Creates pods in batches that double while all goes well, so that a broken template costs few attempts.
    async fn create_pods(&self, set: &ReplicaSet, count: usize) -> Result<()> {
        let template = pod_of(set);
        let (mut done, mut batch) = (0, 1);
        while done < count {
            let size = batch.min(count - done);
            let attempts = (0..size).map(|_| self.create_pod(set, &template));
            for result in futures_util::future::join_all(attempts).await {
                result?;
            }
            done += size;
            batch *= 2;
        }
        Ok(())
    }

    async fn create_pod(&self, set: &ReplicaSet, template: &Pod) -> Result<()> {
        match self.cx.client.create(template).await {
            Ok(pod) => {
                self.written.note(&set.key(), &pod.metadata);
                let text = format!("Created pod: {}", pod.name());
                self.cx.recorder.event(set, EventType::Normal, "SuccessfulCreate", text);
                Ok(())
            }
            // The namespace is going: so will the set.
            Err(e) if namespace_is_terminating(&e) => Ok(()),
            Err(e) => {
                self.cx.recorder.event(
                    set,
                    EventType::Warning,
                    "FailedCreate",
                    format!("Error creating: {e}"),
                );
                Err(e)
            }
        }
    }

    async fn delete_pod(&self, set: &ReplicaSet, pod: &Pod) -> Result<()> {
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        match self.cx.client.delete::<Pod>(pod.namespace(), pod.name(), &options).await {
            Ok(()) => {
                let text = format!("Deleted pod: {}", pod.name());
                self.cx.recorder.event(set, EventType::Normal, "SuccessfulDelete", text);
                Ok(())
            }
            Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
            Err(e) => {
                self.cx.recorder.event(
                    set,
                    EventType::Warning,
                    "FailedDelete",
                    format!("Error deleting: {e}"),
                );
                Err(e)
            }
        }
    }

    /// How many pods of sets with the same owner (old and new of one Deployment) run on the node.
    fn family_on_node(&self, set: &ReplicaSet, node: &str) -> usize {
        let owner = controller_of(&set.metadata).map(|o| o.uid.as_str());
        let sets = self.sets.list_namespace(set.namespace());
        let family = sets.iter().filter(|s| {
            s.uid() == set.uid()
                || (owner.is_some() && controller_of(&s.metadata).map(|o| o.uid.as_str()) == owner)
        });
        let on_node = |p: &Arc<Pod>| p.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
        family
            .map(|s| self.pods.lister().by_index(BY_OWNER, s.uid()).iter().filter(|p| on_node(p)).count())
            .sum()
    }

    async fn write_status(&self, set: &ReplicaSet, pods: &[Arc<Pod>], error: Option<&Error>) -> Result<()> {
        let status = plan::status(set, pods, error.map(ToString::to_string).as_deref(), self.cx.clock.now());
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let next = ReplicaSet { status: Some(status), ..set.clone() };
        match self.cx.client.update_status(&next).await {
            Ok(_) => Ok(()),
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn look_again_when_available(&self, set: &ReplicaSet, pods: &[Arc<Pod>]) {
        let wanted = set.spec.min_ready_seconds.unwrap_or(0);
        let now = self.cx.clock.now();
        let next = pods.iter().filter_map(|p| available_in(p, wanted, now)).filter(|d| !d.is_zero()).min();
        if let Some(delay) = next {
            self.queue.add_after(set.key(), delay);
        }
    }
}

/// The pod that the set's template describes.
fn pod_of(set: &ReplicaSet) -> Pod {
    let template = set.spec.template.clone().unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", set.name())),
            namespace: set.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
