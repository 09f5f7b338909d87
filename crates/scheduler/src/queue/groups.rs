//! Pod groups in the queue. The waiting pods of a group stand in it as one entry, by the rules of single pods, except
//! that a rejected group is retried after its back-off, whatever events occur.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/backend/queue`, KEP-4671.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use knarr_api::kind::ObjectKey;

use super::{ADDED, BACKOFF_COMPLETE, Backoff, FAILED, Place, Queue, Uid};
use crate::framework::{PodInfo, Profiles, Status};
use crate::groups::Groups;

/// The position of a group in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    /// No PodGroup with its name exists.
    Incomplete,
    /// Ready; the key in `active`.
    Active((i64, u64)),
    /// In back-off; the key in `backoff`.
    Backoff((Duration, u64)),
    /// A PreEnqueue plugin gates this pod, and thereby the whole group.
    Gated(Uid),
    /// Popped, in its scheduling cycle.
    InCycle,
}

#[derive(Debug)]
struct Entity {
    /// The group's waiting pods by arrival.
    members: BTreeMap<u64, Uid>,
    at: At,
    /// The number of attempts since the last one that placed pods.
    rejections: u32,
    /// The sequence number with which it became ready.
    arrival: u64,
}

/// The waiting groups.
pub(super) struct Waiters {
    groups: Arc<Groups>,
    entities: HashMap<ObjectKey, Entity>,
    active: BTreeMap<(i64, u64), ObjectKey>,
    backoff: BTreeMap<(Duration, u64), ObjectKey>,
}

impl Waiters {
    pub(super) fn new(groups: Arc<Groups>) -> Self {
        Self { groups, entities: HashMap::new(), active: BTreeMap::new(), backoff: BTreeMap::new() }
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.backoff.keys().next().map(|(at, _)| *at)
    }

    /// Moves a group to another position, and updates the indexes.
    fn put(&mut self, key: &ObjectKey, at: At) {
        let Some(entity) = self.entities.get_mut(key) else { return };
        match std::mem::replace(&mut entity.at, at.clone()) {
            At::Active(place) => drop(self.active.remove(&place)),
            At::Backoff(place) => drop(self.backoff.remove(&place)),
            At::Incomplete | At::Gated(_) | At::InCycle => {}
        }
        match at {
            At::Active(place) => drop(self.active.insert(place, key.clone())),
            At::Backoff(place) => drop(self.backoff.insert(place, key.clone())),
            At::Incomplete | At::Gated(_) | At::InCycle => {}
        }
    }
}

/// A group that was popped for its scheduling cycle.
#[derive(Debug)]
pub struct PoppedGroup {
    pub key: ObjectKey,
    /// The waiting pods in the order of their arrival.
    pub pods: Vec<Arc<PodInfo>>,
}

/// The next entry of the queue.
#[derive(Debug)]
pub enum Ready {
    Pod(Arc<PodInfo>),
    Group(PoppedGroup),
}

/// The outcome of a group's attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Scheduled,
    Rejected,
    Failed,
}

impl Queue {
    /// Returns a queue in which the pods of a group wait together.
    pub fn with_groups(times: Backoff, groups: Arc<Groups>) -> Self {
        Self { waiters: Some(Waiters::new(groups)), ..Self::new(times) }
    }

    /// Returns the next pod or group that is ready: by priority, then by arrival.
    pub fn next(&mut self, profiles: &Profiles, now: Duration) -> Option<Ready> {
        if self.waiters.is_some() {
            self.flush(profiles, now);
            let group = self.waiters.as_ref().and_then(|w| w.active.keys().next().copied());
            if let Some(first) = group
                && self.active.keys().next().is_none_or(|pod| first < *pod)
            {
                return self.pop_group(now).map(Ready::Group);
            }
        }
        self.pop(profiles, now).map(Ready::Pod)
    }

    fn pop_group(&mut self, now: Duration) -> Option<PoppedGroup> {
        let waiters = self.waiters.as_mut()?;
        let key = waiters.active.first_key_value()?.1.clone();
        waiters.put(&key, At::InCycle);
        let mut pods = Vec::new();
        for uid in waiters.entities.get(&key)?.members.values() {
            if let Some(waiting) = self.pods.get_mut(uid) {
                waiting.attempts += 1;
                waiting.first.get_or_insert(now);
                pods.push(Arc::clone(&waiting.info));
            }
        }
        Some(PoppedGroup { key, pods })
    }

    /// Puts a popped group back into the queue, with those of its pods that have no node.
    pub fn finish_group(
        &mut self,
        profiles: &Profiles,
        key: &ObjectKey,
        placed: &BTreeSet<Box<str>>,
        ended: Ended,
        now: Duration,
    ) {
        let Some(waiters) = &mut self.waiters else { return };
        let Some(entity) = waiters.entities.get_mut(key) else { return };
        let gone: Vec<_> =
            entity.members.iter().filter(|(_, uid)| placed.contains(&***uid)).map(|(n, _)| *n).collect();
        for uid in gone.iter().filter_map(|n| entity.members.remove(n)) {
            if let Some(waiting) = self.pods.get_mut(&uid) {
                waiting.place = Place::Placed;
            }
        }
        if entity.members.is_empty() {
            waiters.entities.remove(key);
            return;
        }
        match ended {
            Ended::Scheduled => {
                // The rest of the group is next, and may preempt at once.
                entity.rejections = 0;
                let arrival = entity.arrival;
                self.activate_group(profiles, key, FAILED.into(), Some(arrival));
            }
            Ended::Rejected | Ended::Failed => {
                entity.rejections = entity.rejections.saturating_add(1);
                let due = now + self.times.after(entity.rejections);
                self.hold_back(key, due, FAILED.into());
            }
        }
    }

    /// Handles a created, updated or deleted PodGroup.
    pub fn group_changed(&mut self, profiles: &Profiles, key: &ObjectKey) {
        let Some(waiters) = &mut self.waiters else { return };
        let Some(entity) = waiters.entities.get(key) else { return };
        let (at, there) = (entity.at.clone(), waiters.groups.object(key).is_some());
        match at {
            At::InCycle => {}
            At::Incomplete if there => self.activate_group(profiles, key, ADDED.into(), None),
            _ if there => {}
            _ => self.make_incomplete(key),
        }
    }

    /// Adds a new pod to its group.
    pub(super) fn join(&mut self, profiles: &Profiles, uid: &Uid, key: &ObjectKey) {
        let Some((at, new)) = self.add_member(uid, key) else { return };
        match at {
            At::Incomplete if new => self.activate_group(profiles, key, ADDED.into(), None),
            At::Active(_) => match self.held_back(profiles, uid) {
                Some(plugin) => self.gate(key, uid, plugin, ADDED.into()),
                None => self.pods_came("active", ADDED.into(), 1),
            },
            _ => {}
        }
    }

    /// Puts a pod back into its pod group after its binding failed. If no other pod of the group is waiting, the
    /// group gets the back-off of a single pod.
    pub(super) fn rejoin(&mut self, uid: &Uid, now: Duration) {
        let Some(waiting) = self.pods.get(uid) else { return };
        let Some(key) = waiting.info.group() else { return };
        let attempts = waiting.attempts;
        let Some((_, new)) = self.add_member(uid, &key) else { return };
        if new {
            let due = now + self.times.after(attempts);
            self.hold_back(&key, due, FAILED.into());
        }
    }

    /// Adds a pod to its group. Returns the group's position, and whether the group is new in the queue.
    fn add_member(&mut self, uid: &Uid, key: &ObjectKey) -> Option<(At, bool)> {
        self.sequence += 1;
        let number = self.sequence;
        let waiters = self.waiters.as_mut()?;
        let mut new = false;
        let entity = waiters.entities.entry(key.clone()).or_insert_with(|| {
            new = true;
            Entity { members: BTreeMap::new(), at: At::Incomplete, rejections: 0, arrival: number }
        });
        entity.members.insert(number, uid.clone());
        let at = entity.at.clone();
        self.put(uid, Place::Member(number));
        Some((at, new))
    }

    /// Returns the PreEnqueue plugin that gates the pod, if any.
    fn held_back(&self, profiles: &Profiles, uid: &str) -> Option<&'static str> {
        let info = &self.pods.get(uid)?.info;
        let (_, profile) = profiles.find(info.scheduler_name())?;
        let mut verdicts = profile.points.pre_enqueue.iter().map(|p| (p.name(), p.pre_enqueue(info)));
        verdicts.find(|(_, status): &(_, Status)| !status.is_success()).map(|(plugin, _)| plugin)
    }

    fn gate(&mut self, key: &ObjectKey, uid: &Uid, plugin: &'static str, event: Cow<'static, str>) {
        self.by_plugin.entry(plugin).or_default().insert(uid.clone());
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.plugins = BTreeSet::from([plugin]);
        }
        let mut pods = 0;
        if let Some(waiters) = &mut self.waiters {
            pods = waiters.entities.get(key).map_or(0, |e| e.members.len());
            waiters.put(key, At::Gated(uid.clone()));
        }
        self.pods_came("gated", event.clone(), pods);
        self.entity_came("gated", event, "podgroup");
    }

    /// Clears the record that this pod gates its group.
    fn ungate(&mut self, uid: &str) {
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        for plugin in std::mem::take(&mut waiting.plugins) {
            self.forget_verdict(plugin, uid);
        }
    }

    /// Makes the group ready if none of its pods is gated.
    fn activate_group(
        &mut self,
        profiles: &Profiles,
        key: &ObjectKey,
        event: Cow<'static, str>,
        arrival: Option<u64>,
    ) {
        let Some(entity) = self.waiters.as_ref().and_then(|w| w.entities.get(key)) else { return };
        let members: Vec<Uid> = entity.members.values().cloned().collect();
        if let At::Gated(uid) = entity.at.clone() {
            self.ungate(&uid);
        }
        if self.waiters.as_ref().is_some_and(|w| w.groups.object(key).is_none()) {
            return self.make_incomplete(key);
        }
        for uid in &members {
            if let Some(plugin) = self.held_back(profiles, uid) {
                return self.gate(key, uid, plugin, event);
            }
        }
        self.sequence += 1;
        let arrival = arrival.unwrap_or(self.sequence);
        let Some(first) = members.first().and_then(|uid| self.pods.get(uid)) else { return };
        let sort = profiles.find(first.info.scheduler_name()).and_then(|(_, p)| p.points.queue_sort.as_ref());
        let place = sort.map_or((0, arrival), |sort| sort.key(&first.info, arrival));
        self.pods_came("active", event.clone(), members.len());
        self.entity_came("active", event, "podgroup");
        if let Some(waiters) = &mut self.waiters {
            waiters.put(key, At::Active(place));
            if let Some(entity) = waiters.entities.get_mut(key) {
                entity.arrival = arrival;
            }
        }
    }

    /// Makes a group ready after an event, or an update of the pod that gates it, if no other pod is gated.
    pub(super) fn release_group(&mut self, profiles: &Profiles, uid: &str, event: Cow<'static, str>) {
        let Some(key) = self.pods.get(uid).and_then(|w| w.info.group()) else { return };
        let entity = self.waiters.as_ref().and_then(|w| w.entities.get(&key));
        if entity.is_some_and(|e| matches!(&e.at, At::Gated(by) if **by == *uid)) {
            self.activate_group(profiles, &key, event, None);
        }
    }

    fn make_incomplete(&mut self, key: &ObjectKey) {
        let Some(waiters) = &mut self.waiters else { return };
        let gating = waiters.entities.get(key).and_then(|e| match &e.at {
            At::Gated(uid) => Some(uid.clone()),
            _ => None,
        });
        waiters.put(key, At::Incomplete);
        if let Some(uid) = gating {
            self.ungate(&uid);
        }
    }

    fn hold_back(&mut self, key: &ObjectKey, due: Duration, event: Cow<'static, str>) {
        self.sequence += 1;
        let place = At::Backoff((due, self.sequence));
        let Some(waiters) = &mut self.waiters else { return };
        let members = waiters.entities.get(key).map_or(0, |e| e.members.len());
        waiters.put(key, place);
        self.pods_came("backoff", event.clone(), members);
        self.entity_came("backoff", event, "podgroup");
    }

    /// Removes a waiting pod from its group.
    pub(super) fn leave(&mut self, uid: &str, number: u64) {
        let Some(key) = self.pods.get(uid).and_then(|w| w.info.group()) else { return };
        self.ungate(uid);
        let Some(waiters) = &mut self.waiters else { return };
        let Some(entity) = waiters.entities.get_mut(&key) else { return };
        entity.members.remove(&number);
        let gating = matches!(&entity.at, At::Gated(by) if **by == *uid);
        if entity.members.is_empty() && entity.at != At::InCycle {
            waiters.put(&key, At::Incomplete);
            waiters.entities.remove(&key);
        } else if gating {
            // Whether another pod is gated is checked when the group becomes ready.
            self.hold_back(&key, Duration::ZERO, ADDED.into());
        }
    }

    pub(super) fn flush_groups(&mut self, profiles: &Profiles, now: Duration) {
        while let Some(waiters) = &self.waiters
            && let Some(((due, _), key)) = waiters.backoff.first_key_value()
            && *due <= now
        {
            let key = key.clone();
            self.activate_group(profiles, &key, BACKOFF_COMPLETE.into(), None);
        }
    }

    /// The numbers of groups and of their pods that are ready, in back-off, gated, and without a PodGroup.
    pub fn groups_pending(&self) -> Option<[(&'static str, usize, usize); 4]> {
        let mut counts = [("active", 0, 0), ("backoff", 0, 0), ("gated", 0, 0), ("incomplete", 0, 0)];
        for entity in self.waiters.as_ref()?.entities.values() {
            let place = match entity.at {
                At::Active(_) | At::InCycle => 0,
                At::Backoff(_) => 1,
                At::Gated(_) => 2,
                At::Incomplete => 3,
            };
            counts[place].1 += 1;
            counts[place].2 += entity.members.len();
        }
        Some(counts)
    }
}
