//! What of its node each pod has been given, and which resizes wait for room.
//!
//! A pod's spec says what it is to have. What it was given, at its admission or by a resize since, is its allocation:
//! containers get that and nothing else, and the node's room is counted by it. A resize first becomes the allocation,
//! which is recorded on disk, and is carried out then.
//!
//! Source: KEP-1287; the behaviour of upstream's kubelet 1.37, `pkg/kubelet/allocation` (what is decided, and in which
//! order) and `pkg/kubelet/status` (the conditions). It decides when a pod is updated and when room may have become free;
//! so it is here, without upstream's look every three minutes.

mod conditions;
mod record;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use knarr_api::kind::Kind;

use conditions::Conditions;
pub use conditions::TYPES;
pub use record::{Allocated, Record, read, write};

use crate::admission::{Rejection, Taken, resize_rejection};
use crate::pod;
use crate::qos;
use crate::resources::pod_requests;

/// The allocations of all pods that were admitted.
#[derive(Debug, Default)]
pub struct Allocations {
    pods: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    allocated: Allocated,
    /// Whether it is on disk.
    recorded: bool,
    /// Which containers were asked to stop for it, or are about to be, by id, as the disk says: others follow them.
    replaced: BTreeSet<String>,
    /// The pod as it is wanted, while that is not what it has been given.
    pending: Option<Arc<Pod>>,
    conditions: Conditions,
}

/// What became of a resize that waited.
#[derive(Debug)]
pub struct Decided {
    pub pod: Arc<Pod>,
    pub outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has its room, and is to be carried out.
    Allocated,
    /// It waits; `news` if that was not known yet of this version of the pod.
    Pending { rejection: Rejection, infeasible: bool, news: bool },
}

impl Allocations {
    /// The pod with the resources that it was given.
    pub fn of<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        match self.pods.get(pod.uid()) {
            Some(entry) if entry.allocated.differs(pod) => Cow::Owned(entry.allocated.applied_to(pod)),
            _ => Cow::Borrowed(pod),
        }
    }

    /// A pod that was admitted before this kubelet started. Without a record it was given what its status says, or
    /// else what it wants now.
    pub fn take_up(&mut self, pod: &Pod, record: Option<Record>) {
        let recorded = record.is_some();
        let no_record = || Record { allocated: Allocated::of_status(pod), replaced: BTreeSet::new() };
        self.insert(pod, record.unwrap_or_else(no_record), recorded);
    }

    /// Notes what a pod that is admitted now has; one that is known keeps what it has. One that has not run here has what
    /// it wants, whatever its status says.
    pub fn admit(&mut self, pod: &Pod) {
        let mut statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        let has_run = statuses.any(|status| status.container_id.is_some());
        let allocated = if has_run { Allocated::of_status(pod) } else { Allocated::of(pod) };
        self.insert(pod, Record { allocated, replaced: BTreeSet::new() }, false);
    }

    fn insert(&mut self, pod: &Pod, record: Record, recorded: bool) {
        let (Record { allocated, replaced }, conditions) = (record, Conditions::of(pod));
        let entry = Entry { recorded, allocated, replaced, pending: None, conditions };
        self.pods.entry(pod.uid().to_owned()).or_insert(entry);
    }

    /// The newest version of a pod. Whether there is something to decide for it.
    pub fn want(&mut self, pod: &Arc<Pod>) -> bool {
        let Some(entry) = self.pods.get_mut(pod.uid()) else { return false };
        if !entry.allocated.differs(pod) {
            entry.pending = None;
            entry.conditions.clear_pending();
            return false;
        }
        let known = entry.pending.as_ref().is_some_and(|known| known.spec == pod.spec);
        entry.pending = Some(Arc::clone(pod));
        !known
    }

    /// Gives room to the resizes that wait, one after another; says what is new.
    pub fn decide(&mut self, node: &Node, taken: &mut Taken, now: Timestamp) -> Vec<Decided> {
        let mut waiting: Vec<&mut Entry> = self.pods.values_mut().filter(|e| e.pending.is_some()).collect();
        waiting.sort_by_cached_key(|entry| rank(entry));
        let mut decided = Vec::new();
        for entry in waiting {
            let Some(pod) = entry.pending.clone() else { continue };
            let generation = pod.metadata.generation;
            let outcome = match resize_rejection(&pod, node, taken) {
                None => {
                    entry.allocated = Allocated::of(&pod);
                    entry.recorded = false;
                    entry.pending = None;
                    entry.conditions.clear_pending();
                    entry.conditions.start(generation, now);
                    // What it gives back is free once its containers have given it back.
                    taken.grow(&pod);
                    Outcome::Allocated
                }
                Some((infeasible, rejection)) => {
                    let news = entry.conditions.wait(infeasible, &rejection.message, generation, now);
                    Outcome::Pending { rejection, infeasible, news }
                }
            };
            decided.push(Decided { pod, outcome });
        }
        decided
    }

    /// What is to be written down before it may be carried out, and before these containers may be asked to stop for it.
    pub fn unrecorded(&self, uid: &str, replaced: &BTreeSet<String>) -> Option<Record> {
        let entry = self.pods.get(uid).filter(|entry| !entry.recorded || entry.replaced != *replaced)?;
        Some(Record { allocated: entry.allocated.clone(), replaced: replaced.clone() })
    }

    pub fn set_recorded(&mut self, uid: &str, record: &Record) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.replaced.clone_from(&record.replaced);
            entry.recorded |= entry.allocated == record.allocated;
        }
    }

    /// The containers that were asked to stop, or are about to be, and are to be followed by others, as is on record.
    pub fn replaced(&self, uid: &str) -> BTreeSet<String> {
        self.pods.get(uid).map(|entry| entry.replaced.clone()).unwrap_or_default()
    }

    pub fn in_progress(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.conditions.in_progress())
    }

    /// Everything that runs of the pod has these resources. If they are what it was given, its resize is carried out:
    /// of which generation of the pod. `None` if none was under way, or it has been given others meanwhile.
    pub fn finish(&mut self, pod: &Pod) -> Option<i64> {
        let entry = self.pods.get_mut(pod.uid())?;
        if entry.allocated.differs(pod) { None } else { entry.conditions.finish() }
    }

    /// The resize cannot be carried out now: of which generation of the pod. `None` if that was said already.
    pub fn fail(&mut self, uid: &str, message: &str, now: Timestamp) -> Option<i64> {
        self.pods.get_mut(uid)?.conditions.fail(message, now)
    }

    pub fn conditions(&self, uid: &str) -> Vec<PodCondition> {
        self.pods.get(uid).map(|entry| entry.conditions.list()).unwrap_or_default()
    }

    /// The pod is to stop: what it has not been given yet is for others.
    pub fn withdraw(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.pending = None;
        }
    }

    /// The pod is over: it is resized no more.
    pub fn end(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.pending = None;
            entry.conditions = Conditions::default();
        }
    }

    pub fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
    }
}

/// The order in which resizes get room. Source: upstream's `sortPendingResizes`: what asks for no more, then by
/// priority, Guaranteed before the others, and then by how long they have been waiting.
fn rank(entry: &Entry) -> (bool, Reverse<i32>, bool, bool, Option<Timestamp>) {
    let Some(pod) = &entry.pending else { return (true, Reverse(i32::MIN), true, true, None) };
    let (has, wants) = (pod_requests(&entry.allocated.applied_to(pod)), pod_requests(pod));
    let amount = |of: &crate::resources::Amounts, name: &str| of.get(name).copied().unwrap_or(0);
    let grows = ["cpu", "memory"].iter().any(|name| amount(&wants, name) > amount(&has, name));
    let priority = pod::spec(pod).priority.unwrap_or(0);
    let since = entry.conditions.waiting_since();
    (grows, Reverse(priority), qos::qos_class(pod) != qos::GUARANTEED, since.is_none(), since)
}
