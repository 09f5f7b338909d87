//! The pods of one controller: adopts and releases them, creates them in growing batches, deletes them, and emits
//! upstream's events.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::names::DNS_SUBDOMAIN_MAX;
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, Informer, ListOptions, Lister, Patch, Result};

use crate::context::Context;
use crate::support::owners::{
    Claim, adopt_patch, claim, controller_of, controller_reference, release_patch, still_owns,
};
use crate::support::pod_state::has_ended;
use crate::support::refusals::namespace_is_terminating;
use crate::support::written::{Deleted, Written, may_be_done};

/// The index of pods by the uid of their controller; pods without one are under `orphans/NAMESPACE`.
const BY_CONTROLLER: &str = "controllerUID";

/// How many pods of one owner are created or deleted concurrently.
const AT_ONCE: usize = 64;

/// The pods that one controller manages for its objects.
pub struct PodControl {
    cx: Arc<Context>,
    pods: Informer<Pod>,
    /// The resourceVersion of this controller's newest write of a pod, per owner.
    written: Written,
    deleted: Deleted,
    /// The finalizer that adopted pods get.
    finalizer: Option<&'static str>,
}

/// Returns the pods that the controller with this uid manages.
pub fn controlled_by(pods: &Lister<Pod>, uid: &str) -> Vec<Arc<Pod>> {
    pods.by_index(BY_CONTROLLER, uid)
}

fn orphans(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// Adds the index that [`controlled_by`] needs to this informer.
pub fn index_pods(pods: &Informer<Pod>) {
    pods.add_index(BY_CONTROLLER, |pod| match controller_of(&pod.metadata) {
        Some(owner) => vec![owner.uid.clone()],
        None => vec![orphans(pod.namespace())],
    });
}

impl PodControl {
    pub fn new(cx: Arc<Context>, pods: Informer<Pod>) -> Self {
        index_pods(&pods);
        Self { cx, pods, finalizer: None, written: Written::default(), deleted: Deleted::default() }
    }

    /// Sets the finalizer that adopted pods get.
    pub fn adopting_with(self, finalizer: &'static str) -> Self {
        Self { finalizer: Some(finalizer), ..self }
    }

    /// Queues the owners of kind `K` that a pod's change concerns: its owner, its former owner, or all that could
    /// adopt it.
    pub fn wake<K: Kind>(
        &self,
        queue: &Arc<WorkQueue<ObjectKey>>,
        owners: Lister<K>,
        selector_of: fn(&K) -> Option<Selector>,
    ) {
        let queue = Arc::clone(queue);
        self.pods.add_handler(move |event| pod_changed(&queue, &owners, selector_of, event));
    }

    /// Returns whether the informer still lacks a write made for this key; until then the caller must not count pods.
    pub async fn is_pending(&self, key: &ObjectKey) -> bool {
        if self.written.is_doubtful(key) && self.settle(key).await.is_err() {
            return true;
        }
        let pods = self.pods.lister();
        let is_alive = |pod: &ObjectKey, uid: &str| {
            pods.get_key(pod).is_some_and(|p| p.uid() == uid && p.metadata.deletion_timestamp.is_none())
        };
        self.deleted.is_pending(key, is_alive) || self.written.is_pending(key, self.pods.observed_version())
    }

    /// Reads the pods past the informer, after a write whose answer was lost.
    async fn settle(&self, key: &ObjectKey) -> Result<()> {
        let (pods, _) = self.cx.client.list::<Pod>(Some(&key.namespace), &ListOptions::default()).await?;
        let is_own = |p: &&Arc<Pod>| controller_of(&p.metadata).is_some_and(|o| o.name == *key.name);
        let own = pods.iter().filter(is_own);
        let versions = own.filter_map(|p| p.metadata.resource_version.as_deref()?.parse::<u64>().ok());
        let is_alive = |pod: &Pod| {
            let same = |p: &Arc<Pod>| p.uid() == pod.uid() && p.metadata.deletion_timestamp.is_none();
            pods.iter().any(same)
        };
        for pod in self.pods.lister().list_namespace(&key.namespace).iter().filter(is_own) {
            if !is_alive(pod) {
                self.deleted.note(key, pod.key(), pod.uid());
            }
        }
        self.written.settle(key, versions.max().unwrap_or(0));
        Ok(())
    }

    /// Marks the key as doubtful if the failed write may have been carried out, and returns the error.
    fn failed<K: Kind>(&self, owner: &K, error: Error) -> Error {
        if may_be_done(&error) {
            self.written.doubt(&owner.key());
        }
        error
    }

    /// Records a pod written for this key; the key stays pending until the informer has seen the write.
    pub fn note(&self, key: &ObjectKey, meta: &ObjectMeta) {
        self.written.note(key, meta);
    }

    /// Drops what is recorded for an owner that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.written.forget(key);
        self.deleted.forget(key);
    }

    /// Records a pod deleted for this key; the key stays pending until the informer has seen the deletion.
    pub fn note_deleted(&self, key: &ObjectKey, pod: &Pod) {
        self.deleted.note(key, pod.key(), pod.uid());
    }

    /// Returns the informer's pods of the controller with this uid.
    pub fn of(&self, uid: &str) -> Vec<Arc<Pod>> {
        controlled_by(&self.pods.lister(), uid)
    }

    /// Returns the owner's pods, after adopting matching orphans and releasing own pods that no longer match.
    pub async fn claim<K: Kind>(&self, owner: &K, selector: &Selector) -> Result<Vec<Arc<Pod>>> {
        self.claim_if(owner, selector, |_| true).await
    }

    /// Does the same as [`PodControl::claim`], for pods that are also `eligible`.
    pub async fn claim_if<K: Kind>(
        &self,
        owner: &K,
        selector: &Selector,
        eligible: impl Fn(&Pod) -> bool,
    ) -> Result<Vec<Arc<Pod>>> {
        self.claim_of(owner, selector, self.candidates(owner), eligible).await
    }

    /// Does the same as [`PodControl::claim`] without pods that have ended, whose owner references stay as they are.
    pub async fn claim_unended<K: Kind>(&self, owner: &K, selector: &Selector) -> Result<Vec<Arc<Pod>>> {
        let mut candidates = self.candidates(owner);
        candidates.retain(|pod| !has_ended(pod));
        self.claim_of(owner, selector, candidates, |_| true).await
    }

    /// Returns the owner's pods and those of its namespace that have no controller.
    fn candidates<K: Kind>(&self, owner: &K) -> Vec<Arc<Pod>> {
        let mut candidates = self.of(owner.uid());
        candidates.extend(self.pods.lister().by_index(BY_CONTROLLER, &orphans(owner.namespace())));
        candidates
    }

    /// Claims all candidates, and fails if one claim failed: a caller that then counted pods would miss it.
    async fn claim_of<K: Kind>(
        &self,
        owner: &K,
        selector: &Selector,
        candidates: Vec<Arc<Pod>>,
        eligible: impl Fn(&Pod) -> bool,
    ) -> Result<Vec<Arc<Pod>>> {
        let mut pods = Vec::with_capacity(candidates.len());
        let (mut outcome, mut may_adopt) = (Ok(()), None);
        for pod in candidates {
            let matches = selector.matches_optional(pod.metadata.labels.as_ref()) && eligible(&pod);
            let patch = match claim(owner, &pod.metadata, matches) {
                Claim::Keep => {
                    pods.push(pod);
                    continue;
                }
                Claim::Ignore => continue,
                Claim::Adopt => {
                    if may_adopt.is_none() {
                        let checked = still_owns(&self.cx.client, owner).await;
                        may_adopt = Some(checked.is_ok());
                        outcome = outcome.and(checked);
                    }
                    if may_adopt == Some(false) {
                        continue;
                    }
                    let mut patch = adopt_patch(owner, pod.uid());
                    if let Some(finalizer) = self.finalizer {
                        patch["metadata"]["finalizers"] = serde_json::json!([finalizer]);
                    }
                    patch
                }
                Claim::Release => release_patch(owner.uid(), pod.uid()),
            };
            match self.patch(owner, &pod, patch).await {
                Ok(patched) => {
                    let ours = |p: &Pod| controller_of(&p.metadata).is_some_and(|o| o.uid == owner.uid());
                    pods.extend(patched.filter(ours).map(Arc::new));
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome.map(|()| pods)
    }

    async fn patch<K: Kind>(&self, owner: &K, pod: &Pod, patch: serde_json::Value) -> Result<Option<Pod>> {
        let patch = Patch::Strategic(patch);
        match self.cx.client.patch::<Pod>(pod.namespace(), pod.name(), None, &patch).await {
            Ok(patched) => {
                self.written.note(&owner.key(), &patched.metadata);
                Ok(Some(patched))
            }
            // The pod was deleted or replaced since: there is nothing to claim.
            Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.reason() == "Invalid") => Ok(None),
            Err(e) => Err(self.failed(owner, e)),
        }
    }

    /// Creates these pods in batches that double in size while all succeed, so that a broken template costs few
    /// attempts. Returns how many were created.
    ///
    /// First reads whether the owner still exists. While the informer still shows a deleted owner, the garbage
    /// collector would delete each pod created here, in an endless loop.
    pub async fn create_all<K: Kind>(&self, owner: &K, pods: &[Pod]) -> (usize, Result<()>) {
        if pods.is_empty() {
            return (0, Ok(()));
        }
        if let Err(error) = still_owns(&self.cx.client, owner).await {
            return (0, Err(error));
        }
        let (mut done, mut batch, mut created) = (0, 1, 0);
        while done < pods.len() {
            let size = batch.min(pods.len() - done);
            let attempts: Vec<_> =
                pods[done..done + size].iter().map(|pod| self.create(owner, pod)).collect();
            let mut attempts = stream::iter(attempts).buffer_unordered(AT_ONCE);
            let mut failed = None;
            while let Some(result) = attempts.next().await {
                match result {
                    Ok(pod) => created += usize::from(pod.is_some()),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return (created, Err(error));
            }
            done += size;
            batch *= 2;
        }
        (created, Ok(()))
    }

    /// Creates a pod; returns `None` if its namespace is being deleted, as the owner will be too.
    async fn create<K: Kind>(&self, owner: &K, pod: &Pod) -> Result<Option<Pod>> {
        let recorder = &self.cx.recorder;
        match self.cx.client.create(pod).await {
            Ok(pod) => {
                self.written.note(&owner.key(), &pod.metadata);
                let text = format!("Created pod: {}", pod.name());
                recorder.event(owner, EventType::Normal, "SuccessfulCreate", text);
                Ok(Some(pod))
            }
            Err(e) if namespace_is_terminating(&e) => Ok(None),
            Err(e) => {
                recorder.event(owner, EventType::Warning, "FailedCreate", format!("Error creating: {e}"));
                Err(self.failed(owner, e))
            }
        }
    }

    /// Deletes these pods, several concurrently; returns the last error, if any.
    pub async fn delete_all<'p, K: Kind>(
        &self,
        owner: &K,
        pods: impl IntoIterator<Item = &'p Pod>,
    ) -> Result<()> {
        let going: Vec<_> = pods.into_iter().map(|pod| self.delete(owner, pod)).collect();
        let mut going = stream::iter(going).buffer_unordered(AT_ONCE);
        let mut outcome = Ok(());
        while let Some(one) = going.next().await {
            outcome = one.and(outcome);
        }
        outcome
    }

    /// Returns whether this pod no longer exists, even if another pod has its name.
    pub async fn is_gone(&self, pod: &Pod) -> bool {
        match self.cx.client.get::<Pod>(pod.namespace(), pod.name()).await {
            Ok(live) => live.uid() != pod.uid(),
            Err(error) => error.is_not_found(),
        }
    }

    /// Deletes the pod, but not a later one of the same name.
    pub async fn delete<K: Kind>(&self, owner: &K, pod: &Pod) -> Result<()> {
        let recorder = &self.cx.recorder;
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        match self.cx.client.delete::<Pod>(pod.namespace(), pod.name(), &options).await {
            Ok(()) => {
                self.note_deleted(&owner.key(), pod);
                let text = format!("Deleted pod: {}", pod.name());
                recorder.event(owner, EventType::Normal, "SuccessfulDelete", text);
                Ok(())
            }
            Err(e) if e.is_not_found() || (e.is_conflict() && self.is_gone(pod).await) => {
                self.note_deleted(&owner.key(), pod);
                Ok(())
            }
            Err(e) => {
                recorder.event(owner, EventType::Warning, "FailedDelete", format!("Error deleting: {e}"));
                Err(self.failed(owner, e))
            }
        }
    }
}

fn owner_key<K: Kind>(pod: &Pod) -> Option<ObjectKey> {
    let owner = controller_of(&pod.metadata).filter(|o| o.kind == K::RESOURCE.kind)?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    (group == K::RESOURCE.group).then(|| ObjectKey::new(pod.namespace(), &owner.name))
}

fn pod_changed<K: Kind>(
    queue: &WorkQueue<ObjectKey>,
    owners: &Lister<K>,
    selector_of: fn(&K) -> Option<Selector>,
    event: &Event<Pod>,
) {
    if let Event::Updated { old, new } = event
        && controller_of(&old.metadata) != controller_of(&new.metadata)
        && let Some(key) = owner_key::<K>(old)
    {
        queue.add(key);
    }
    let pod = event.object();
    if let Some(key) = owner_key::<K>(pod) {
        return queue.add(key);
    }
    if controller_of(&pod.metadata).is_some() || matches!(event, Event::Deleted(_)) {
        return;
    }
    for owner in owners.list_namespace(pod.namespace()) {
        if selector_of(&owner).is_some_and(|s| s.matches_optional(pod.metadata.labels.as_ref())) {
            queue.add(owner.key());
        }
    }
}

/// Returns the prefix of the pods' names; the dash is dropped where it would exceed the length limit.
fn generate_name(owner: &str) -> String {
    if owner.len() < DNS_SUBDOMAIN_MAX { format!("{owner}-") } else { owner.to_owned() }
}

/// Makes a pod from a template, controlled by the owner, with a generated name.
pub fn pod_from<K: Kind>(owner: &K, template: Option<&PodTemplateSpec>) -> Pod {
    let template = template.cloned().unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(generate_name(owner.name())),
            namespace: owner.meta().namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
