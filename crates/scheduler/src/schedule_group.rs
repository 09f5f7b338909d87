//! The cycle of a pod group: its pods find nodes one after the other, each counted in before the next; then all of them
//! are bound, or none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::scheduling::v1beta1::PodGroup;

use crate::binding::Bound;
use crate::cache::Cache;
use crate::diagnosis::Diagnosis;
use crate::framework::{Code, CycleState, PodInfo, Profile, Progress, Status};
use crate::group_condition::Report;
use crate::groups::{Terms, priority};
use crate::metrics::Metric;
use crate::queue::{Ended, PoppedGroup};
use crate::schedule_one::Outcome;
use crate::scheduler::{Next, Nomination, Scheduler, State};

/// What everything that is said of a group which was turned down begins with.
const UNSCHEDULABLE: &str = "pod group is unschedulable";

/// What one pod of the group came to.
pub(crate) enum Found {
    Placed {
        node: String,
        state: CycleState,
    },
    NoFit(Box<Diagnosis>),
    /// A plugin would not reserve what it needs.
    Refused(&'static str, Status),
    Failed(String),
    /// The group's fate was clear before it was its turn.
    NotTried,
}

/// What the group came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fits,
    /// Not now, for these reasons.
    Unschedulable(Vec<String>),
    Failed(String),
}

impl Verdict {
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Fits => String::new(),
            Self::Unschedulable(reasons) => {
                let all = std::iter::once(UNSCHEDULABLE).chain(reasons.iter().map(String::as_str));
                all.collect::<Vec<_>>().join(", ")
            }
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

/// A pod group in its cycle.
pub(crate) struct Attempted<'a> {
    pub at: usize,
    pub profile: &'a Profile,
    pub group: &'a Arc<PodGroup>,
    pub pods: &'a [Arc<PodInfo>],
    /// Pods of the group that have a node already.
    pub scheduled: usize,
}

/// What all pods of a group have to agree in with the group and with each other.
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

/// Whether enough of the group can find, or has found, a node.
fn feasible(profile: &Profile, group: &PodGroup, progress: Progress) -> Status {
    let mut said = Status::SUCCESS;
    for plugin in &profile.points.placement_feasible {
        let status = plugin.placement_feasible(group, progress);
        match status.code {
            Code::Success => {}
            Code::Wait => said = status,
            Code::Unschedulable => return status,
            _ => {
                let why = format!("running PlacementFeasible plugin: {}", status.message());
                return Status::error(why);
            }
        }
    }
    said
}

fn words(status: &Status) -> Vec<String> {
    status.reasons.iter().map(|r| r.clone().into_owned()).collect()
}

impl Scheduler {
    /// One cycle of a group: what is to be done for its pods, and what is told of it.
    pub(crate) fn schedule_group(
        &self,
        state: &mut State,
        popped: PoppedGroup,
        begun: Duration,
    ) -> Vec<Next> {
        let PoppedGroup { key, pods } = popped;
        let groups = state.cache.groups().cloned();
        let Some((groups, group)) = groups.and_then(|g| g.object(&key).map(|object| (g, object))) else {
            state.queue.finish_group(&self.profiles, &key, &BTreeSet::new(), Ended::Failed, self.now());
            return Vec::new();
        };
        let (pods, stale): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|p| !p.leaving && !state.cache.is_assumed(p.uid()));
        stale.iter().for_each(|pod| state.queue.remove(pod.uid()));
        let profile = pods.first().and_then(|p| self.profiles.find(p.scheduler_name()));
        let Some((at, profile)) = profile else {
            state.queue.finish_group(&self.profiles, &key, &BTreeSet::new(), Ended::Scheduled, self.now());
            return Vec::new();
        };
        let begun = self.now().max(begun);
        let wrong = disagreement(&group, &pods, &groups.terms_of_scheduled(&key));
        let unasked = || "extenders are not asked about the pods of pod groups".to_owned();
        let wrong = wrong.or_else(|| pods.iter().any(|p| self.extenders.decide_on(p)).then(unasked));
        let scheduled = groups.counts(&key).1;
        let attempted = Attempted { at, profile, group: &group, pods: &pods, scheduled };
        let (found, verdict) = match wrong {
            Some(why) => (Vec::new(), Verdict::Failed(why)),
            None => self.place_group(state, &attempted),
        };
        self.metrics.since(Metric::GroupAlgorithmDuration, &[], begun);
        self.conclude_group(state, &attempted, found, verdict, begun)
    }

    /// Finds nodes for the pods. When it is not enough for the group, everything is as it was before.
    fn place_group(&self, state: &mut State, attempted: &Attempted) -> (Vec<Found>, Verdict) {
        let Attempted { profile, group, pods, .. } = *attempted;
        let mut progress = Progress { scheduled: attempted.scheduled, remaining: pods.len() };
        let mut found = Vec::with_capacity(pods.len());
        let mut status = feasible(profile, group, progress);
        let mut failed = None;
        let mut any = false;
        for pod in pods {
            if !matches!(status.code, Code::Success | Code::Wait) {
                break;
            }
            let one = self.place_member(state, attempted, pod);
            progress.remaining -= 1;
            match &one {
                Found::Placed { .. } => {
                    progress.scheduled += 1;
                    any = true;
                }
                Found::Failed(why) => {
                    failed = Some(format!("failed to schedule other pod from a pod group: {why}"));
                }
                Found::NoFit(_) | Found::Refused(..) | Found::NotTried => {}
            }
            found.push(one);
            if failed.is_some() {
                break;
            }
            status = feasible(profile, group, progress);
        }
        let verdict = match (failed, status.code) {
            (Some(why), _) => Verdict::Failed(why),
            (None, Code::Success) if any => Verdict::Fits,
            (None, Code::Success) => Verdict::Unschedulable(Vec::new()),
            (None, Code::Error) => {
                Verdict::Failed(format!("failed to evaluate placement feasibility: {}", status.message()))
            }
            (None, _) => Verdict::Unschedulable(words(&status)),
        };
        if verdict != Verdict::Fits {
            for (pod, one) in pods.iter().zip(&mut found).rev() {
                if let Found::Placed { node, state: notes } = one {
                    self.unreserve(profile, notes, pod, node);
                    take_back(&mut state.cache, pod);
                }
            }
        }
        found.resize_with(pods.len(), || Found::NotTried);
        (found, verdict)
    }

    fn place_member(&self, state: &mut State, attempted: &Attempted, pod: &Arc<PodInfo>) -> Found {
        let Attempted { at, profile, .. } = *attempted;
        let begun = self.now();
        let outcome = state.cycles.schedule(at, profile, state.cache.snapshot(), pod);
        self.metrics.since(Metric::AlgorithmDuration, &[], begun);
        let node = match outcome {
            Outcome::Placed(node) => state.cache.snapshot().row(node).name().to_owned(),
            Outcome::NoFit(diagnosis) => return Found::NoFit(diagnosis),
            Outcome::Failed(why) => return Found::Failed(why),
        };
        state.cache.assume(pod, &node);
        state.cache.nominate(pod, None);
        let mut notes = CycleState::new(self.metrics.samples());
        let refused = self.run_reserve(state.cache.snapshot(), profile, &mut notes, pod, &node);
        let Some((plugin, status)) = refused else { return Found::Placed { node, state: notes } };
        self.unreserve(profile, &mut notes, pod, &node);
        take_back(&mut state.cache, pod);
        if status.is_rejected() { Found::Refused(plugin, status) } else { Found::Failed(status.message()) }
    }

    /// Hands the pods on, and puts back those without a node.
    fn conclude_group(
        &self,
        state: &mut State,
        attempted: &Attempted,
        mut found: Vec<Found>,
        verdict: Verdict,
        begun: Duration,
    ) -> Vec<Next> {
        let Attempted { profile, group, pods, .. } = *attempted;
        found.resize_with(pods.len(), || Found::NotTried);
        let (result, status, reason) = match &verdict {
            Verdict::Fits => ("scheduled", "True", "Scheduled"),
            Verdict::Unschedulable(_) => ("unschedulable", "False", "Unschedulable"),
            Verdict::Failed(_) => ("error", "False", "SchedulerError"),
        };
        let mut placed = BTreeSet::new();
        let mut next = Vec::with_capacity(pods.len() + 1);
        for (pod, one) in pods.iter().zip(found) {
            let one = self.conclude_member(state, profile, pod, one, &verdict, begun);
            if matches!(one, Next::Bind(_)) {
                placed.insert(pod.uid.clone());
            }
            self.count(profile, one.result(), begun);
            next.push(one);
        }
        let key = knarr_api::kind::Kind::key(&**group);
        state.queue.finish_group(&self.profiles, &key, &placed, verdict.ended(), self.now());
        let labels = [profile.scheduler_name.as_str(), result];
        self.metrics.add(Metric::GroupAttempts, &labels, 1.0);
        self.metrics.since(Metric::GroupAttemptDuration, &labels, begun);
        let message = verdict.message();
        next.push(Next::Report(Box::new(Report { group: Arc::clone(group), status, reason, message })));
        next
    }

    fn conclude_member(
        &self,
        state: &mut State,
        profile: &Profile,
        pod: &Arc<PodInfo>,
        found: Found,
        verdict: &Verdict,
        begun: Duration,
    ) -> Next {
        let down = |plugins, reason, message, nomination| Next::TurnDown {
            pod: Arc::clone(pod),
            plugins,
            reason,
            message,
            nomination,
        };
        let nobody = BTreeSet::new;
        match (found, verdict) {
            (Found::Failed(why), _) => down(nobody(), "SchedulerError", why, withdraw(&mut state.cache, pod)),
            (_, Verdict::Failed(why)) => {
                down(nobody(), "SchedulerError", why.clone(), withdraw(&mut state.cache, pod))
            }
            (Found::Placed { node, state: notes }, Verdict::Fits) => {
                let bound =
                    Bound { pod: Arc::clone(pod), node, state: notes, permit: None, begun, nominated: None };
                self.permit(&mut state.cache, profile, bound, None)
            }
            (Found::Placed { .. }, _) => {
                let message = format!("{UNSCHEDULABLE}, {}", verdict.message());
                down(nobody(), "Unschedulable", message, withdraw(&mut state.cache, pod))
            }
            (Found::NotTried, _) => down(nobody(), "Unschedulable", verdict.message(), Nomination::Keep),
            (Found::NoFit(diagnosis), _) => {
                self.no_fit(profile, Arc::clone(pod), *diagnosis, Nomination::Keep)
            }
            (Found::Refused(plugin, status), _) => {
                let nomination = withdraw(&mut state.cache, pod);
                down(BTreeSet::from([plugin]), "Unschedulable", status.message(), nomination)
            }
        }
    }
}

/// The pod has no node after all; an earlier nomination counts again.
fn take_back(cache: &mut Cache, pod: &PodInfo) {
    cache.forget(pod.uid());
    if let Some(node) = &pod.nominated_node {
        cache.nominate(pod, Some(node));
    }
}

fn withdraw(cache: &mut Cache, pod: &PodInfo) -> Nomination {
    cache.nominate(pod, None);
    Nomination::none(pod)
}
