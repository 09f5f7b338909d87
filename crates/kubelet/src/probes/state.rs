//! When a probe runs, and how its results are combined: the part without I/O.
//!
//! Source: the behaviour of upstream's probe workers.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Probe};

use super::results::ProbeResult;
use crate::pod;

/// How long after its start a container that is not ready yet counts as starting: a failure in that time does not
/// count.
///
/// Upstream's kubelet notices a start when it lists containers, once a second, and probes readiness then. This one
/// knows of a start at once, when the process may not listen yet.
const STARTING: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

impl ProbeKind {
    pub const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];

    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }

    /// The result until the first probe of a container.
    fn initial(self) -> ProbeResult {
        match self {
            Self::Liveness => ProbeResult::Success,
            Self::Readiness => ProbeResult::Failure,
            Self::Startup => ProbeResult::Unknown,
        }
    }
}

impl std::fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// What the worker does at a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// Nothing at this tick.
    Wait,
    /// Nothing at any tick: the worker ends.
    Stop,
    Probe,
}

/// A new value of the probe's result, if it has changed.
pub type Verdict = Option<ProbeResult>;

/// The state of one worker.
#[derive(Debug, Clone, Default)]
pub struct ProbeState {
    /// The id as in the status, `knarr://…`.
    container_id: String,
    /// When the container was first seen.
    seen: Option<Timestamp>,
    last: Option<ProbeResult>,
    /// How many times in a row the probe has returned `last`.
    run: i32,
    /// Set until the container is replaced.
    on_hold: bool,
}

pub struct View<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub kind: ProbeKind,
    pub status: &'a PodStatus,
    pub kubelet_started: Timestamp,
    pub now: Timestamp,
}

impl View<'_> {
    fn container_status(&self) -> Option<&ContainerStatus> {
        let lists = [&self.status.container_statuses, &self.status.init_container_statuses];
        let mut all = lists.into_iter().flatten().flatten();
        all.find(|s| {
            s.name == self.container.name && s.container_id.as_deref().is_some_and(|id| !id.is_empty())
        })
    }
}

/// The result of a tick: the id of the previous container, and the value to set now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub forget: Option<String>,
    pub set: Verdict,
    pub tick: Tick,
}

impl ProbeState {
    /// The id of the container of the results, without the scheme.
    pub fn container_id(&self) -> &str {
        self.container_id.split_once("://").map_or(self.container_id.as_str(), |(_, id)| id)
    }

    pub fn tick(&mut self, view: &View<'_>) -> Step {
        let mut step = Step { forget: None, set: None, tick: Tick::Wait };
        if pod::is_terminal_phase(view.status.phase.as_deref().unwrap_or("")) {
            step.tick = Tick::Stop;
            return step;
        }
        let Some(status) = view.container_status() else { return step };
        let id = status.container_id.as_deref().unwrap_or("");
        let state = status.state.as_ref();
        let running = state.and_then(|s| s.running.as_ref());
        let started_at = running.and_then(|r| r.started_at.as_ref()).map(|t| t.0);
        if self.container_id != id {
            step.forget = (!self.container_id.is_empty()).then(|| self.container_id().to_owned());
            id.clone_into(&mut self.container_id);
            self.on_hold = false;
            self.last = None;
            self.run = 0;
            let from_before = started_at.is_some_and(|at| at < view.kubelet_started);
            self.seen = (!from_before).then_some(view.now);
            if !from_before {
                step.set = Some(view.kind.initial());
            } else if view.kind == ProbeKind::Startup && status.started == Some(true) {
                step.set = Some(ProbeResult::Success);
            }
        }
        if self.on_hold {
            return step;
        }
        if running.is_none() {
            step.set = Some(ProbeResult::Failure);
            let end = state.and_then(|s| s.terminated.as_ref());
            let again = end.is_none_or(|end| pod::restarts_after(view.container, view.pod, end.exit_code));
            step.tick = if again { Tick::Wait } else { Tick::Stop };
            return step;
        }
        if view.pod.metadata.deletion_timestamp.is_some() && view.kind != ProbeKind::Readiness {
            step.set = Some(ProbeResult::Success);
            step.tick = Tick::Stop;
            return step;
        }
        let delay = view.kind.of(view.container).and_then(|p| p.initial_delay_seconds).unwrap_or(0);
        let age = started_at.map_or(0, |at| view.now.as_second() - at.as_second());
        // The startup probe holds back the others, and does not run once it has succeeded.
        let its_time = (status.started == Some(true)) != (view.kind == ProbeKind::Startup);
        if age >= i64::from(delay) && its_time {
            step.tick = Tick::Probe;
        }
        step
    }

    /// Returns how long the container still counts as starting: a failure until then does not count, and the probe
    /// is repeated afterwards. Only readiness is probed that early.
    pub fn starting_for(&self, kind: ProbeKind, now: Timestamp) -> Option<Duration> {
        let seen = self.seen.filter(|_| kind == ProbeKind::Readiness && self.last.is_none())?;
        let age = Duration::try_from(now.duration_since(seen)).unwrap_or_default();
        STARTING.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// Takes a result; returns a new value once the same result has occurred often enough.
    pub fn observe(&mut self, kind: ProbeKind, probe: &Probe, result: ProbeResult) -> Verdict {
        if self.last == Some(result) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(result);
            self.run = 1;
        }
        let threshold = match result {
            ProbeResult::Success => probe.success_threshold.unwrap_or(1),
            ProbeResult::Failure | ProbeResult::Unknown => probe.failure_threshold.unwrap_or(3),
        };
        if self.run < threshold {
            return None;
        }
        let failed = result != ProbeResult::Success;
        if kind == ProbeKind::Startup || (kind == ProbeKind::Liveness && failed) {
            self.on_hold = true;
            self.run = 0;
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerState, ContainerStateRunning, ContainerStateTerminated};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1000 + second).unwrap()
    }

    fn status(id: &str, started: bool, state: ContainerState) -> PodStatus {
        let container = ContainerStatus {
            name: "web".into(),
            container_id: Some(format!("knarr://{id}")),
            started: Some(started),
            state: Some(state),
            ..ContainerStatus::default()
        };
        PodStatus { container_statuses: Some(vec![container]), ..PodStatus::default() }
    }

    fn running(since: i64) -> ContainerState {
        let running = ContainerStateRunning { started_at: Some(Time(at(since))) };
        ContainerState { running: Some(running), ..ContainerState::default() }
    }

    fn tick(state: &mut ProbeState, kind: ProbeKind, status: &PodStatus, now: i64) -> Step {
        let probe = Some(Probe { initial_delay_seconds: Some(5), ..Probe::default() });
        let container = Container {
            name: "web".into(),
            liveness_probe: probe.clone(),
            readiness_probe: probe.clone(),
            startup_probe: probe,
            ..Container::default()
        };
        let spec = k8s_openapi::api::core::v1::PodSpec {
            restart_policy: Some("Never".into()),
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        let view =
            View { pod: &pod, container: &container, kind, status, kubelet_started: at(0), now: at(now) };
        state.tick(&view)
    }

    #[test]
    fn a_new_container_begins_with_the_initial_value_and_waits_for_its_delay() {
        let mut state = ProbeState::default();
        let set = |set, tick| Step { forget: None, set, tick };
        let s = status("a", true, running(10));
        assert_eq!(
            tick(&mut state, ProbeKind::Readiness, &s, 12),
            set(Some(ProbeResult::Failure), Tick::Wait)
        );
        assert_eq!(tick(&mut state, ProbeKind::Readiness, &s, 15), set(None, Tick::Probe));
        assert_eq!(state.container_id(), "a");
        let s = status("b", true, running(20));
        assert_eq!(tick(&mut state, ProbeKind::Readiness, &s, 21).forget.as_deref(), Some("a"));
        // A container that ran before this kubelet started keeps its state.
        let s = status("c", true, running(-100));
        assert_eq!(tick(&mut ProbeState::default(), ProbeKind::Readiness, &s, 21), set(None, Tick::Probe));
    }

    #[test]
    fn startup_gates_the_others() {
        for (kind, started, expected) in [
            (ProbeKind::Startup, false, Tick::Probe),
            (ProbeKind::Startup, true, Tick::Wait),
            (ProbeKind::Liveness, false, Tick::Wait),
            (ProbeKind::Liveness, true, Tick::Probe),
            (ProbeKind::Readiness, false, Tick::Wait),
        ] {
            let s = status("a", started, running(10));
            assert_eq!(tick(&mut ProbeState::default(), kind, &s, 20).tick, expected, "{kind} {started}");
        }
    }

    #[test]
    fn an_ended_container_is_a_failure_and_the_end_if_it_stays_so() {
        let end = ContainerStateTerminated { exit_code: 1, ..Default::default() };
        let s = status("a", false, ContainerState { terminated: Some(end), ..ContainerState::default() });
        let step = tick(&mut ProbeState::default(), ProbeKind::Readiness, &s, 20);
        assert_eq!((step.set, step.tick), (Some(ProbeResult::Failure), Tick::Stop));
    }

    #[test]
    fn a_container_is_starting_for_a_second() {
        let s = status("a", true, running(10));
        let mut state = ProbeState::default();
        tick(&mut state, ProbeKind::Readiness, &s, 10);
        let left = |state: &ProbeState, kind, milliseconds| {
            state.starting_for(kind, at(10) + jiff::SignedDuration::from_millis(milliseconds))
        };
        assert_eq!(left(&state, ProbeKind::Readiness, 100), Some(Duration::from_millis(900)));
        assert_eq!(left(&state, ProbeKind::Readiness, 1000), None);
        assert_eq!(left(&state, ProbeKind::Liveness, 100), None);
        state.observe(ProbeKind::Readiness, &Probe::default(), ProbeResult::Success);
        assert_eq!(
            left(&state, ProbeKind::Readiness, 100),
            None,
            "what has been ready does not start any more"
        );
        let mut old = ProbeState::default();
        tick(&mut old, ProbeKind::Readiness, &status("b", true, running(-100)), 10);
        assert_eq!(left(&old, ProbeKind::Readiness, 0), None, "it started before the kubelet");
    }

    #[test]
    fn thresholds() {
        use ProbeResult::{Failure, Success};
        let probe = Probe { failure_threshold: Some(3), success_threshold: Some(2), ..Probe::default() };
        let mut state = ProbeState::default();
        let results = [Failure, Failure, Success, Failure, Failure, Failure, Success, Success];
        let verdicts: Vec<Verdict> =
            results.iter().map(|r| state.observe(ProbeKind::Readiness, &probe, *r)).collect();
        assert_eq!(verdicts, [None, None, None, None, None, Some(Failure), None, Some(Success)]);
        assert!(!state.on_hold);
        for _ in 0..3 {
            state.observe(ProbeKind::Liveness, &probe, Failure);
        }
        assert!(state.on_hold, "no more probes until the container is replaced");
    }
}
