//! The known pod groups: their objects, and which of their pods wait, are assumed or are on a node. Shared by the
//! queue, the cycle and the plugins.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_api::kind::{Kind, ObjectKey};

/// How far the scheduling of a member has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Waiting,
    Assumed,
    Assigned,
}

/// The fields that must be equal for all pods of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub scheduler_name: Box<str>,
    pub priority: i32,
    pub preemption_policy: Box<str>,
}

#[derive(Debug)]
struct Member {
    terms: Arc<Terms>,
    stage: Stage,
}

#[derive(Debug, Default)]
struct Group {
    object: Option<Arc<PodGroup>>,
    /// Members by uid.
    members: BTreeMap<Box<str>, Member>,
    scheduled: usize,
}

impl Group {
    fn to(&mut self, uid: &str, stage: Stage) {
        if let Some(member) = self.members.get_mut(uid) {
            let was = std::mem::replace(&mut member.stage, stage);
            self.scheduled += usize::from(stage != Stage::Waiting);
            self.scheduled -= usize::from(was != Stage::Waiting);
        }
    }
}

#[derive(Default)]
struct Held {
    groups: HashMap<ObjectKey, Group>,
    of_pod: HashMap<Box<str>, ObjectKey>,
}

impl Held {
    fn group_of(&mut self, uid: &str) -> Option<&mut Group> {
        self.groups.get_mut(self.of_pod.get(uid)?)
    }

    fn drop_if_empty(&mut self, key: &ObjectKey) {
        if self.groups.get(key).is_some_and(|g| g.object.is_none() && g.members.is_empty()) {
            self.groups.remove(key);
        }
    }
}

/// All pod groups.
#[derive(Default)]
pub struct Groups(Mutex<Held>);

/// The group that a pod names.
pub fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let name = pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_deref()?;
    Some(ObjectKey::new(pod.metadata.namespace.as_deref().unwrap_or_default(), name))
}

/// The number of pods of a group that need a node before any of them may start.
pub fn min_count(group: &PodGroup) -> usize {
    let gang = group.spec.scheduling_policy.gang.as_ref();
    gang.map_or(1, |g| usize::try_from(g.min_count).unwrap_or(0))
}

/// The group's own priority, which applies to all of its pods.
pub fn priority(group: &PodGroup) -> i32 {
    group.spec.priority.unwrap_or(0)
}

impl Terms {
    /// Returns the terms of a pod, with the API's defaults.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let text = |t: Option<&str>, or: &str| t.unwrap_or(or).into();
        Self {
            scheduler_name: text(spec.and_then(|s| s.scheduler_name.as_deref()), "default-scheduler"),
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            preemption_policy: text(
                spec.and_then(|s| s.preemption_policy.as_deref()),
                "PreemptLowerPriority",
            ),
        }
    }
}

impl Groups {
    /// Takes over a PodGroup from the API.
    pub fn set_object(&self, object: Arc<PodGroup>) {
        let key = object.key();
        self.lock().groups.entry(key).or_default().object = Some(object);
    }

    /// Removes a deleted PodGroup. Its pods stay known.
    pub fn remove_object(&self, key: &ObjectKey) {
        let mut held = self.lock();
        if let Some(group) = held.groups.get_mut(key) {
            group.object = None;
        }
        held.drop_if_empty(key);
    }

    /// Takes over a pod from the API. An assumed pod stays assumed until it is seen on a node.
    pub fn set_pod(&self, pod: &Pod) {
        let Some(key) = group_of(pod) else { return };
        let assigned = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
        let mut held = self.lock();
        let group = held.groups.entry(key.clone()).or_default();
        let waiting = || Member { terms: Arc::new(Terms::of(pod)), stage: Stage::Waiting };
        group.members.entry(pod.uid().into()).or_insert_with(waiting);
        if assigned {
            group.to(pod.uid(), Stage::Assigned);
        }
        held.of_pod.insert(pod.uid().into(), key);
    }

    /// Marks a waiting pod as assumed on a node.
    pub fn assume(&self, uid: &str) {
        if let Some(group) = self.lock().group_of(uid)
            && group.members.get(uid).is_some_and(|m| m.stage == Stage::Waiting)
        {
            group.to(uid, Stage::Assumed);
        }
    }

    /// Marks an assumed pod as waiting again.
    pub fn forget(&self, uid: &str) {
        if let Some(group) = self.lock().group_of(uid)
            && group.members.get(uid).is_some_and(|m| m.stage == Stage::Assumed)
        {
            group.to(uid, Stage::Waiting);
        }
    }

    /// Removes a pod that was deleted or has ended.
    pub fn remove_pod(&self, uid: &str) {
        let mut held = self.lock();
        let Some(key) = held.of_pod.remove(uid) else { return };
        if let Some(group) = held.groups.get_mut(&key) {
            group.to(uid, Stage::Waiting);
            group.members.remove(uid);
        }
        held.drop_if_empty(&key);
    }

    /// Returns whether no known pod names a group.
    pub fn is_empty(&self) -> bool {
        self.lock().of_pod.is_empty()
    }

    /// Returns the PodGroup with this key, if it exists.
    pub fn object(&self, key: &ObjectKey) -> Option<Arc<PodGroup>> {
        self.lock().groups.get(key)?.object.clone()
    }

    /// The group that a known pod belongs to, and the group's object if it exists.
    pub fn of_pod(&self, uid: &str) -> Option<(ObjectKey, Option<Arc<PodGroup>>)> {
        let held = self.lock();
        let key = held.of_pod.get(uid)?;
        Some((key.clone(), held.groups.get(key).and_then(|g| g.object.clone())))
    }

    /// The number of pods in the group, and how many of them have a node (assumed ones included).
    pub fn counts(&self, key: &ObjectKey) -> (usize, usize) {
        self.lock().groups.get(key).map_or((0, 0), |g| (g.members.len(), g.scheduled))
    }

    /// The uids of the group's pods at this stage.
    pub fn at(&self, key: &ObjectKey, stage: Stage) -> Vec<Box<str>> {
        let held = self.lock();
        let members = held.groups.get(key).into_iter().flat_map(|g| &g.members);
        members.filter(|(_, m)| m.stage == stage).map(|(uid, _)| uid.clone()).collect()
    }

    /// The terms of the group's pods that have a node (assumed ones included).
    pub fn terms_of_scheduled(&self, key: &ObjectKey) -> Vec<Arc<Terms>> {
        let held = self.lock();
        let members = held.groups.get(key).into_iter().flat_map(|g| g.members.values());
        members.filter(|m| m.stage != Stage::Waiting).map(|m| Arc::clone(&m.terms)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{pod, pod_group};

    #[test]
    fn members_are_counted_as_they_go_their_way() {
        let groups = Groups::default();
        let key = ObjectKey::new("default", "g");
        let member = |name: &str| pod(name).group("g");
        ["a", "b", "c"].into_iter().for_each(|name| groups.set_pod(&member(name).build()));
        groups.set_pod(&pod("stranger").build());
        assert_eq!(groups.counts(&key), (3, 0));
        groups.assume("a");
        groups.assume("b");
        groups.set_pod(&member("a").build());
        assert_eq!((groups.counts(&key), groups.at(&key, Stage::Assumed).len()), ((3, 2), 2));
        groups.set_pod(&member("a").on("n").build());
        groups.forget("a");
        groups.forget("b");
        assert_eq!((groups.counts(&key), groups.at(&key, Stage::Waiting).len()), ((3, 1), 2));
        groups.set_object(pod_group("g", Some(2)).into());
        assert_eq!(groups.of_pod("a").unwrap().1.map(|g| min_count(&g)), Some(2));
        groups.remove_object(&key);
        ["a", "b", "c"].into_iter().for_each(|uid| groups.remove_pod(uid));
        assert_eq!(groups.counts(&key), (0, 0));
        let held = groups.lock();
        assert!(held.groups.is_empty() && held.of_pod.is_empty());
    }
}
