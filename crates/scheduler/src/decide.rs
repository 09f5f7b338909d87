//! Turns the outcome of a cycle into the next step: reserve and bind, preempt, or mark the pod unschedulable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::binding::Bound;
use crate::cache::Cache;
use crate::diagnosis::Diagnosis;
use crate::framework::rooms::make_room;
use crate::framework::{Attempt, Code, CycleState, NoRoom, PodInfo, PostFilter, Profile, Room, Status};
use crate::metrics::{Metric, code_name};
use crate::schedule_one::Outcome;
use crate::scheduler::{Eviction, Next, Nomination, Scheduler, State};
use crate::snapshot::{NodeIdx, Snapshot};

/// The preemption candidates, with the plugin that found them.
pub(crate) type Rooms = Result<(Arc<dyn PostFilter>, Vec<Room>), Option<NoRoom>>;

impl Scheduler {
    /// Runs the scheduling cycle of a pod, up to the point where something outside the process must be called.
    pub(crate) fn schedule_pod(&self, state: &mut State, pod: Arc<PodInfo>, begun: Duration) -> Next {
        let known = self.profiles.find(pod.scheduler_name());
        let Some((at, profile)) = known.filter(|_| !pod.leaving && !state.cache.is_assumed(pod.uid())) else {
            state.queue.remove(pod.uid());
            return Next::Nothing;
        };
        if self.extenders.decide_on(&pod) {
            return Next::Extend(pod);
        }
        let begun = self.now().max(begun);
        let outcome = state.cycles.schedule(at, profile, state.cache.snapshot(), &pod);
        self.metrics.since(Metric::AlgorithmDuration, &[], begun);
        let next = match outcome {
            Outcome::Placed(node) => self.place(&mut state.cache, profile, pod, node, begun),
            Outcome::NoFit(mut diagnosis) => {
                let rooms = self.rooms(state, at, profile, &pod, &diagnosis);
                let room = self.take_room(state, &pod, &mut diagnosis, rooms);
                self.no_fit(profile, pod, *diagnosis, room)
            }
            Outcome::Failed(message) => Self::failed(pod, message),
        };
        self.count(profile, next.result(), begun);
        next
    }

    /// Records the result and the duration of an attempt.
    pub(crate) fn count(&self, profile: &Profile, result: Option<&str>, begun: Duration) {
        if let Some(result) = result {
            let labels = [profile.scheduler_name.as_str(), result];
            self.metrics.add(Metric::Attempts, &labels, 1.0);
            self.metrics.since(Metric::AttemptDuration, &labels, begun);
        }
    }

    /// Ends the attempt with an error: the pod is retried after its back-off.
    pub(crate) fn failed(pod: Arc<PodInfo>, message: String) -> Next {
        let nomination = Nomination::none(&pod);
        Next::TurnDown { pod, plugins: BTreeSet::new(), reason: "SchedulerError", message, nomination }
    }

    /// Assumes the pod on the node and reserves what it needs there.
    pub(crate) fn place(
        &self,
        cache: &mut Cache,
        profile: &Profile,
        pod: Arc<PodInfo>,
        node: NodeIdx,
        begun: Duration,
    ) -> Next {
        let node = cache.snapshot().row(node).name().to_owned();
        cache.assume(&pod, &node);
        cache.nominate(&pod, None);
        self.reserve(cache, profile, pod, node, begun)
    }

    /// Runs the PostFilter plugins to find nodes where preemption would make the pod fit.
    pub(crate) fn rooms(
        &self,
        state: &State,
        at: usize,
        profile: &Profile,
        pod: &PodInfo,
        diagnosis: &Diagnosis,
    ) -> Rooms {
        let work = state.cycles.work(at, pod.shape.id).filter(|_| diagnosis.nodes > 0).ok_or(None)?;
        let attempt = Attempt { cluster: state.cache.snapshot(), pod, work, diagnosis };
        let begun = self.now();
        let rooms = make_room(profile, &attempt);
        self.metrics.add(Metric::PreemptionAttempts, &[], 1.0);
        let code = if rooms.is_ok() { Code::Success } else { Code::Unschedulable };
        self.metrics.point("PostFilter", &profile.scheduler_name, code, begun);
        self.metrics.since(Metric::PreemptionEvaluation, &["pod", code_name(code)], begun);
        rooms.map(|(plugin, rooms)| (Arc::clone(plugin), rooms))
    }

    /// Nominates the pod to the best candidate, or withdraws an earlier nomination.
    pub(crate) fn take_room(
        &self,
        state: &mut State,
        pod: &PodInfo,
        diagnosis: &mut Diagnosis,
        rooms: Rooms,
    ) -> Nomination {
        let cache = &mut state.cache;
        let withdraw = match rooms {
            Ok((_, rooms)) => {
                if let Some(room) = rooms.into_iter().next() {
                    diagnosis.post_filter = Some(room.words(cache.snapshot()));
                    let node = cache.snapshot().row(room.node).name().to_owned();
                    let freed = cache.clear_lower_nominations(pod, &node);
                    cache.nominate(pod, Some(&node));
                    self.metrics.record(Metric::PreemptionVictims, &[], room.victims.len() as f64);
                    if room.violations > 0 {
                        self.metrics.add(Metric::PreemptionViolations, &["pod"], room.violations as f64);
                    }
                    return Nomination::Make(Box::new(Eviction { node, victims: room.victims, freed }));
                }
                false
            }
            Err(None) => diagnosis.nodes == 0 && pod.nominated_node.is_some(),
            Err(Some(none)) => {
                diagnosis.post_filter = Some(none.words).filter(|words| !words.is_empty());
                none.withdraw && pod.nominated_node.is_some()
            }
        };
        if withdraw {
            cache.nominate(pod, None);
            return Nomination::Withdraw;
        }
        Nomination::Keep
    }

    /// Marks the pod unschedulable, with the diagnosis as the message.
    pub(crate) fn no_fit(
        &self,
        profile: &Profile,
        pod: Arc<PodInfo>,
        diagnosis: Diagnosis,
        nomination: Nomination,
    ) -> Next {
        let message = diagnosis.message();
        let plugins = if diagnosis.nodes == 0 {
            // Any new node may help, and every plugin is interested in new nodes.
            profile.points.all.iter().map(|p| p.name()).collect()
        } else {
            diagnosis.plugins
        };
        Next::TurnDown { pod, plugins, reason: "Unschedulable", message, nomination }
    }

    /// Runs Reserve and Permit for the assumed pod. Takes everything back when a plugin refuses.
    fn reserve(
        &self,
        cache: &mut Cache,
        profile: &Profile,
        pod: Arc<PodInfo>,
        node: String,
        begun: Duration,
    ) -> Next {
        let mut state = CycleState::new(self.metrics.samples());
        let failed = self.run_reserve(cache.snapshot(), profile, &mut state, &pod, &node);
        let bound = Bound { pod, node, state, permit: None, begun, nominated: None };
        self.permit(cache, profile, bound, failed)
    }

    /// Runs Permit, unless Reserve has failed already.
    pub(crate) fn permit(
        &self,
        cache: &mut Cache,
        profile: &Profile,
        bound: Bound,
        mut failed: Option<(&'static str, Status)>,
    ) -> Next {
        let Bound { pod, node, mut state, begun, .. } = bound;
        let mut waits: BTreeSet<&'static str> = BTreeSet::new();
        let permit_begun = self.now();
        let permits = failed.is_none();
        let mut patience = Duration::MAX;
        for plugin in &profile.points.permit {
            if failed.is_some() {
                break;
            }
            let begun = self.now();
            let (status, wait) = plugin.permit(&state, &pod, &node);
            self.metrics.sampled(&state, "Permit", plugin.name(), status.code, begun);
            match status.code {
                Code::Success | Code::Skip => {}
                Code::Wait => {
                    waits.insert(plugin.name());
                    patience = patience.min(wait);
                }
                _ => failed = Some((plugin.name(), status)),
            }
        }
        if permits {
            let code = match &failed {
                Some((_, status)) => status.code,
                None if waits.is_empty() => Code::Success,
                None => Code::Wait,
            };
            self.metrics.point("Permit", &profile.scheduler_name, code, permit_begun);
        }
        if let Some((plugin, status)) = failed {
            self.unreserve(profile, &mut state, &pod, &node);
            cache.forget(pod.uid());
            let rejected = status.is_rejected();
            let plugins = if rejected { BTreeSet::from([plugin]) } else { BTreeSet::new() };
            let reason = if rejected { "Unschedulable" } else { "SchedulerError" };
            let message = status.message();
            let nomination = Nomination::none(&pod);
            return Next::TurnDown { pod, plugins, reason, message, nomination };
        }
        let permit = (!waits.is_empty()).then(|| (self.waiting.wait(pod.uid(), waits), patience));
        let nominated = pod.nominated_node.clone();
        Next::Bind(Box::new(Bound { pod, node, state, permit, begun, nominated }))
    }

    /// Runs Unreserve of the plugins, in reverse order.
    pub(crate) fn unreserve(&self, profile: &Profile, state: &mut CycleState, pod: &PodInfo, node: &str) {
        let begun = self.now();
        for plugin in profile.points.reserve.iter().rev() {
            let began = self.now();
            plugin.unreserve(state, pod, node);
            self.metrics.sampled(state, "Unreserve", plugin.name(), Code::Success, began);
        }
        self.metrics.point("Unreserve", &profile.scheduler_name, Code::Success, begun);
    }

    /// Runs Reserve of the plugins. Returns the first plugin that refused, with its status.
    pub(crate) fn run_reserve(
        &self,
        cluster: &Snapshot,
        profile: &Profile,
        state: &mut CycleState,
        pod: &PodInfo,
        node: &str,
    ) -> Option<(&'static str, Status)> {
        let begun = self.now();
        let mut failed = None;
        for plugin in &profile.points.reserve {
            let began = self.now();
            let status = plugin.reserve(state, cluster, pod, node);
            self.metrics.sampled(state, "Reserve", plugin.name(), status.code, began);
            if !status.is_success() {
                failed = Some((plugin.name(), status));
                break;
            }
        }
        let code = failed.as_ref().map_or(Code::Success, |(_, status)| status.code);
        self.metrics.point("Reserve", &profile.scheduler_name, code, begun);
        failed
    }
}
