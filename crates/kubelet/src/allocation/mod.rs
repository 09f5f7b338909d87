//! The resources that are allocated to each pod, and the resizes that wait for free resources.
//!
//! A pod's spec contains the desired resources. Its allocation contains the resources that it was given at its
//! admission or by a resize since: containers get these, and they count as used on the node. A resize first
//! becomes the allocation, which is recorded on disk, and is actuated after that.
//!
//! Source: KEP-1287; the behaviour of upstream's kubelet 1.37, `pkg/kubelet/allocation` (the decisions and their
//! order) and `pkg/kubelet/status` (the conditions). Upstream decides when a pod is updated and when resources may
//! have become free; so does this module, without upstream's additional attempt every three minutes.

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

/// The allocations of all admitted pods.
#[derive(Debug, Default)]
pub struct Allocations {
    pods: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    allocated: Allocated,
    /// Whether the allocation is on disk.
    recorded: bool,
    /// The ids of containers that were asked to stop for the allocation, or are about to be, as recorded on disk:
    /// each is replaced by another container.
    replaced: BTreeSet<String>,
    /// The pod as its spec wants it, while that differs from the allocation.
    pending: Option<Arc<Pod>>,
    conditions: Conditions,
}

/// The decision about a pending resize.
#[derive(Debug)]
pub struct Decided {
    pub pod: Arc<Pod>,
    pub outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The resize is allocated, and is to be actuated.
    Allocated,
    /// The resize waits; `news` if that is new for this generation of the pod.
    Pending { rejection: Rejection, infeasible: bool, news: bool },
}

impl Allocations {
    /// Returns the pod with its allocated resources.
    pub fn of<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        match self.pods.get(pod.uid()) {
            Some(entry) if entry.allocated.differs(pod) => Cow::Owned(entry.allocated.applied_to(pod)),
            _ => Cow::Borrowed(pod),
        }
    }

    /// Adds a pod that was admitted before this kubelet started. Without a record, the allocation is taken from
    /// its status, or else from its spec.
    pub fn take_up(&mut self, pod: &Pod, record: Option<Record>) {
        let recorded = record.is_some();
        let no_record = || Record { allocated: Allocated::of_status(pod), replaced: BTreeSet::new() };
        self.insert(pod, record.unwrap_or_else(no_record), recorded);
    }

    /// Adds a newly admitted pod; a known pod keeps its allocation. A pod that has not run here gets the resources
    /// of its spec, even if its status contains others.
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

    /// Takes the newest version of a pod; returns whether a resize must be decided.
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

    /// Allocates resources to pending resizes, one after another; returns the decisions.
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
                    // Released resources become free only when the containers have been resized.
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

    /// Returns the record to write before the allocation is actuated, and before these containers are asked to
    /// stop for it; `None` if it is on disk already.
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

    /// Returns the ids of the containers on record that were asked to stop, or are about to be, and are replaced.
    pub fn replaced(&self, uid: &str) -> BTreeSet<String> {
        self.pods.get(uid).map(|entry| entry.replaced.clone()).unwrap_or_default()
    }

    pub fn in_progress(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.conditions.in_progress())
    }

    /// Ends the resize if the pod's running containers have the allocated resources. Returns the resized
    /// generation of the pod; `None` if no resize was in progress, or the allocation has changed since.
    pub fn finish(&mut self, pod: &Pod) -> Option<i64> {
        let entry = self.pods.get_mut(pod.uid())?;
        if entry.allocated.differs(pod) { None } else { entry.conditions.finish() }
    }

    /// Records that the resize failed. Returns the resized generation of the pod; `None` if the failure is known
    /// already.
    pub fn fail(&mut self, uid: &str, message: &str, now: Timestamp) -> Option<i64> {
        self.pods.get_mut(uid)?.conditions.fail(message, now)
    }

    pub fn conditions(&self, uid: &str) -> Vec<PodCondition> {
        self.pods.get(uid).map(|entry| entry.conditions.list()).unwrap_or_default()
    }

    /// Drops the pending resize of a pod that is to stop.
    pub fn withdraw(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.pending = None;
        }
    }

    /// Ends all resizes of a pod that has ended.
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

/// Returns the order in which resizes are decided. Source: upstream's `sortPendingResizes`: first those that ask
/// for no more resources, then by priority, Guaranteed pods before others, and then by waiting time.
fn rank(entry: &Entry) -> (bool, Reverse<i32>, bool, bool, Option<Timestamp>) {
    let Some(pod) = &entry.pending else { return (true, Reverse(i32::MIN), true, true, None) };
    let (has, wants) = (pod_requests(&entry.allocated.applied_to(pod)), pod_requests(pod));
    let amount = |of: &crate::resources::Amounts, name: &str| of.get(name).copied().unwrap_or(0);
    let grows = ["cpu", "memory"].iter().any(|name| amount(&wants, name) > amount(&has, name));
    let priority = pod::spec(pod).priority.unwrap_or(0);
    let since = entry.conditions.waiting_since();
    (grows, Reverse(priority), qos::qos_class(pod) != qos::GUARANTEED, since.is_none(), since)
}
