//! Waiting pods: ready ones in order, those in back-off, and those that wait for an event that may help them.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/backend/queue`; back-off from 1 s, doubled per attempt, 10 s at most;
//! after five minutes an unschedulable pod is tried again whatever happened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use knarr_api::kind::Kind;

use crate::framework::{ClusterEvent, EventObject, PodInfo, Profile, Status};

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);
/// Events kept for pods that are being scheduled at the moment; beyond it they count as helped.
const MAX_EVENT_LOG: usize = 4096;

type Uid = Box<str>;

#[derive(Debug, Clone, PartialEq)]
enum Place {
    /// The key in `active`.
    Active((i64, u64)),
    /// The key in `backoff`.
    Backoff((Duration, u64)),
    /// Since when.
    Unschedulable(Duration),
    /// Held back by a PreEnqueue plugin.
    Gated,
    /// Popped; the number of the first event it has not seen.
    InFlight(u64),
}

struct Waiting {
    info: Arc<PodInfo>,
    attempts: u32,
    /// The plugins that turned it down last.
    plugins: BTreeSet<&'static str>,
    place: Place,
}

/// The queue. Time is passed in, as the clock's monotonic reading.
#[derive(Default)]
pub struct Queue {
    pods: HashMap<Uid, Waiting>,
    active: BTreeMap<(i64, u64), Uid>,
    backoff: BTreeMap<(Duration, u64), Uid>,
    sequence: u64,
    log: BTreeMap<u64, (ClusterEvent, EventObject)>,
    next_event: u64,
}

impl Queue {
    /// Adds a new pod, or takes over a change of one that waits.
    pub fn set(&mut self, profile: &Profile, info: PodInfo, now: Duration) {
        let uid: Uid = info.uid().into();
        let info = Arc::new(info);
        match self.pods.get_mut(&uid) {
            None => {
                let waiting =
                    Waiting { info, attempts: 0, plugins: BTreeSet::new(), place: Place::Unschedulable(now) };
                self.pods.insert(uid.clone(), waiting);
                self.activate(profile, &uid);
            }
            Some(waiting) => {
                let old = std::mem::replace(&mut waiting.info, Arc::clone(&info));
                if !changed(&old, &info) {
                    return;
                }
                let object =
                    EventObject::Pod { old: Some(Arc::clone(&old.pod)), new: Some(Arc::clone(&info.pod)) };
                match waiting.place {
                    Place::Gated => self.activate(profile, &uid),
                    Place::Active(_) | Place::Backoff(_) => {}
                    Place::Unschedulable(_) => {
                        if self.helps(profile, &uid, ClusterEvent::UnscheduledPodUpdate, &object) {
                            self.release(profile, &uid, now);
                        }
                    }
                    Place::InFlight(_) => self.note(ClusterEvent::UnscheduledPodUpdate, object),
                }
            }
        }
    }

    /// Forgets a pod: it is bound or gone.
    pub fn remove(&mut self, uid: &str) {
        if let Some(waiting) = self.pods.remove(uid) {
            self.unplace(&waiting.place);
        }
    }

    /// The next pod, if one is ready.
    pub fn pop(&mut self, profile: &Profile, now: Duration) -> Option<Arc<PodInfo>> {
        self.flush(profile, now);
        let (_, uid) = self.active.pop_first()?;
        let waiting = self.pods.get_mut(&uid)?;
        waiting.attempts += 1;
        waiting.place = Place::InFlight(self.next_event);
        Some(Arc::clone(&waiting.info))
    }

    /// When to look again, for pods whose time comes by itself.
    pub fn next_due(&self) -> Option<Duration> {
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.pods.values().filter_map(|w| match w.place {
            Place::Unschedulable(since) => Some(since + MAX_UNSCHEDULABLE),
            _ => None,
        });
        stale.chain(backoff).min()
    }

    /// Puts back a pod that did not fit. With no plugins named (an error), it is tried again after its back-off.
    pub fn reject(&mut self, profile: &Profile, uid: &str, plugins: BTreeSet<&'static str>, now: Duration) {
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        let Place::InFlight(first_unseen) = waiting.place else { return };
        let failed = plugins.is_empty();
        waiting.plugins = plugins;
        waiting.place = Place::Unschedulable(now);
        let lost = self.log.keys().next().is_some_and(|first| *first > first_unseen);
        let unseen: Vec<_> = self.log.range(first_unseen..).map(|(_, e)| e.clone()).collect();
        let helped = unseen.iter().any(|(event, object)| self.helps(profile, uid, *event, object));
        if failed || lost || helped {
            self.release(profile, uid, now);
        }
        self.trim_log();
    }

    /// Wakes the pods that this change may help.
    pub fn on_event(&mut self, profile: &Profile, event: ClusterEvent, object: &EventObject, now: Duration) {
        if !profile.listens_to(event) {
            return;
        }
        let waiting = self.pods.iter().filter(|(_, w)| matches!(w.place, Place::Unschedulable(_)));
        let uids: Vec<Uid> = waiting.map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            if self.helps(profile, &uid, event, object) {
                self.release(profile, &uid, now);
            }
        }
        if self.pods.values().any(|w| matches!(w.place, Place::InFlight(_))) {
            self.note(event, object.clone());
        }
    }

    fn note(&mut self, event: ClusterEvent, object: EventObject) {
        self.log.insert(self.next_event, (event, object));
        self.next_event += 1;
        if self.log.len() > MAX_EVENT_LOG {
            self.log.pop_first();
        }
    }

    fn trim_log(&mut self) {
        let needed = self.pods.values().filter_map(|w| match w.place {
            Place::InFlight(first) => Some(first),
            _ => None,
        });
        match needed.min() {
            None => self.log.clear(),
            Some(first) => self.log = self.log.split_off(&first),
        }
    }

    fn helps(&self, profile: &Profile, uid: &str, event: ClusterEvent, object: &EventObject) -> bool {
        let Some(waiting) = self.pods.get(uid) else { return false };
        let interests = waiting.plugins.iter().flat_map(|plugin| profile.interests_of(plugin));
        interests.filter(|i| i.event == event).any(|i| (i.hint)(&waiting.info.pod, object))
    }

    /// Moves a pod on: to the ready ones, or into its back-off if that has not passed.
    fn release(&mut self, profile: &Profile, uid: &str, now: Duration) {
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        let since = match waiting.place {
            Place::Unschedulable(since) => since,
            _ => now,
        };
        let due = since + backoff(waiting.attempts);
        if due <= now {
            return self.activate(profile, uid);
        }
        self.sequence += 1;
        waiting.place = Place::Backoff((due, self.sequence));
        self.backoff.insert((due, self.sequence), uid.into());
    }

    fn activate(&mut self, profile: &Profile, uid: &str) {
        let Some(waiting) = self.pods.get_mut(uid) else { return };
        let verdict = profile.points.pre_enqueue.iter().map(|p| (p.name(), p.pre_enqueue(&waiting.info.pod)));
        if let Some((plugin, _)) = { verdict }.find(|(_, status): &(_, Status)| !status.is_success()) {
            waiting.plugins = BTreeSet::from([plugin]);
            waiting.place = Place::Gated;
            return;
        }
        self.sequence += 1;
        let key = match &profile.points.queue_sort {
            Some(sort) => sort.key(&waiting.info, self.sequence),
            None => (0, self.sequence),
        };
        waiting.place = Place::Active(key);
        self.active.insert(key, uid.into());
    }

    fn unplace(&mut self, place: &Place) {
        match place {
            Place::Active(key) => {
                self.active.remove(key);
            }
            Place::Backoff(key) => {
                self.backoff.remove(key);
            }
            _ => {}
        }
    }

    fn flush(&mut self, profile: &Profile, now: Duration) {
        while let Some(entry) = self.backoff.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let uid = entry.remove();
            self.activate(profile, &uid);
        }
        let stale = self.pods.iter().filter(|(_, w)| match w.place {
            Place::Unschedulable(since) => since + MAX_UNSCHEDULABLE <= now,
            _ => false,
        });
        for uid in stale.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
            self.release(profile, &uid, now);
        }
    }
}

fn backoff(attempts: u32) -> Duration {
    if attempts == 0 {
        return Duration::ZERO;
    }
    INITIAL_BACKOFF.saturating_mul(1 << (attempts - 1).min(10)).min(MAX_BACKOFF)
}

/// Whether an update touches what scheduling looks at; a new status alone does not.
fn changed(old: &PodInfo, new: &PodInfo) -> bool {
    old.pod.spec != new.pod.spec || old.pod.meta().labels != new.pod.meta().labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{PodBuilder, node, pod};

    const T0: Duration = Duration::from_secs(1000);

    fn after(seconds: u64) -> Duration {
        T0 + Duration::from_secs(seconds)
    }

    fn profile() -> Profile {
        Profile::default_profile("default-scheduler")
    }

    fn queue_of(pods: Vec<PodBuilder>) -> Queue {
        let mut queue = Queue::default();
        pods.into_iter().for_each(|p| queue.set(&profile(), PodInfo::new(p.into()), T0));
        queue
    }

    fn pop(queue: &mut Queue, now: Duration) -> Option<String> {
        queue.pop(&profile(), now).map(|p| p.uid().to_owned())
    }

    #[test]
    fn higher_priority_first_then_arrival() {
        let mut queue = queue_of(vec![pod("a"), pod("b").priority(10), pod("c"), pod("d").priority(10)]);
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, T0)).collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
    }

    #[test]
    fn an_unschedulable_pod_waits_for_an_event_that_its_plugin_listens_to() {
        let mut queue = queue_of(vec![pod("a")]);
        pop(&mut queue, T0);
        queue.reject(&profile(), "a", BTreeSet::from(["NodeResourcesFit"]), T0);
        let label =
            EventObject::Node { old: Some(node("n").into()), new: Some(node("n").label("x", "y").into()) };
        queue.on_event(&profile(), ClusterEvent::NodeLabelUpdate, &label, after(5));
        assert_eq!(pop(&mut queue, after(5)), None);
        let gone = EventObject::Pod { old: Some(pod("z").into()), new: None };
        queue.on_event(&profile(), ClusterEvent::AssignedPodDelete, &gone, after(5));
        assert_eq!(pop(&mut queue, after(5)).as_deref(), Some("a"));
    }

    #[test]
    fn an_event_during_the_attempt_is_not_lost_and_backoff_holds() {
        let mut queue = queue_of(vec![pod("a")]);
        pop(&mut queue, T0);
        let new_node = EventObject::Node { old: None, new: Some(node("n").into()) };
        queue.on_event(&profile(), ClusterEvent::NodeAdd, &new_node, T0);
        queue.reject(&profile(), "a", BTreeSet::from(["NodeResourcesFit"]), T0);
        assert_eq!(pop(&mut queue, T0), None, "one second of back-off first");
        assert_eq!(queue.next_due(), Some(after(1)));
        assert_eq!(pop(&mut queue, after(1)).as_deref(), Some("a"));
    }

    #[test]
    fn a_pod_is_tried_again_after_five_minutes_whatever_happened() {
        let mut queue = queue_of(vec![pod("a")]);
        pop(&mut queue, T0);
        queue.reject(&profile(), "a", BTreeSet::from(["NodeName"]), T0);
        assert_eq!(pop(&mut queue, after(299)), None);
        assert_eq!(pop(&mut queue, after(300)).as_deref(), Some("a"));
    }

    #[test]
    fn gated_pods_enter_when_their_gates_are_gone() {
        let mut gated = pod("a").build();
        gated.spec.as_mut().unwrap().scheduling_gates =
            Some(vec![k8s_openapi::api::core::v1::PodSchedulingGate { name: "g".into() }]);
        let mut queue = Queue::default();
        queue.set(&profile(), PodInfo::new(gated.into()), T0);
        assert_eq!(pop(&mut queue, after(400)), None);
        queue.set(&profile(), PodInfo::new(pod("a").into()), after(401));
        assert_eq!(pop(&mut queue, after(401)).as_deref(), Some("a"));
    }

    #[test]
    fn a_removed_pod_does_not_come_back() {
        let mut queue = queue_of(vec![pod("a"), pod("b")]);
        queue.remove("a");
        assert_eq!(pop(&mut queue, T0).as_deref(), Some("b"));
        queue.remove("b");
        queue.reject(&profile(), "b", BTreeSet::new(), T0);
        assert_eq!(pop(&mut queue, after(100)), None);
        assert!(queue.pods.is_empty());
    }
}
