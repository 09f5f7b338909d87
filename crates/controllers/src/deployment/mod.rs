//! Deployment: rolls its pods from one template to the next through ReplicaSets, and keeps their history.

mod revision;
mod rollback;
mod sizes;
mod status;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, Informer, ListOptions, Lister, Patch, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::{Claim, adopt_patch, claim, controller_of, release_patch, still_owns};
use crate::support::pod_state::has_ended;
use crate::support::refusals::namespace_is_terminating;
use crate::support::written::{CATCH_UP, Written, may_be_done};
use sizes::{Resize, replicas};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "deployment-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const UNCREATED: &str = "ReplicaSetCreateError";

struct Controller {
    cx: Arc<Context>,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Lister<Pod>,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// The newest own writes of sets: the size of each depends on the sizes of all of them.
    written: Written,
    /// The newest own writes of the Deployments' statuses.
    own: Written,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let deployments = cx.informers.informer::<Deployment>();
    let sets = cx.informers.informer::<ReplicaSet>();
    let pods = cx.informers.informer::<Pod>();

    let on_deployment = Arc::clone(&queue);
    deployments.add_handler(move |event| on_deployment.add(event.object().key()));
    let (on_set, known) = (Arc::clone(&queue), deployments.lister());
    sets.add_handler(move |event| set_changed(&on_set, &known, event));
    let (on_pod, known) = (Arc::clone(&queue), sets.lister());
    pods.add_handler(move |event| {
        // The strategy Recreate waits until the last old pod is gone.
        if let Event::Deleted(pod) = event
            && let Some(owner) = controller_of(&pod.metadata).filter(|o| o.kind == "ReplicaSet")
            && let Some(set) = known.get(pod.namespace(), &owner.name)
            && let Some(key) = owner_key(&set)
        {
            on_pod.add(key);
        }
    });
    if !(deployments.wait_synced().await && sets.wait_synced().await && pods.wait_synced().await) {
        return;
    }

    let controller = Arc::new(Controller {
        deployments,
        sets,
        pods: pods.lister(),
        queue: Arc::clone(&queue),
        written: Written::default(),
        own: Written::default(),
        cx: Arc::clone(&cx),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, cx.workers(), cx.stop.clone(), reconcile).await;
}

fn owner_key(set: &ReplicaSet) -> Option<ObjectKey> {
    let owner = controller_of(&set.metadata).filter(|o| o.kind == "Deployment")?;
    Some(ObjectKey::new(set.namespace(), &owner.name))
}

fn set_changed(queue: &WorkQueue<ObjectKey>, deployments: &Lister<Deployment>, event: &Event<ReplicaSet>) {
    if let Event::Updated { old, new } = event
        && owner_key(old) != owner_key(new)
        && let Some(key) = owner_key(old)
    {
        queue.add(key);
    }
    let set = event.object();
    if let Some(key) = owner_key(set) {
        return queue.add(key);
    }
    if controller_of(&set.metadata).is_none() && !matches!(event, Event::Deleted(_)) {
        let all = deployments.list_namespace(set.namespace());
        let adopters = all
            .iter()
            .filter(|d| selector_of(d).is_some_and(|s| s.matches_optional(set.metadata.labels.as_ref())));
        adopters.for_each(|d| queue.add(d.key()));
    }
}

fn selector_of(deployment: &Deployment) -> Option<Selector> {
    let selector = Selector::from_label_selector(Some(&deployment.spec.selector)).ok()?;
    (!selector.is_everything()).then_some(selector)
}

fn is_paused(deployment: &Deployment) -> bool {
    deployment.spec.paused.unwrap_or(false)
}

/// A Deployment's sets, oldest first, and the index of the newest template's set.
struct Family {
    sets: Vec<ReplicaSet>,
    newest: Option<usize>,
}

impl Family {
    fn newest(&self) -> Option<&ReplicaSet> {
        self.newest.map(|i| &self.sets[i])
    }

    fn old(&self) -> Vec<ReplicaSet> {
        let old = self.sets.iter().enumerate().filter(|(i, _)| Some(*i) != self.newest);
        old.map(|(_, s)| s.clone()).collect()
    }

    /// Returns the index in `sets` of the old set at this index in [`Family::old`].
    fn old_index(&self, index: usize) -> usize {
        match self.newest {
            Some(newest) if index >= newest => index + 1,
            _ => index,
        }
    }
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.is_pending(&key).await {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let Some(deployment) = self.deployments.lister().get_key(&key) else {
            self.written.forget(&key);
            self.own.forget(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&deployment) else {
            let text = "This deployment is selecting all pods. A non-empty selector is required.";
            self.cx.recorder.event(&*deployment, EventType::Warning, "SelectingAll", text);
            return Ok(());
        };
        let mut deployment = Deployment::clone(&deployment);
        let sets = self.claim_sets(&deployment, &selector).await?;
        let mut family = Family { newest: revision::find_newest(&deployment, &sets), sets };
        if deployment.metadata.deletion_timestamp.is_some() {
            return self.write_status(&deployment, &family, false).await;
        }
        self.note_pause(&mut deployment).await?;
        if !is_paused(&deployment) && rollback::asked(&deployment).is_some() {
            return self.roll_back(&deployment, &family).await;
        }
        if is_paused(&deployment) || sizes::was_scaled(&deployment, &family.sets) {
            self.adopt_newest(&mut deployment, &mut family).await?;
            for resize in sizes::scale(&deployment, &family.sets, family.newest) {
                self.resize(&deployment, &mut family, resize).await?;
            }
            if is_paused(&deployment) {
                self.drop_history(&deployment, &family).await?;
            }
            return self.write_status(&deployment, &family, false).await;
        }
        if sizes::is_rolling(&deployment) {
            self.roll(&mut deployment, &mut family).await?;
        } else if !self.recreate(&mut deployment, &mut family).await? {
            return self.write_status(&deployment, &family, true).await;
        }
        if deployment.status.as_ref().is_some_and(|s| status::is_complete(&deployment, s)) {
            self.drop_history(&deployment, &family).await?;
        }
        self.write_status(&deployment, &family, true).await
    }

    /// Returns whether the informers still lack a write of the Deployment's status or of one of its sets.
    async fn is_pending(&self, key: &ObjectKey) -> bool {
        if self.own.is_pending(key, self.deployments.observed_version()) {
            return true;
        }
        if self.written.is_doubtful(key) {
            // The answer to a write was lost, so the sets are listed past the informer.
            let options = ListOptions::default();
            let Ok((sets, _)) = self.cx.client.list::<ReplicaSet>(Some(&key.namespace), &options).await
            else {
                return true;
            };
            let own = sets.iter().filter(|s| owner_key(s).as_ref() == Some(key));
            let versions = own.filter_map(|s| s.metadata.resource_version.as_deref()?.parse::<u64>().ok());
            self.written.settle(key, versions.max().unwrap_or(0));
        }
        self.written.is_pending(key, self.sets.observed_version())
    }

    /// Records a write of one of the Deployment's sets, whether certain or doubtful.
    fn noted(&self, deployment: &Deployment, outcome: Result<ReplicaSet>) -> Result<ReplicaSet> {
        match &outcome {
            Ok(set) => self.written.note(&deployment.key(), &set.metadata),
            Err(e) if may_be_done(e) => self.written.doubt(&deployment.key()),
            Err(_) => {}
        }
        outcome
    }

    async fn claim_sets(&self, deployment: &Deployment, selector: &Selector) -> Result<Vec<ReplicaSet>> {
        let mut sets = Vec::new();
        for set in self.sets.lister().list_namespace(deployment.namespace()) {
            let matches = selector.matches_optional(set.metadata.labels.as_ref());
            let patch = match claim(deployment, &set.metadata, matches) {
                Claim::Keep => {
                    sets.push(ReplicaSet::clone(&set));
                    continue;
                }
                Claim::Ignore => continue,
                Claim::Adopt => {
                    still_owns(&self.cx.client, deployment).await?;
                    adopt_patch(deployment, set.uid())
                }
                Claim::Release => release_patch(deployment.uid(), set.uid()),
            };
            let patch = Patch::Strategic(patch);
            let patched = self.cx.client.patch::<ReplicaSet>(set.namespace(), set.name(), None, &patch).await;
            match self.noted(deployment, patched) {
                Ok(patched) if controller_of(&patched.metadata).is_some() => sets.push(patched),
                Ok(_) => {}
                Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.reason() == "Invalid") => {}
                Err(e) => return Err(e),
            }
        }
        sets.sort_by_key(|s| (s.metadata.creation_timestamp.as_ref().map(|t| t.0), s.metadata.name.clone()));
        Ok(sets)
    }

    /// Sets the Progressing condition when the rollout is paused or resumed.
    async fn note_pause(&self, deployment: &mut Deployment) -> Result<()> {
        if status::deadline(deployment).is_none() {
            return Ok(());
        }
        let reason =
            deployment.status.as_ref().and_then(|s| status::find(s, status::PROGRESSING)?.reason.clone());
        if matches!(reason.as_deref(), Some("ProgressDeadlineExceeded")) {
            return Ok(());
        }
        let was_paused = reason.as_deref() == Some("DeploymentPaused");
        let (value, reason, message) = match (is_paused(deployment), was_paused) {
            (true, false) => ("Unknown", "DeploymentPaused", "Deployment is paused"),
            (false, true) => ("Unknown", "DeploymentResumed", "Deployment is resumed"),
            _ => return Ok(()),
        };
        let next = deployment.status.get_or_insert_default();
        status::set(next, status::PROGRESSING, value, reason, message, self.cx.clock.now());
        *deployment = self.put_status(deployment).await?;
        Ok(())
    }

    /// Carries out the rollback that `deprecated.deployment.rollback.to` requests, once: restores an earlier template
    /// and its annotations.
    async fn roll_back(&self, deployment: &Deployment, family: &Family) -> Result<()> {
        let Some(rollback) = rollback::rollback(deployment, &family.sets) else { return Ok(()) };
        // The change arrives as an event, which requeues the Deployment.
        self.cx.client.update(&rollback.deployment).await?;
        self.cx.recorder.event(deployment, rollback.type_, rollback.reason, rollback.message);
        Ok(())
    }

    /// Updates the annotations of the newest set and of the Deployment.
    async fn adopt_newest(&self, deployment: &mut Deployment, family: &mut Family) -> Result<()> {
        let Some(index) = family.newest else { return Ok(()) };
        let mut set = family.sets[index].clone();
        revision::annotate_newest(deployment, &mut set, revision::next_revision(&family.old()));
        let min_ready = deployment.spec.min_ready_seconds;
        if set.spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0) {
            set.spec.min_ready_seconds = min_ready;
        }
        if set != family.sets[index] {
            family.sets[index] = self.noted(deployment, self.cx.client.update(&set).await)?;
        }
        self.note_newest(deployment, &family.sets[index], "FoundNewReplicaSet", "Found new replica set").await
    }

    /// Writes the revision and the progress, if the Deployment's status does not show them yet.
    async fn note_newest(
        &self,
        deployment: &mut Deployment,
        set: &ReplicaSet,
        reason: &str,
        text: &str,
    ) -> Result<()> {
        let mut changed = revision::annotate_deployment(deployment, set);
        let known =
            deployment.status.as_ref().is_some_and(|s| status::find(s, status::PROGRESSING).is_some());
        if status::deadline(deployment).is_some() && (!known || reason == "NewReplicaSetCreated") {
            let message = format!("{text} \"{}\"", set.name());
            let next = deployment.status.get_or_insert_default();
            status::set(next, status::PROGRESSING, "True", reason, &message, self.cx.clock.now());
            changed = true;
        }
        if changed {
            *deployment = self.put_status(deployment).await?;
        }
        Ok(())
    }

    /// Ensures that there is a set for the current template.
    async fn ensure_newest(&self, deployment: &mut Deployment, family: &mut Family) -> Result<()> {
        if family.newest.is_some() {
            return self.adopt_newest(deployment, family).await;
        }
        still_owns(&self.cx.client, &*deployment).await?;
        let wanted = revision::new_set(deployment, &family.sets);
        let (created, is_new) = match self.cx.client.create(&wanted).await {
            Err(e) if e.is_already_exists() => (self.resolve_collision(deployment, &wanted).await?, false),
            // The Deployment will be deleted with its namespace.
            Err(e) if namespace_is_terminating(&e) => return Ok(()),
            Err(e) => {
                self.record_failed_create(deployment, &wanted, &e).await;
                return self.noted(deployment, Err(e)).map(drop);
            }
            Ok(created) => (created, true),
        };
        let created = self.noted(deployment, Ok(created))?;
        let size = replicas(&created);
        if size > 0 && is_new {
            self.report_scaling(deployment, "up", created.name(), 0, size);
        }
        family.sets.push(created);
        let index = family.sets.len() - 1;
        family.newest = Some(index);
        let (reason, text) = match is_new {
            true => ("NewReplicaSetCreated", "Created new replica set"),
            false => ("FoundNewReplicaSet", "Found new replica set"),
        };
        self.note_newest(deployment, &family.sets[index], reason, text).await
    }

    /// Sets the condition that explains why the set for the current template could not be created.
    async fn record_failed_create(&self, deployment: &mut Deployment, wanted: &ReplicaSet, error: &Error) {
        let text = format!("Failed to create new replica set {:?}: {error}", wanted.name());
        self.cx.recorder.event(&*deployment, EventType::Warning, UNCREATED, text.clone());
        if status::deadline(deployment).is_none() {
            return;
        }
        let next = deployment.status.get_or_insert_default();
        let before = next.clone();
        status::set(next, status::PROGRESSING, "False", UNCREATED, &text, self.cx.clock.now());
        if *next != before
            && let Ok(written) = self.put_status(deployment).await
        {
            *deployment = written;
        }
    }

    /// Handles a set that exists under the name: either the Deployment's own with the same template (the informer
    /// lags), or a hash collision, which the next attempt avoids.
    async fn resolve_collision(
        &self,
        deployment: &mut Deployment,
        wanted: &ReplicaSet,
    ) -> Result<ReplicaSet> {
        let existing = self.cx.client.get::<ReplicaSet>(wanted.namespace(), wanted.name()).await?;
        let ours = controller_of(&existing.metadata).is_some_and(|o| o.uid == deployment.uid());
        if ours && revision::find_newest(deployment, std::slice::from_ref(&existing)).is_some() {
            return Ok(existing);
        }
        let next = deployment.status.get_or_insert_default();
        next.collision_count = Some(next.collision_count.unwrap_or(0) + 1);
        *deployment = self.put_status(deployment).await?;
        Err(knarr_client::Error::Protocol(format!("the name of replica set {} is taken", wanted.name())))
    }

    async fn roll(&self, deployment: &mut Deployment, family: &mut Family) -> Result<()> {
        self.ensure_newest(deployment, family).await?;
        if let Some(index) = family.newest {
            let all = sizes::sum(&family.sets);
            let size = sizes::newest(deployment, replicas(&family.sets[index]), all);
            if size != replicas(&family.sets[index]) {
                // One set is resized at a time: its new status determines the next step.
                return self.resize(deployment, family, Resize { index, replicas: size }).await;
            }
        }
        let old = family.old();
        for resize in sizes::shrink_old(deployment, family.newest(), &old) {
            let index = family.old_index(resize.index);
            self.resize(deployment, family, Resize { index, ..resize }).await?;
        }
        Ok(())
    }

    /// Returns false while old pods still exist.
    async fn recreate(&self, deployment: &mut Deployment, family: &mut Family) -> Result<bool> {
        self.adopt_newest(deployment, family).await?;
        let mut shrunk = false;
        for index in (0..family.sets.len()).filter(|i| Some(*i) != family.newest).collect::<Vec<_>>() {
            if replicas(&family.sets[index]) > 0 {
                self.resize(deployment, family, Resize { index, replicas: 0 }).await?;
                shrunk = true;
            }
        }
        let reports_pods = |set: &ReplicaSet| set.status.as_ref().is_some_and(|status| status.replicas > 0);
        if shrunk || family.old().iter().any(reports_pods) || self.has_old_pods(deployment, family) {
            return Ok(false);
        }
        self.ensure_newest(deployment, family).await?;
        if let Some(index) = family.newest {
            let size = sizes::wanted(deployment);
            if replicas(&family.sets[index]) != size {
                self.resize(deployment, family, Resize { index, replicas: size }).await?;
            }
        }
        Ok(true)
    }

    fn has_old_pods(&self, deployment: &Deployment, family: &Family) -> bool {
        let newest = family.newest().map(|s| s.uid().to_owned());
        let pods = self.pods.list_namespace(deployment.namespace());
        pods.iter().any(|pod| {
            let Some(owner) = controller_of(&pod.metadata) else { return false };
            let of_family = family.sets.iter().any(|s| s.uid() == owner.uid);
            of_family && Some(&owner.uid) != newest.as_ref() && !has_ended(pod)
        })
    }

    async fn resize(&self, deployment: &Deployment, family: &mut Family, resize: Resize) -> Result<()> {
        let set = &mut family.sets[resize.index];
        let before = replicas(set);
        let mut next = set.clone();
        next.spec.replicas = Some(resize.replicas);
        revision::annotate_sizes(deployment, &mut next);
        *set = self.noted(deployment, self.cx.client.update(&next).await)?;
        if before != resize.replicas {
            let direction = if before < resize.replicas { "up" } else { "down" };
            self.report_scaling(deployment, direction, set.name(), before, resize.replicas);
        }
        Ok(())
    }

    fn report_scaling(&self, deployment: &Deployment, direction: &str, set: &str, from: i32, to: i32) {
        let text = format!("Scaled {direction} replica set {set} from {from} to {to}");
        self.cx.recorder.event(deployment, EventType::Normal, "ScalingReplicaSet", text);
    }

    async fn drop_history(&self, deployment: &Deployment, family: &Family) -> Result<()> {
        let old = family.old();
        for set in revision::beyond_history(deployment, &old) {
            let preconditions = Preconditions { uid: set.metadata.uid.clone(), resource_version: None };
            let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
            match self.cx.client.delete::<ReplicaSet>(set.namespace(), set.name(), &options).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    async fn write_status(&self, deployment: &Deployment, family: &Family, rolling_out: bool) -> Result<()> {
        let now = self.cx.clock.now();
        let next = status::next(deployment, &family.sets, family.newest(), rolling_out, now);
        if let Some(delay) = status::time_to_deadline(deployment, &next, now).filter(|_| rolling_out) {
            self.queue.add_after(deployment.key(), delay + Duration::from_secs(1));
        }
        if deployment.status.as_ref() == Some(&next) {
            return Ok(());
        }
        let next = Deployment { status: Some(next), ..deployment.clone() };
        match self.put_status(&next).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    async fn put_status(&self, deployment: &Deployment) -> Result<Deployment> {
        let written = self.cx.client.update_status(deployment).await?;
        self.own.note(&written.key(), &written.metadata);
        Ok(written)
    }
}
