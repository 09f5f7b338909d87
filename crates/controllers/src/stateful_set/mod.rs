//! StatefulSet: pods with stable names and claims, which are started, deleted and updated in order.

mod claims;
mod identity;
mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Informer, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::still_owns;
use crate::support::pod_control::PodControl;
use crate::support::pod_state::available_in;
use crate::support::refusals::namespace_is_terminating;
use crate::support::revisions::{Revisions, template_of};
use crate::support::written::{CATCH_UP, Written};
use identity::{identify, mount_claims, new_pod, ordinal, pod_name};
use plan::{Action, View, is_parallel};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "statefulset-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// How many pods of a set with parallel pod management are created or deleted concurrently.
const AT_ONCE: usize = 64;
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

struct Controller {
    cx: Arc<Context>,
    sets: Lister<StatefulSet>,
    claims: Informer<PersistentVolumeClaim>,
    /// The newest own writes of claims.
    written: Written,
    pods: PodControl,
    revisions: Revisions,
    queue: Arc<WorkQueue<ObjectKey>>,
}

/// The previous and the updated template, each with the name of its revision.
struct Templates {
    current: (String, PodTemplateSpec),
    update: (String, PodTemplateSpec),
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let sets = cx.informers.informer::<StatefulSet>();
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    let revisions = cx.informers.informer::<ControllerRevision>();
    let informer = cx.informers.informer::<Pod>();
    let pods = PodControl::new(Arc::clone(&cx), informer.clone());
    let on_set = Arc::clone(&queue);
    sets.add_handler(move |event| on_set.add(event.object().key()));
    pods.wake::<StatefulSet>(&queue, sets.lister(), selector_of);
    let (on_claim, known) = (Arc::clone(&queue), sets.lister());
    claims.add_handler(move |event| {
        let claim = event.object();
        let concerned = known.list_namespace(claim.namespace());
        concerned.iter().filter(|s| claims::is_of(s, claim.name())).for_each(|s| on_claim.add(s.key()));
    });
    if !(sets.wait_synced().await
        && claims.wait_synced().await
        && revisions.wait_synced().await
        && informer.wait_synced().await)
    {
        return;
    }

    let (stop, client) = (cx.stop.clone(), cx.client.clone());
    let workers = cx.workers();
    let controller = Arc::new(Controller {
        sets: sets.lister(),
        claims,
        written: Written::default(),
        pods,
        revisions: Revisions { client, lister: revisions.lister(), hash_label: HASH_LABEL },
        queue: Arc::clone(&queue),
        cx,
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

fn selector_of(set: &StatefulSet) -> Option<Selector> {
    let selector = Selector::from_label_selector(Some(&set.spec.selector)).ok()?;
    (!selector.is_everything()).then_some(selector)
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.pods.is_pending(&key).await || self.written.is_pending(&key, self.claims.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let Some(set) = self.sets.get_key(&key) else {
            self.pods.forget(&key);
            self.written.forget(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&set) else { return Ok(()) };
        let mut revisions = self.revisions.claim(&*set, &selector).await?;
        let claimed = self.pods.claim_if(&*set, &selector, |pod| ordinal(&set, pod).is_some()).await?;
        let pods: Vec<_> = claimed.into_iter().filter(|pod| ordinal(&set, pod).is_some()).collect();
        let mut collisions = set.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        let templates = self.templates(&set, &mut revisions, &mut collisions).await?;
        let view = View {
            set: &set,
            pods: &pods,
            current: &templates.current.0,
            update: &templates.update.0,
            now: self.cx.clock.now(),
        };
        let result = self.carry_out(&view, &templates).await;
        let status_written = self.write_status(&view, collisions).await;
        let dropped = self.drop_history(&view, &revisions).await;
        self.look_again_when_available(&set, &pods);
        result.and(status_written).and(dropped)
    }

    async fn templates(
        &self,
        set: &StatefulSet,
        revisions: &mut Vec<ControllerRevision>,
        collisions: &mut i32,
    ) -> Result<Templates> {
        let update = self.revisions.ensure(set, &set.spec.template, revisions, collisions).await?;
        let before = set.status.as_ref().and_then(|s| s.current_revision.as_deref()).unwrap_or("");
        let current = revisions.iter().find(|r| r.name() == before);
        let old = current.and_then(|r| Some((r.name().to_owned(), template_of(r)?)));
        let update = (update.name().to_owned(), set.spec.template.clone());
        Ok(Templates { current: old.unwrap_or_else(|| update.clone()), update })
    }

    async fn carry_out(&self, view: &View<'_>, templates: &Templates) -> Result<()> {
        let actions = view.plan();
        if is_parallel(view.set) {
            // Batches double in size while all actions succeed.
            let mut rest = &actions[..];
            let mut at_once = 1;
            while !rest.is_empty() {
                let (batch, more) = rest.split_at(at_once.min(rest.len()));
                let all = batch.iter().map(|action| self.act(view, templates, action));
                futures_util::future::try_join_all(all).await?;
                (rest, at_once) = (more, (at_once * 2).min(AT_ONCE));
            }
            return Ok(());
        }
        for action in &actions {
            if !self.act(view, templates, action).await? {
                break;
            }
        }
        Ok(())
    }

    /// Carries out one action; returns whether the next one may follow.
    async fn act(&self, view: &View<'_>, templates: &Templates, action: &Action<'_>) -> Result<bool> {
        let set = view.set;
        match action {
            Action::Create { ordinal, update } => {
                let (revision, template) = if *update { &templates.update } else { &templates.current };
                if self.goes_with_former_pod(set, *ordinal) {
                    // The deletion of the claim requeues the set.
                    return Ok(false);
                }
                let pod = new_pod(set, template, revision, *ordinal);
                if let Err(error) = self.ensure_claims(set, *ordinal).await {
                    self.record(set, "Create", &pod, "FailedCreate", Some(&error));
                    return Err(error);
                }
                self.create_pod(set, &pod).await?;
            }
            Action::Own(pod, ordinal) => self.own_claims(set, pod, *ordinal).await?,
            Action::Claims(n) => self.ensure_claims(set, *n).await?,
            Action::Identify(pod, ordinal) => self.identify(set, pod, *ordinal).await?,
            Action::Delete(pod, _) => self.delete_pod(set, pod).await?,
        }
        Ok(true)
    }

    /// Returns whether a claim of this ordinal is deleted with an earlier pod.
    fn goes_with_former_pod(&self, set: &StatefulSet, ordinal: i32) -> bool {
        identity::claims(set, ordinal).iter().any(|claim| {
            let known = self.claims.lister().get(claim.namespace(), claim.name());
            known.is_some_and(|known| claims::goes_with_another(set, ordinal, None, &known))
        })
    }

    /// Creates the missing claims of a pod.
    async fn ensure_claims(&self, set: &StatefulSet, ordinal: i32) -> Result<()> {
        for mut claim in identity::claims(set, ordinal) {
            match self.claims.lister().get(claim.namespace(), claim.name()) {
                // A change of the claim requeues the set.
                Some(known) if known.metadata.deletion_timestamp.is_some() => {
                    // Its finalizer keeps it until the old pod is gone; a new pod must not use it.
                    return Err(Error::Protocol(format!("pvc {} is being deleted", claim.name())));
                }
                Some(_) => continue,
                None => {}
            }
            still_owns(&self.cx.client, set).await?;
            claim.metadata.owner_references = claims::owners(set, ordinal, None, &claim);
            let (reason, type_, text) = match self.cx.client.create(&claim).await {
                Err(e) if e.is_already_exists() => continue,
                Err(e) if namespace_is_terminating(&e) => return Ok(()),
                Ok(_) => ("SuccessfulCreate", EventType::Normal, Ok(())),
                Err(e) => ("FailedCreate", EventType::Warning, Err(e)),
            };
            let (name, pod) = (claim.name(), pod_name(set, ordinal));
            let message = match &text {
                Ok(()) => format!("Create Claim {name} Pod {pod} in StatefulSet {} success", set.name()),
                Err(error) => format!(
                    "Create Claim {name} for Pod {pod} in StatefulSet {} failed error: {error}",
                    set.name()
                ),
            };
            self.cx.recorder.event(set, type_, reason, message);
            text?;
        }
        Ok(())
    }

    /// Sets the owners of a pod's claims according to the retention policy.
    async fn own_claims(&self, set: &StatefulSet, pod: &Pod, ordinal: i32) -> Result<()> {
        for claim in identity::claims(set, ordinal) {
            let Some(known) = self.claims.lister().get(claim.namespace(), claim.name()) else { continue };
            let Some(owners) = claims::owners(set, ordinal, Some(pod), &known) else { continue };
            let mut next = PersistentVolumeClaim::clone(&known);
            next.metadata.owner_references = Some(owners).filter(|o| !o.is_empty());
            match self.cx.client.update(&next).await {
                Ok(claim) => self.written.note(&set.key(), &claim.metadata),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn create_pod(&self, set: &StatefulSet, pod: &Pod) -> Result<()> {
        still_owns(&self.cx.client, set).await?;
        match self.cx.client.create(pod).await {
            Ok(created) => {
                self.pods.note(&set.key(), &created.metadata);
                self.record(set, "Create", pod, "SuccessfulCreate", None);
                Ok(())
            }
            // The old pod of the same name still exists.
            Err(e) if e.is_already_exists() => Err(e),
            Err(e) if namespace_is_terminating(&e) => Ok(()),
            Err(e) => {
                self.record(set, "Create", pod, "FailedCreate", Some(&e));
                Err(e)
            }
        }
    }

    async fn identify(&self, set: &StatefulSet, pod: &Pod, ordinal: i32) -> Result<()> {
        self.ensure_claims(set, ordinal).await?;
        let mut next = pod.clone();
        identify(set, &mut next, ordinal);
        mount_claims(set, &mut next, ordinal);
        match self.cx.client.update(&next).await {
            Ok(updated) => {
                self.pods.note(&set.key(), &updated.metadata);
                self.record(set, "Update", pod, "SuccessfulUpdate", None);
                Ok(())
            }
            Err(e) => {
                self.record(set, "Update", pod, "FailedUpdate", Some(&e));
                Err(e)
            }
        }
    }

    async fn delete_pod(&self, set: &StatefulSet, pod: &Pod) -> Result<()> {
        let uid = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let options = DeleteOptions { preconditions: Some(uid), ..DeleteOptions::default() };
        match self.cx.client.delete::<Pod>(pod.namespace(), pod.name(), &options).await {
            Err(e) if e.is_not_found() || (e.is_conflict() && self.pods.is_gone(pod).await) => {
                self.pods.note_deleted(&set.key(), pod);
                Ok(())
            }
            Err(e) => {
                self.record(set, "Delete", pod, "FailedDelete", Some(&e));
                Err(e)
            }
            Ok(()) => {
                self.pods.note_deleted(&set.key(), pod);
                self.record(set, "Delete", pod, "SuccessfulDelete", None);
                Ok(())
            }
        }
    }

    fn record(&self, set: &StatefulSet, verb: &str, pod: &Pod, reason: &str, error: Option<&Error>) {
        let start = format!("{verb} Pod {} in StatefulSet {}", pod.name(), set.name());
        let (type_, text) = match error {
            None => (EventType::Normal, format!("{start} successful")),
            Some(error) => (EventType::Warning, format!("{start} failed error: {error}")),
        };
        self.cx.recorder.event(set, type_, reason, text);
    }

    async fn write_status(&self, view: &View<'_>, collisions: i32) -> Result<()> {
        let status = view.status(collisions);
        if view.set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let next = StatefulSet { status: Some(status), ..view.set.clone() };
        match self.cx.client.update_status(&next).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    async fn drop_history(&self, view: &View<'_>, revisions: &[ControllerRevision]) -> Result<()> {
        let live = |revision: &ControllerRevision| {
            let name = revision.name();
            name == view.current
                || name == view.update
                || view.pods.iter().any(|p| identity::revision(p) == name)
        };
        self.revisions.truncate(revisions, live, view.set.spec.revision_history_limit.unwrap_or(10)).await
    }

    fn look_again_when_available(&self, set: &StatefulSet, pods: &[Arc<Pod>]) {
        let (wanted, now) = (set.spec.min_ready_seconds.unwrap_or(0), self.cx.clock.now());
        let next = pods.iter().filter_map(|p| available_in(p, wanted, now)).filter(|d| !d.is_zero()).min();
        if let Some(delay) = next {
            self.queue.add_after(set.key(), delay);
        }
    }
}
