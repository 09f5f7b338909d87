//! The scheduling cycle of a pod group: its pods get nodes one after the other, each counted before the next one is
//! placed. Then either all of them are bound, or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::scheduling::v1beta1::PodGroup;

use crate::binding::{Bound, Preemptor};
use crate::diagnosis::Diagnosis;
use crate::framework::{Code, CycleState, GroupAttempt, GroupRoom, PodInfo, Profile, Progress, Status};
use crate::group_condition::Report;
use crate::group_trial::OnTrial;
use crate::groups::{Terms, priority};
use crate::metrics::{Metric, code_name};
use crate::plugins::default_preemption;
use crate::queue::{Ended, PoppedGroup};
use crate::schedule_one::Outcome;
use crate::scheduler::{Next, Nomination, Scheduler, State};
use crate::snapshot::Snapshot;

/// The message of an unschedulable group when there is no other reason.
pub(crate) const UNSCHEDULABLE: &str = "pod group is unschedulable";

/// The result for one pod of the group.
pub(crate) enum Found {
    Placed {
        node: String,
        state: CycleState,
    },
    NoFit(Box<Diagnosis>),
    /// A plugin refused in Reserve.
    Refused(&'static str, Status),
    Failed(String),
    /// The result of the group was clear before this pod's turn.
    NotTried,
}

/// The result for the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fits,
    /// Unschedulable at present, for these reasons.
    Unschedulable(Vec<String>),
    Failed(String),
}

impl Verdict {
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Fits => String::new(),
            Self::Unschedulable(reasons) => reasons.join(", "),
            Self::Failed(why) => why.clone(),
        }
    }

    fn ended(&self) -> Ended {
        match self {
            Self::Fits => Ended::Scheduled,
            Self::Unschedulable(_) => Ended::Rejected,
            Self::Failed(_) => Ended::Failed,
        }
    }
}

/// A scheduling attempt of a pod group.
pub(crate) struct Attempted<'a> {
    pub at: usize,
    pub profile: &'a Profile,
    pub group: &'a Arc<PodGroup>,
    pub pods: &'a [Arc<PodInfo>],
    /// The number of the group's pods that have a node already.
    pub scheduled: usize,
    /// Whether other pods may be preempted for the group.
    pub makes_room: bool,
}

/// A group from the queue that is ready for its cycle.
pub(crate) struct Prepared {
    pub group: Arc<PodGroup>,
    pub pods: Vec<Arc<PodInfo>>,
    pub scheduled: usize,
    /// Set when the group must not be scheduled: the error.
    pub wrong: Option<String>,
}

/// The state of placing a group pod by pod.
pub(crate) struct Placing {
    progress: Progress,
    found: Vec<Found>,
    status: Status,
    failed: Option<String>,
}

impl Placing {
    pub(crate) fn begin(attempted: &Attempted) -> Self {
        let progress = Progress { scheduled: attempted.scheduled, remaining: attempted.pods.len() };
        let status = feasible(attempted.profile, attempted.group, progress);
        Self { progress, found: Vec::with_capacity(attempted.pods.len()), status, failed: None }
    }

    /// Returns whether the next pod must be placed.
    pub(crate) fn goes_on(&self) -> bool {
        self.failed.is_none() && matches!(self.status.code, Code::Success | Code::Wait)
    }

    /// Records the result of the next pod.
    pub(crate) fn took(&mut self, attempted: &Attempted, one: Found) {
        self.progress.remaining -= 1;
        match &one {
            Found::Placed { .. } => self.progress.scheduled += 1,
            Found::Failed(why) => {
                self.failed = Some(format!("failed to schedule other pod from a pod group: {why}"));
            }
            Found::NoFit(_) | Found::Refused(..) | Found::NotTried => {}
        }
        self.found.push(one);
        if self.failed.is_none() {
            self.status = feasible(attempted.profile, attempted.group, self.progress);
        }
    }

    fn verdict(&self) -> Verdict {
        let any = self.found.iter().any(|one| matches!(one, Found::Placed { .. }));
        match (&self.failed, self.status.code) {
            (Some(why), _) => Verdict::Failed(why.clone()),
            (None, Code::Success) if any => Verdict::Fits,
            (None, Code::Success) => Verdict::Unschedulable(vec![UNSCHEDULABLE.to_owned()]),
            (None, Code::Error) => Verdict::Failed(format!(
                "failed to evaluate placement feasibility: {}",
                self.status.message()
            )),
            (None, code) => {
                // `UNSCHEDULABLE` comes first when the result was clear before the first pod, or only after the last
                // one.
                let first = self.found.is_empty() || code == Code::Wait;
                let first = first.then(|| UNSCHEDULABLE.to_owned());
                Verdict::Unschedulable(first.into_iter().chain(reasons_of(&self.status)).collect())
            }
        }
    }
}

/// Checks the fields that all pods of a group must share with the group and with each other. Returns the first
/// violation.
fn disagreement(group: &PodGroup, pods: &[Arc<PodInfo>], scheduled: &[Arc<Terms>]) -> Option<String> {
    let waiting: Vec<Arc<Terms>> = pods.iter().map(|p| Arc::new(Terms::of(p.pod()))).collect();
    let first = waiting.first()?;
    let wanted = priority(group);
    waiting.iter().chain(scheduled).find_map(|terms| {
        let (name, expected) = (&terms.scheduler_name, &first.scheduler_name);
        if name != expected {
            return Some(format!(
                "all pods in a single pod group should have the same .spec.schedulerName set, got: {name:?} and {expected:?}"
            ));
        }
        if terms.priority != wanted {
            return Some(format!(
                "all pods in a single pod group should have the same priority as the pod group's priority, got {} and {wanted}",
                terms.priority
            ));
        }
        let (policy, expected) = (&terms.preemption_policy, &first.preemption_policy);
        (policy != expected).then(|| {
            format!("all pods in a single pod group should have the same preemption policy, got {policy} and {expected}")
        })
    })
}

/// Asks the PlacementFeasible plugins whether enough pods of the group have, or can get, a node.
pub(crate) fn feasible(profile: &Profile, group: &PodGroup, progress: Progress) -> Status {
    let mut result = Status::SUCCESS;
    for plugin in &profile.points.placement_feasible {
        let status = plugin.placement_feasible(group, progress);
        match status.code {
            Code::Success => {}
            Code::Wait => result = status,
            Code::Unschedulable => return status,
            _ => {
                let why = format!("running PlacementFeasible plugin: {}", status.message());
                return Status::error(why);
            }
        }
    }
    result
}

fn reasons_of(status: &Status) -> Vec<String> {
    status.reasons.iter().map(|r| r.clone().into_owned()).collect()
}

impl Scheduler {
    /// Runs one scheduling cycle of a group. Returns the next steps for its pods and for the group's status.
    pub(crate) fn schedule_group(
        &self,
        state: &mut State,
        popped: PoppedGroup,
        begun: Duration,
    ) -> Vec<Next> {
        if popped.pods.iter().any(|p| self.extenders.decide_on(p)) {
            return vec![Next::ExtendGroup(Box::new(popped))];
        }
        let begun = self.now().max(begun);
        let Some(prepared) = self.prepare_group(state, popped) else { return Vec::new() };
        let Some(attempted) = self.attempt(&prepared, true) else { return Vec::new() };
        let (found, verdict) = match prepared.wrong.clone() {
            Some(why) => (Vec::new(), Verdict::Failed(why)),
            None => self.place_group(state, &attempted),
        };
        self.metrics.since(Metric::GroupAlgorithmDuration, &[], begun);
        self.conclude_group(state, &attempted, found, verdict, begun)
    }

    /// Returns the group with its pods that must still be placed; `None` when there are none.
    pub(crate) fn prepare_group(&self, state: &mut State, popped: PoppedGroup) -> Option<Prepared> {
        let PoppedGroup { key, pods } = popped;
        let groups = state.cache.groups().cloned();
        let Some((groups, group)) = groups.and_then(|g| g.object(&key).map(|object| (g, object))) else {
            state.queue.finish_group(&self.profiles, &key, &BTreeSet::new(), Ended::Failed, self.now());
            return None;
        };
        let (pods, stale): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|p| !p.leaving && !state.cache.is_assumed(p.uid()));
        stale.iter().for_each(|pod| state.queue.remove(pod.uid()));
        if pods.first().and_then(|p| self.profiles.find(p.scheduler_name())).is_none() {
            state.queue.finish_group(&self.profiles, &key, &BTreeSet::new(), Ended::Scheduled, self.now());
            return None;
        }
        let wrong = disagreement(&group, &pods, &groups.terms_of_scheduled(&key));
        Some(Prepared { group, pods, scheduled: groups.counts(&key).1, wrong })
    }

    pub(crate) fn attempt<'a>(&'a self, prepared: &'a Prepared, makes_room: bool) -> Option<Attempted<'a>> {
        let Prepared { group, pods, scheduled, .. } = prepared;
        let (at, profile) = self.profiles.find(pods.first()?.scheduler_name())?;
        Some(Attempted { at, profile, group, pods, scheduled: *scheduled, makes_room })
    }

    /// Finds nodes for the pods. Undoes all placements when too few of them fit.
    pub(crate) fn place_group<G: Ground>(
        &self,
        ground: &mut G,
        attempted: &Attempted,
    ) -> (Vec<Found>, Verdict) {
        let mut placing = Placing::begin(attempted);
        for pod in attempted.pods {
            if !placing.goes_on() {
                break;
            }
            let one = self.place_member(ground, attempted, pod);
            placing.took(attempted, one);
        }
        self.end_placing(ground, attempted, placing)
    }

    /// Ends the placement with a verdict. Undoes all placements when too few pods fit.
    pub(crate) fn end_placing<G: Ground>(
        &self,
        ground: &mut G,
        attempted: &Attempted,
        placing: Placing,
    ) -> (Vec<Found>, Verdict) {
        let verdict = placing.verdict();
        let mut found = placing.found;
        if verdict != Verdict::Fits {
            for (pod, one) in attempted.pods.iter().zip(&mut found).rev() {
                if let Found::Placed { node, state: notes } = one {
                    self.unreserve(attempted.profile, notes, pod, node);
                    ground.take_back(pod, node);
                }
            }
        }
        found.resize_with(attempted.pods.len(), || Found::NotTried);
        (found, verdict)
    }

    pub(crate) fn place_member<G: Ground>(
        &self,
        ground: &mut G,
        attempted: &Attempted,
        pod: &Arc<PodInfo>,
    ) -> Found {
        let begun = self.now();
        let outcome = ground.find(attempted, pod);
        self.metrics.since(Metric::AlgorithmDuration, &[], begun);
        let node = match outcome {
            Outcome::Placed(node) => ground.cluster().row(node).name().to_owned(),
            Outcome::NoFit(diagnosis) => return Found::NoFit(diagnosis),
            Outcome::Failed(why) => return Found::Failed(why),
        };
        self.settle(ground, attempted, pod, node)
    }

    /// Adds the pod to the node and runs Reserve.
    pub(crate) fn settle<G: Ground>(
        &self,
        ground: &mut G,
        attempted: &Attempted,
        pod: &Arc<PodInfo>,
        node: String,
    ) -> Found {
        ground.put(pod, &node);
        let (profile, mut notes) = (attempted.profile, CycleState::new(self.metrics.samples()));
        let refused = self.run_reserve(ground.cluster(), profile, &mut notes, pod, &node);
        let Some((plugin, status)) = refused else { return Found::Placed { node, state: notes } };
        self.unreserve(profile, &mut notes, pod, &node);
        ground.take_back(pod, &node);
        if status.is_rejected() { Found::Refused(plugin, status) } else { Found::Failed(status.message()) }
    }

    /// Runs the PodGroupPostFilter plugins to find victims for the group, and adds their messages to `reasons`. Returns
    /// the room they found: victims, and the node of each pod by uid.
    fn group_room(
        &self,
        state: &State,
        attempted: &Attempted,
        reasons: &mut Vec<String>,
    ) -> Result<Option<GroupRoom>, String> {
        let Attempted { profile, group, pods, .. } = *attempted;
        let begun = self.now();
        let mut messages: Vec<String> = Vec::new();
        let mut found = None;
        let mut code = Code::Unschedulable;
        for plugin in &profile.points.pod_group_post_filter {
            let mut trial = OnTrial::new(self, attempted, state.cache.snapshot());
            let answer = plugin.pod_group_post_filter(&GroupAttempt { group, pods }, &mut trial);
            code = answer.as_ref().map_or_else(|status| status.code, |_| Code::Success);
            if plugin.name() == default_preemption::NAME {
                self.metrics.add(Metric::GroupPreemptionAttempts, &[code_name(code)], 1.0);
                // An attempt that found earlier preemption still in progress did not search.
                if answer.as_ref().map_or(true, |room| !room.victims.is_empty()) {
                    let labels = ["podgroup", code_name(code)];
                    self.metrics.since(Metric::PreemptionEvaluation, &labels, begun);
                }
            }
            match answer {
                Ok(room) => {
                    messages = vec![room.words.clone()];
                    found = Some(room);
                    break;
                }
                Err(status) if status.code == Code::Unschedulable => messages.extend(reasons_of(&status)),
                Err(status) if status.code == Code::UnschedulableAndUnresolvable => {
                    messages = reasons_of(&status);
                    break;
                }
                Err(status) => {
                    let (plugin, why) = (plugin.name(), status.message());
                    return Err(format!("error in {plugin:?} PodGroupPostFilter plugins: {why}"));
                }
            }
        }
        self.metrics.point("PodGroupPostFilter", &profile.scheduler_name, code, begun);
        reasons.push(messages.join(", "));
        Ok(found)
    }

    /// Records the nominations of the group's pods. Returns their nodes, and the eviction of the victims if there are
    /// any.
    fn take_group_room(
        &self,
        state: &mut State,
        attempted: &Attempted,
        room: GroupRoom,
    ) -> (Nodes, Option<Next>) {
        for pod in attempted.pods {
            if let Some(node) = room.nodes.get(&pod.uid) {
                state.cache.nominate(pod, Some(node));
            }
        }
        if room.victims.is_empty() {
            return (room.nodes, None);
        }
        self.metrics.record(Metric::GroupPreemptionVictims, &[], room.victims.len() as f64);
        if room.disruptions > 0 {
            self.metrics.record(Metric::GroupDisruptions, &["podgroup"], room.disruptions as f64);
        }
        if room.violations > 0 {
            self.metrics.add(Metric::PreemptionViolations, &["podgroup"], room.violations as f64);
        }
        let preemptor = Preemptor {
            scheduler_name: attempted.profile.scheduler_name.clone(),
            kind: "podgroup",
            uid: attempted.group.metadata.uid.clone().unwrap_or_default(),
        };
        (room.nodes, Some(Next::Evict(preemptor, room.victims)))
    }

    /// Hands placed pods on to binding, and returns those without a node to the queue.
    pub(crate) fn conclude_group(
        &self,
        state: &mut State,
        attempted: &Attempted,
        mut found: Vec<Found>,
        mut verdict: Verdict,
        begun: Duration,
    ) -> Vec<Next> {
        let Attempted { profile, group, pods, .. } = *attempted;
        found.resize_with(pods.len(), || Found::NotTried);
        let ended = verdict.ended();
        // Pods that were not tried get the message without the result of preemption.
        let short = verdict.message();
        let (mut nodes, mut eviction) = (None, None);
        if let Verdict::Unschedulable(reasons) = &mut verdict
            && attempted.makes_room
        {
            match self.group_room(state, attempted, reasons) {
                Ok(None) => {}
                Ok(Some(room)) => {
                    let (places, next) = self.take_group_room(state, attempted, room);
                    (nodes, eviction) = (Some(places), next);
                }
                Err(why) => verdict = Verdict::Failed(why),
            }
        }
        let (result, status, reason) = match &verdict {
            Verdict::Fits => ("scheduled", "True", "Scheduled"),
            Verdict::Unschedulable(_) if nodes.is_some() => {
                ("waiting_on_preemption", "False", "Unschedulable")
            }
            Verdict::Unschedulable(_) => ("unschedulable", "False", "Unschedulable"),
            Verdict::Failed(_) => ("error", "False", "SchedulerError"),
        };
        let mut placed = BTreeSet::new();
        let mut next = Vec::with_capacity(pods.len() + 2);
        let outcome = GroupOutcome { verdict: &verdict, short: &short, nodes: nodes.as_ref() };
        for (pod, one) in pods.iter().zip(found) {
            let one = self.conclude_member(state, profile, pod, one, &outcome, begun);
            if matches!(one, Next::Bind(_)) {
                placed.insert(pod.uid.clone());
            }
            self.count(profile, one.result(), begun);
            next.push(one);
        }
        let key = knarr_api::kind::Kind::key(&**group);
        state.queue.finish_group(&self.profiles, &key, &placed, ended, self.now());
        let labels = [profile.scheduler_name.as_str(), result];
        self.metrics.add(Metric::GroupAttempts, &labels, 1.0);
        self.metrics.since(Metric::GroupAttemptDuration, &labels, begun);
        let message = verdict.message();
        next.extend(eviction);
        next.push(Next::Report(Box::new(Report { group: Arc::clone(group), status, reason, message })));
        next
    }

    fn conclude_member(
        &self,
        state: &mut State,
        profile: &Profile,
        pod: &Arc<PodInfo>,
        found: Found,
        outcome: &GroupOutcome,
        begun: Duration,
    ) -> Next {
        let down = |plugins, reason, message, nomination| Next::TurnDown {
            pod: Arc::clone(pod),
            plugins,
            reason,
            message,
            nomination,
        };
        let no_plugins = BTreeSet::new;
        // A nomination from preemption stays; an earlier one is withdrawn.
        let place = outcome.nodes.and_then(|nodes| nodes.get(&pod.uid));
        let mut withdraw = || match place {
            Some(node) => nominate(pod, node),
            None if outcome.nodes.is_some() => Nomination::Keep,
            None => {
                state.cache.nominate(pod, None);
                Nomination::none(pod)
            }
        };
        let keep = || place.map_or(Nomination::Keep, |node| nominate(pod, node));
        match (found, outcome.verdict) {
            (Found::Failed(why), _) => down(no_plugins(), "SchedulerError", why, withdraw()),
            (_, Verdict::Failed(why)) => down(no_plugins(), "SchedulerError", why.clone(), withdraw()),
            (Found::Placed { node, state: notes }, Verdict::Fits) => {
                let bound =
                    Bound { pod: Arc::clone(pod), node, state: notes, permit: None, begun, nominated: None };
                self.permit(&mut state.cache, profile, bound, None)
            }
            (Found::Placed { .. }, verdict) => {
                let reasons = verdict.message();
                let message =
                    if outcome.nodes.is_some() { reasons } else { format!("{UNSCHEDULABLE}, {reasons}") };
                down(no_plugins(), "Unschedulable", message, withdraw())
            }
            (Found::NotTried, _) => down(no_plugins(), "Unschedulable", outcome.short.to_owned(), keep()),
            (Found::NoFit(diagnosis), _) => self.no_fit(profile, Arc::clone(pod), *diagnosis, keep()),
            (Found::Refused(plugin, status), _) => {
                down(BTreeSet::from([plugin]), "Unschedulable", status.message(), withdraw())
            }
        }
    }
}

/// The nodes of a group's pods, by the pods' uids.
type Nodes = BTreeMap<Box<str>, Box<str>>;

/// What the messages and nominations of the group's pods are made from.
struct GroupOutcome<'a> {
    verdict: &'a Verdict,
    /// The verdict's message before preemption was tried.
    short: &'a str,
    /// The nodes where preemption makes room for them.
    nodes: Option<&'a Nodes>,
}

/// The cluster that a group is placed on: the real one, or a copy.
pub(crate) trait Ground {
    fn cluster(&self) -> &Snapshot;

    fn find(&mut self, attempted: &Attempted, pod: &PodInfo) -> Outcome;

    /// Adds the pod to the node.
    fn put(&mut self, pod: &PodInfo, node: &str);

    /// Removes the pod from the node again, and restores an earlier nomination.
    fn take_back(&mut self, pod: &PodInfo, node: &str);
}

impl Ground for State {
    fn cluster(&self) -> &Snapshot {
        self.cache.snapshot()
    }

    fn find(&mut self, attempted: &Attempted, pod: &PodInfo) -> Outcome {
        self.cycles.schedule(attempted.at, attempted.profile, self.cache.snapshot(), pod)
    }

    fn put(&mut self, pod: &PodInfo, node: &str) {
        self.cache.assume(pod, node);
        self.cache.nominate(pod, None);
    }

    fn take_back(&mut self, pod: &PodInfo, _: &str) {
        self.cache.forget(pod.uid());
        if let Some(node) = &pod.nominated_node {
            self.cache.nominate(pod, Some(node));
        }
    }
}

fn nominate(pod: &PodInfo, node: &str) -> Nomination {
    if pod.nominated_node.as_deref() == Some(node) { Nomination::Keep } else { Nomination::Set(node.into()) }
}
