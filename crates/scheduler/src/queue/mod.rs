//! The queue of waiting pods: ready ones in order, those in back-off, and those that wait for an event.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/backend/queue`. The back-off is 1 s, doubled with each attempt, 10 s at
//! most; after five minutes an unschedulable pod is retried even without an event.

mod groups;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use groups::Waiters;
pub use groups::{Ended, PoppedGroup, Ready};

use crate::diagnosis::EXTENDER;
use crate::framework::{Changed, ClusterEvent, PodInfo, Profiles, Status};
use crate::metrics::{Metric, Metrics};

const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);
/// The number of events kept for pods in their cycle. A pod that has missed events is retried as if they had helped.
const MAX_EVENT_LOG: usize = 4096;

type Uid = Arc<str>;

#[derive(Debug, Clone, PartialEq)]
enum Place {
    /// Ready; the key in `active`.
    Active((i64, u64)),
    /// In back-off; the key in `backoff`.
    Backoff((Duration, u64)),
    /// Unschedulable; the key in `parked`, which begins with the time since when.
    Unschedulable((Duration, u64)),
    /// Gated by a PreEnqueue plugin.
    Gated,
    /// Popped; the key in `in_flight`, which begins with the number of the first event after it was popped.
    InFlight((u64, u64)),
    /// Waits as part of its group; its number there.
    Member(u64),
    /// Placed by its group's cycle; it is being bound.
    Placed,
}

struct Waiting {
    info: Arc<PodInfo>,
    attempts: u32,
    /// The time of the first attempt.
    first: Option<Duration>,
    /// The last retry was due to `MAX_UNSCHEDULABLE` and not to an event.
    flushed: bool,
    /// The plugins that rejected the pod last.
    plugins: BTreeSet<&'static str>,
    place: Place,
}

/// The back-off after an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(10) }
    }
}

impl Backoff {
    fn after(self, attempts: u32) -> Duration {
        match attempts {
            0 => Duration::ZERO,
            n => self.initial.saturating_mul(1 << (n - 1).min(10)).min(self.max),
        }
    }
}

/// The scheduling queue. Callers pass the time in, as the clock's monotonic reading.
#[derive(Default)]
pub struct Queue {
    pods: HashMap<Uid, Waiting>,
    active: BTreeMap<(i64, u64), Uid>,
    backoff: BTreeMap<(Duration, u64), Uid>,
    parked: BTreeMap<(Duration, u64), Uid>,
    in_flight: BTreeSet<(u64, u64)>,
    /// Unschedulable and gated pods by the plugins that rejected them.
    by_plugin: HashMap<&'static str, BTreeSet<Uid>>,
    sequence: u64,
    log: BTreeMap<u64, (ClusterEvent, Changed)>,
    next_event: u64,
    times: Backoff,
    /// The number of pods that entered a part of the queue, by part and event.
    incoming: BTreeMap<(&'static str, Cow<'static, str>), u64>,
    /// Like `incoming`, for single pods and groups; the third key is the type.
    incoming_entities: BTreeMap<(&'static str, Cow<'static, str>, &'static str), u64>,
    /// The metrics that the durations of hints are recorded in.
    metrics: Option<Arc<Metrics>>,
    /// The waiting groups, if gang scheduling is on.
    waiters: Option<Waiters>,
}

/// The scheduling history of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub attempts: u32,
    /// The time of the first attempt.
    pub first: Duration,
    /// The last retry was due to the five-minute limit and not to an event.
    pub flushed: bool,
}

const ADDED: &str = "UnscheduledPodAdd";
const FAILED: &str = "ScheduleAttemptFailure";
const BACKOFF_COMPLETE: &str = "BackoffComplete";
const TIMEOUT: &str = "UnschedulableTimeout";
const FORCED: &str = "ForceActivate";

impl Queue {
    /// Creates an empty queue for single pods.
    pub fn new(times: Backoff) -> Self {
        Self { times, ..Self::default() }
    }

    /// Starts recording the durations of plugins' hints.
    pub fn measure(&mut self, metrics: &Arc<Metrics>) {
        self.metrics = Some(Arc::clone(metrics));
    }

    /// The numbers of pods that are ready, in back-off, and neither.
    pub fn counts(&self) -> (usize, usize, usize) {
        let rest = self.pods.len() - self.active.len() - self.backoff.len() - self.in_flight.len();
        (self.active.len(), self.backoff.len(), rest)
    }

    /// Adds a new pod, or takes over an update of a waiting one; `events` describe the update.
    pub fn set(
        &mut self,
        profiles: &Profiles,
        info: PodInfo,
        events: &[ClusterEvent],
        change: &Changed,
        now: Duration,
    ) {
        let uid: Uid = Arc::from(info.uid());
        let info = Arc::new(info);
        let Some(waiting) = self.pods.get_mut(&uid) else {
            let waiting = Waiting {
                info,
                attempts: 0,
                first: None,
                flushed: false,
                plugins: BTreeSet::new(),
                place: Place::Gated,
            };
            let group = self.waiters.as_ref().and_then(|_| waiting.info.group());
            self.pods.insert(uid.clone(), waiting);
            return match group {
                Some(group) => self.join(profiles, &uid, &group),
                None => self.activate(profiles, &uid, ADDED.into()),
            };
        };
        waiting.info = info;
        match waiting.place {
            Place::Active(_) | Place::Backoff(_) | Place::Placed => {}
            Place::Gated | Place::Unschedulable(_) | Place::Member(_) => {
                if let Some(event) = events.iter().find(|e| self.helps(profiles, &uid, **e, change)) {
                    self.release(profiles, &uid, now, event.label());
                }
            }
            Place::InFlight(_) => events.iter().for_each(|event| self.note(*event, change.clone())),
        }
    }

    /// Removes a pod that was bound or deleted.
    pub fn remove(&mut self, uid: &str) {
        self.unplace(uid);
        self.pods.remove(uid);
        self.trim_log();
    }

    /// Returns a waiting pod.
    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|w| &w.info)
    }

    /// Pops the next ready pod.
    pub fn pop(&mut self, profiles: &Profiles, now: Duration) -> Option<Arc<PodInfo>> {
        self.flush(profiles, now);
        let (_, uid) = self.active.pop_first()?;
        self.sequence += 1;
        let key = (self.next_event, self.sequence);
        let waiting = self.pods.get_mut(&uid)?;
        waiting.attempts += 1;
        waiting.first.get_or_insert(now);
        waiting.place = Place::InFlight(key);
        self.in_flight.insert(key);
        Some(Arc::clone(&waiting.info))
    }

    /// Returns when the next pod is due by time (back-off, five-minute limit).
    pub fn next_due(&self) -> Option<Duration> {
        let groups = self.waiters.as_ref().and_then(Waiters::next_due);
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.parked.keys().next().map(|(since, _)| *since + MAX_UNSCHEDULABLE);
        stale.into_iter().chain(backoff).chain(groups).min()
    }

    /// Puts an unschedulable pod back into the queue. If `plugins` is empty (an error), the pod is retried after its
    /// back-off.
    pub fn reject(&mut self, profiles: &Profiles, uid: &str, plugins: BTreeSet<&'static str>, now: Duration) {
        let Some((uid, waiting)) = self.pods.get_key_value(uid) else { return };
        let (uid, place) = (uid.clone(), waiting.place.clone());
        if place == Place::Placed {
            return self.rejoin(&uid, now);
        }
        let Place::InFlight(key) = place else { return };
        let failed = plugins.is_empty();
        self.in_flight.remove(&key);
        self.park(&uid, plugins, now);
        let lost = self.log.keys().next().is_some_and(|first| *first > key.0);
        let unseen: Vec<_> = self.log.range(key.0..).map(|(_, e)| e.clone()).collect();
        let helped = unseen.iter().any(|(event, change)| self.helps(profiles, &uid, *event, change));
        if failed || lost || helped {
            self.release(profiles, &uid, now, FAILED.into());
        }
        self.trim_log();
    }

    /// Makes the pods ready that this change may help.
    pub fn on_event(&mut self, profiles: &Profiles, event: ClusterEvent, change: &Changed, now: Duration) {
        let mut candidates: BTreeSet<Uid> = BTreeSet::new();
        let mut heard = false;
        for plugin in profiles.iter().flat_map(|p| &p.points.all) {
            if plugin.interests().iter().any(|i| i.covers(event)) {
                heard = true;
                candidates.extend(self.by_plugin.get(plugin.name()).into_iter().flatten().cloned());
            }
        }
        // Extenders have no hints, so every event may help.
        candidates.extend(self.by_plugin.get(EXTENDER).into_iter().flatten().cloned());
        for uid in candidates {
            if self.helps(profiles, &uid, event, change) {
                self.release(profiles, &uid, now, event.label());
            }
        }
        if heard && !self.in_flight.is_empty() {
            self.note(event, change.clone());
        }
    }

    /// Retries these pods soon, whichever plugins rejected them.
    pub fn activate_all(&mut self, profiles: &Profiles, uids: &[Box<str>], now: Duration) {
        for uid in uids {
            if let Some((uid, waiting)) = self.pods.get_key_value(&**uid)
                && matches!(
                    waiting.place,
                    Place::Unschedulable(_) | Place::Gated | Place::Backoff(_) | Place::Member(_)
                )
            {
                let uid = uid.clone();
                self.release(profiles, &uid, now, FORCED.into());
            }
        }
    }

    fn note(&mut self, event: ClusterEvent, change: Changed) {
        self.log.insert(self.next_event, (event, change));
        self.next_event += 1;
        if self.log.len() > MAX_EVENT_LOG {
            self.log.pop_first();
        }
    }

    fn trim_log(&mut self) {
        match self.in_flight.first() {
            None => self.log.clear(),
            Some((first, _)) => {
                while self.log.first_key_value().is_some_and(|(number, _)| number < first) {
                    self.log.pop_first();
                }
            }
        }
    }

    fn helps(&self, profiles: &Profiles, uid: &str, event: ClusterEvent, change: &Changed) -> bool {
        let Some(waiting) = self.pods.get(uid) else { return false };
        let Some((_, profile)) = profiles.find(waiting.info.scheduler_name()) else { return false };
        if waiting.plugins.contains(EXTENDER) {
            return true;
        }
        let plugins = waiting.plugins.iter().filter_map(|name| profile.plugin(name));
        let mut listening = plugins.filter(|p| p.interests().iter().any(|i| i.covers(event)));
        listening.any(|plugin| {
            let Some(metrics) = &self.metrics else { return plugin.hint(&waiting.info, event, change) };
            let begun = metrics.now();
            let helps = plugin.hint(&waiting.info, event, change);
            let hint = if helps { "Queue" } else { "QueueSkip" };
            metrics.since(Metric::HintDuration, &[&event.label(), hint, plugin.name()], begun);
            helps
        })
    }

    /// Returns the numbers of events that are kept for popped pods, by label, and as `PodPopped` the number of these
    /// pods (metric `scheduler_inflight_events`).
    pub fn in_flight_events(&self) -> BTreeMap<Cow<'static, str>, usize> {
        let mut counts = BTreeMap::from([(Cow::from("PodPopped"), self.in_flight.len())]);
        for (event, _) in self.log.values() {
            *counts.entry(event.label()).or_default() += 1;
        }
        counts
    }

    /// Moves a pod to the ready ones, or into back-off if that has not passed yet.
    fn release(&mut self, profiles: &Profiles, uid: &Uid, now: Duration, event: Cow<'static, str>) {
        let Some(waiting) = self.pods.get(uid) else { return };
        let (attempts, place) = (waiting.attempts, waiting.place.clone());
        let since = match place {
            Place::Unschedulable((since, _)) => since,
            Place::Backoff(_) => return,
            Place::Gated => return self.activate(profiles, uid, event),
            Place::Member(_) => return self.release_group(profiles, uid, event),
            _ => now,
        };
        let due = since + self.times.after(attempts);
        if due <= now {
            return self.activate(profiles, uid, event);
        }
        self.came("backoff", event);
        self.unplace(uid);
        self.sequence += 1;
        let key = (due, self.sequence);
        self.backoff.insert(key, uid.clone());
        self.put(uid, Place::Backoff(key));
    }

    fn came(&mut self, queue: &'static str, event: Cow<'static, str>) {
        self.entity_came(queue, event.clone(), "pod");
        self.pods_came(queue, event, 1);
    }

    fn pods_came(&mut self, queue: &'static str, event: Cow<'static, str>, pods: usize) {
        *self.incoming.entry((queue, event)).or_insert(0) += pods as u64;
    }

    fn entity_came(&mut self, queue: &'static str, event: Cow<'static, str>, kind: &'static str) {
        *self.incoming_entities.entry((queue, event, kind)).or_insert(0) += 1;
    }

    /// Like [`Queue::take_incoming`], for single pods and groups; the third key is the type.
    pub fn take_incoming_entities(
        &mut self,
    ) -> BTreeMap<(&'static str, Cow<'static, str>, &'static str), u64> {
        std::mem::take(&mut self.incoming_entities)
    }

    /// The number of pods that entered a part of the queue since the last call, by part and event.
    pub fn take_incoming(&mut self) -> BTreeMap<(&'static str, Cow<'static, str>), u64> {
        std::mem::take(&mut self.incoming)
    }

    /// The history of a pod in its cycle.
    pub fn record(&self, uid: &str) -> Option<Record> {
        let waiting = self.pods.get(uid)?;
        Some(Record { attempts: waiting.attempts, first: waiting.first?, flushed: waiting.flushed })
    }

    /// The numbers of waiting pods by their place, labelled as in the metrics.
    pub fn pending(&self) -> [(&'static str, usize); 4] {
        let count = |wanted: fn(&Place) -> bool| self.pods.values().filter(|w| wanted(&w.place)).count();
        [
            ("active", self.active.len()),
            ("backoff", self.backoff.len()),
            ("unschedulable", self.parked.len()),
            ("gated", count(|place| *place == Place::Gated)),
        ]
    }

    /// The numbers of pods that wait because of a plugin, by plugin and scheduler name.
    pub fn unschedulable(&self) -> BTreeMap<(&'static str, &str), usize> {
        let mut counts = BTreeMap::new();
        for (plugin, uids) in &self.by_plugin {
            for waiting in uids.iter().filter_map(|uid| self.pods.get(uid)) {
                *counts.entry((*plugin, waiting.info.scheduler_name())).or_insert(0) += 1;
            }
        }
        counts
    }

    fn activate(&mut self, profiles: &Profiles, uid: &Uid, event: Cow<'static, str>) {
        self.unplace(uid);
        let Some(waiting) = self.pods.get(uid) else { return };
        let Some((_, profile)) = profiles.find(waiting.info.scheduler_name()) else { return };
        let mut verdicts =
            profile.points.pre_enqueue.iter().map(|p| (p.name(), p.pre_enqueue(&waiting.info)));
        if let Some((plugin, _)) = verdicts.find(|(_, status): &(_, Status)| !status.is_success()) {
            self.by_plugin.entry(plugin).or_default().insert(uid.clone());
            if let Some(waiting) = self.pods.get_mut(uid) {
                waiting.plugins = BTreeSet::from([plugin]);
                waiting.place = Place::Gated;
            }
            self.came("gated", event);
            return;
        }
        self.came("active", event);
        let Some(waiting) = self.pods.get(uid) else { return };
        self.sequence += 1;
        let key = match &profile.points.queue_sort {
            Some(sort) => sort.key(&waiting.info, self.sequence),
            None => (0, self.sequence),
        };
        self.active.insert(key, uid.clone());
        self.put(uid, Place::Active(key));
    }

    fn park(&mut self, uid: &Uid, plugins: BTreeSet<&'static str>, now: Duration) {
        self.sequence += 1;
        let key = (now, self.sequence);
        self.parked.insert(key, uid.clone());
        for plugin in &plugins {
            self.by_plugin.entry(plugin).or_default().insert(uid.clone());
        }
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.plugins = plugins;
            waiting.flushed = false;
            waiting.place = Place::Unschedulable(key);
        }
        self.came("unschedulable", FAILED.into());
    }

    fn put(&mut self, uid: &str, place: Place) {
        if let Some(waiting) = self.pods.get_mut(uid) {
            waiting.place = place;
        }
    }

    /// Removes the pod from every index.
    fn unplace(&mut self, uid: &str) {
        let Some(waiting) = self.pods.get(uid) else { return };
        match &waiting.place {
            Place::Active(key) => {
                self.active.remove(key);
            }
            Place::Backoff(key) => {
                self.backoff.remove(key);
            }
            Place::InFlight(key) => {
                self.in_flight.remove(key);
            }
            Place::Unschedulable(_) | Place::Gated => {
                if let Place::Unschedulable(key) = &waiting.place {
                    self.parked.remove(key);
                }
                for plugin in waiting.plugins.clone() {
                    self.forget_verdict(plugin, uid);
                }
            }
            Place::Member(number) => {
                let number = *number;
                self.leave(uid, number);
            }
            Place::Placed => {}
        }
    }

    /// Records that the pod no longer waits because of this plugin.
    fn forget_verdict(&mut self, plugin: &'static str, uid: &str) {
        if let Some(pods) = self.by_plugin.get_mut(plugin) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_plugin.remove(plugin);
            }
        }
    }

    fn flush(&mut self, profiles: &Profiles, now: Duration) {
        self.flush_groups(profiles, now);
        while let Some(entry) = self.backoff.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let uid = entry.remove();
            self.activate(profiles, &uid, BACKOFF_COMPLETE.into());
        }
        while let Some(entry) = self.parked.first_entry() {
            if entry.key().0 + MAX_UNSCHEDULABLE > now {
                break;
            }
            let uid = entry.remove();
            if let Some(waiting) = self.pods.get_mut(&uid) {
                waiting.flushed = true;
            }
            self.release(profiles, &uid, now, TIMEOUT.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{Action, Resource};
    use crate::plugins::testing::{PodBuilder, node, pod};
    use k8s_openapi::api::core::v1::{Node, Pod};

    const T0: Duration = Duration::from_secs(1000);

    fn after(seconds: u64) -> Duration {
        T0 + Duration::from_secs(seconds)
    }

    fn profile() -> Profiles {
        let catalog = std::sync::Arc::default();
        Profiles::new(vec![crate::plugins::default_profile("default-scheduler", &catalog).unwrap()])
    }

    fn node_event(actions: Action) -> ClusterEvent {
        ClusterEvent::new(Resource::Node, actions)
    }

    fn info(pod: PodBuilder) -> PodInfo {
        PodInfo::new(&pod.build())
    }

    fn queue_of(pods: Vec<PodBuilder>) -> Queue {
        let mut queue = Queue::default();
        pods.into_iter().for_each(|p| queue.set(&profile(), info(p), &[], &Changed::default(), T0));
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
        let label = Changed::of::<Node>(Some(node("n").into()), Some(node("n").label("x", "y").into()));
        queue.on_event(&profile(), node_event(Action::NODE_LABEL), &label, after(5));
        assert_eq!(pop(&mut queue, after(5)), None);
        let gone = Changed::of::<Pod>(Some(pod("z").into()), None);
        queue.on_event(&profile(), ClusterEvent::new(Resource::AssignedPod, Action::DELETE), &gone, after(5));
        assert_eq!(pop(&mut queue, after(5)).as_deref(), Some("a"));
    }

    #[test]
    fn an_event_during_the_attempt_is_not_lost_and_backoff_holds() {
        let mut queue = queue_of(vec![pod("a")]);
        pop(&mut queue, T0);
        let new_node = Changed::of::<Node>(None, Some(node("n").into()));
        queue.on_event(&profile(), node_event(Action::ADD), &new_node, T0);
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
        queue.set(&profile(), PodInfo::new(&gated), &[], &Changed::default(), T0);
        assert_eq!(pop(&mut queue, after(400)), None);
        let open = [ClusterEvent::new(Resource::TargetPod, Action::POD_GATES_ELIMINATED)];
        queue.set(&profile(), info(pod("a")), &open, &Changed::default(), after(401));
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

    #[test]
    fn every_index_is_empty_when_the_pods_are_gone() {
        let mut queue = queue_of(vec![pod("a"), pod("b"), pod("c"), pod("d")]);
        pop(&mut queue, T0);
        queue.reject(&profile(), "a", BTreeSet::from(["NodeResourcesFit"]), T0);
        pop(&mut queue, T0);
        queue.reject(&profile(), "b", BTreeSet::new(), T0);
        pop(&mut queue, T0);
        ["a", "b", "c", "d"].into_iter().for_each(|uid| queue.remove(uid));
        assert!(queue.active.is_empty() && queue.backoff.is_empty() && queue.parked.is_empty());
        assert!(queue.by_plugin.is_empty() && queue.in_flight.is_empty());
        assert_eq!(queue.next_due(), None);
    }

    mod in_groups {
        use super::*;
        use crate::config::Configuration;
        use crate::framework::Catalog;
        use crate::groups::Groups;
        use crate::plugins::testing::pod_group;
        use k8s_openapi::api::scheduling::v1beta1::PodGroup;
        use knarr_api::kind::ObjectKey;

        struct Lab {
            profiles: Profiles,
            groups: Arc<Groups>,
            queue: Queue,
        }

        impl Lab {
            fn new() -> Self {
                let catalog = Arc::<Catalog>::default();
                let config = Configuration { generic_workload: true, ..Configuration::default() };
                let groups = catalog.shared::<Groups>();
                Self {
                    profiles: config.profiles(&catalog).unwrap(),
                    queue: Queue::with_groups(Backoff::default(), Arc::clone(&groups)),
                    groups,
                }
            }

            fn add(&mut self, pod: PodBuilder) {
                let pod: Arc<Pod> = pod.into();
                self.groups.set_pod(&pod);
                let change = Changed::of(None, Some(Arc::clone(&pod)));
                self.queue.set(&self.profiles, PodInfo::new(&pod), &[], &change, T0);
                let came = ClusterEvent::new(Resource::UnscheduledPod, Action::ADD);
                self.queue.on_event(&self.profiles, came, &change, T0);
            }

            fn remove(&mut self, name: &str) {
                self.queue.remove(name);
                self.groups.remove_pod(name);
            }

            fn group(&mut self, old: Option<i32>, new: Option<i32>) {
                let group = |n| -> Arc<PodGroup> { pod_group("g", Some(n)).into() };
                match new {
                    Some(n) => self.groups.set_object(group(n)),
                    None => self.groups.remove_object(&key()),
                }
                self.queue.group_changed(&self.profiles, &key());
                let action = if old.is_some() { Action::UPDATE } else { Action::ADD };
                let change = Changed::of(old.map(group), new.map(group));
                self.queue.on_event(
                    &self.profiles,
                    ClusterEvent::new(Resource::PodGroup, action),
                    &change,
                    T0,
                );
            }

            /// The names of the next pods.
            fn next(&mut self, now: Duration) -> Vec<String> {
                let names = |pods: &[Arc<PodInfo>]| pods.iter().map(|p| p.name.to_string()).collect();
                match self.queue.next(&self.profiles, now) {
                    None => Vec::new(),
                    Some(Ready::Pod(pod)) => names(&[pod]),
                    Some(Ready::Group(group)) => names(&group.pods),
                }
            }

            fn finish(&mut self, placed: &[&str], ended: Ended, now: Duration) {
                let placed = placed.iter().map(|p| (*p).into()).collect();
                self.queue.finish_group(&self.profiles, &key(), &placed, ended, now);
            }
        }

        fn key() -> ObjectKey {
            ObjectKey::new("default", "g")
        }

        fn member(name: &str) -> PodBuilder {
            pod(name).group("g")
        }

        #[test]
        fn a_gang_waits_for_its_group_and_its_pods() {
            let mut lab = Lab::new();
            lab.add(member("a"));
            lab.add(member("b"));
            assert!(lab.next(T0).is_empty(), "there is no group yet");
            lab.group(None, Some(3));
            assert!(lab.next(T0).is_empty(), "one pod is missing");
            lab.add(pod("single"));
            assert_eq!(lab.next(T0), ["single"]);
            lab.add(member("c"));
            assert_eq!(lab.next(T0), ["a", "b", "c"]);
            assert!(lab.next(T0).is_empty());
        }

        #[test]
        fn a_smaller_gang_is_complete_sooner() {
            let mut lab = Lab::new();
            lab.group(None, Some(3));
            lab.add(member("a"));
            assert!(lab.next(T0).is_empty());
            lab.group(Some(3), Some(1));
            assert_eq!(lab.next(T0), ["a"]);
        }

        #[test]
        fn a_group_that_was_turned_down_comes_again_after_its_back_off() {
            let mut lab = Lab::new();
            lab.group(None, Some(2));
            lab.add(member("a"));
            lab.add(member("b"));
            assert_eq!(lab.next(T0).len(), 2);
            lab.finish(&[], Ended::Rejected, T0);
            lab.add(member("c"));
            assert!(lab.next(T0).is_empty());
            assert_eq!(lab.queue.next_due(), Some(after(1)));
            assert_eq!(lab.next(after(1)), ["a", "b", "c"]);
            lab.finish(&[], Ended::Failed, after(1));
            assert_eq!(lab.queue.next_due(), Some(after(3)), "twice as long");
            assert_eq!(lab.next(after(3)).len(), 3);
            lab.finish(&["a", "b"], Ended::Scheduled, after(3));
            assert_eq!(lab.next(after(3)), ["c"], "the rest comes at once");
            lab.finish(&["c"], Ended::Scheduled, after(3));
            ["a", "b"].iter().for_each(|name| lab.remove(name));
            lab.queue.reject(&lab.profiles, "c", BTreeSet::new(), after(3));
            assert!(lab.next(after(3)).is_empty(), "its binding failed");
            lab.group(Some(2), Some(1));
            assert_eq!(lab.next(after(60)), ["c"]);
        }

        #[test]
        fn one_pod_that_is_held_back_holds_back_the_others() {
            let mut lab = Lab::new();
            lab.group(None, Some(2));
            lab.add(member("a"));
            let mut gated = member("b").build();
            gated.spec.as_mut().unwrap().scheduling_gates =
                Some(vec![k8s_openapi::api::core::v1::PodSchedulingGate { name: "x".into() }]);
            lab.add(gated.into());
            assert!(lab.next(after(600)).is_empty());
            let open = [ClusterEvent::new(Resource::TargetPod, Action::POD_GATES_ELIMINATED)];
            let info = PodInfo::new(&member("b").build());
            lab.queue.set(&lab.profiles, info, &open, &Changed::default(), T0);
            assert_eq!(lab.next(T0), ["a", "b"]);
        }

        #[test]
        fn importance_decides_between_groups_and_pods() {
            let mut lab = Lab::new();
            lab.group(None, Some(1));
            lab.add(pod("first"));
            lab.add(member("a").priority(5));
            lab.add(pod("urgent").priority(9));
            let order: Vec<_> = (0..3).flat_map(|_| lab.next(T0)).collect();
            assert_eq!(order, ["urgent", "a", "first"]);
        }

        #[test]
        fn nothing_is_left_of_groups_that_are_gone() {
            let mut lab = Lab::new();
            for name in ["a", "b"] {
                lab.add(member(name));
            }
            lab.group(None, Some(2));
            lab.group(Some(2), None);
            assert!(lab.next(T0).is_empty());
            lab.group(None, Some(3));
            assert_eq!(lab.queue.groups_pending().unwrap()[2], ("gated", 1, 2));
            ["a", "b"].iter().for_each(|name| lab.remove(name));
            assert!(lab.queue.groups_pending().unwrap().iter().all(|(_, groups, pods)| groups + pods == 0));
            assert!(lab.queue.by_plugin.is_empty() && lab.queue.pods.is_empty());
            assert_eq!(lab.queue.next_due(), None);
        }
    }
}
