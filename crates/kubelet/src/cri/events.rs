//! Events of containers: the runtime's lists are compared with earlier ones, once a second and after its own
//! events.
//!
//! CRI reports changes in a stream if the runtime supports it (`GetContainerEvents`). A stream may have gaps, so
//! it only triggers the comparison. Source: `k8s.io/kubernetes/pkg/kubelet/pleg`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use knarr_grpc::{CallError, Code};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Cri;
use super::messages as cri;
use crate::runtime::{ContainerState, RuntimeEvent, RuntimeEventKind, SandboxState};

const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
/// The interval of upstream's generic lister of pod lifecycle events.
const RELIST: Duration = Duration::from_secs(1);
/// The interval if the runtime sends events.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(60);
/// The pause before a broken stream is opened again.
const REOPEN: Duration = Duration::from_secs(10);

/// The remembered state of a sandbox or container between two comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub pod_uid: String,
    pub sandbox_id: String,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Sandbox(SandboxState),
    Container(ContainerState),
}

/// All sandboxes and containers, by id.
pub type Picture = BTreeMap<String, Seen>;

/// Returns the events that lead from one picture to the other.
pub fn changes(before: &Picture, now: &Picture) -> Vec<RuntimeEvent> {
    let mut events = Vec::new();
    let mut record = |id: &str, seen: &Seen, kind: RuntimeEventKind| {
        let container_id = if kind == RuntimeEventKind::SandboxStopped { "" } else { id };
        events.push(RuntimeEvent {
            pod_uid: seen.pod_uid.clone(),
            sandbox_id: seen.sandbox_id.clone(),
            container_id: container_id.to_owned(),
            kind,
        });
    };
    for (id, seen) in now {
        let old = before.get(id).map(|seen| seen.state);
        if old == Some(seen.state) {
            continue;
        }
        match seen.state {
            State::Container(ContainerState::Running) => record(id, seen, RuntimeEventKind::ContainerStarted),
            State::Container(ContainerState::Exited) => record(id, seen, RuntimeEventKind::ContainerExited),
            State::Sandbox(SandboxState::NotReady) => record(id, seen, RuntimeEventKind::SandboxStopped),
            State::Container(ContainerState::Created) | State::Sandbox(SandboxState::Ready) => {}
        }
    }
    for (id, seen) in before.iter().filter(|(id, _)| !now.contains_key(*id)) {
        match seen.state {
            State::Container(ContainerState::Exited) | State::Sandbox(SandboxState::NotReady) => {}
            State::Container(_) => record(id, seen, RuntimeEventKind::ContainerExited),
            State::Sandbox(SandboxState::Ready) => record(id, seen, RuntimeEventKind::SandboxStopped),
        }
    }
    events
}

/// The notifications that the stream of events gives to the comparing loop.
#[derive(Default)]
struct Notices {
    /// Whether the runtime sends events at the moment.
    streams: AtomicBool,
    changed: Notify,
}

/// Compares until `stop` is cancelled, and emits the changes since `picture`.
pub async fn run(runtime: Cri, picture: &mut Picture, stop: CancellationToken) {
    let notices = Notices::default();
    tokio::join!(listen(&runtime, &notices, &stop), look(&runtime, picture, &notices, &stop));
}

async fn look(runtime: &Cri, picture: &mut Picture, notices: &Notices, stop: &CancellationToken) {
    loop {
        let pause = if notices.streams.load(Ordering::Acquire) { RELIST_WITH_EVENTS } else { RELIST };
        tokio::select! {
            () = stop.cancelled() => return,
            () = notices.changed.notified() => {}
            () = runtime.inner.clock.sleep(pause) => {}
        }
        let relist = runtime.inner.relists.begin();
        let looked = runtime.picture().await;
        relist.end(looked.is_ok());
        match looked {
            Ok(now) => {
                for event in changes(picture, &now) {
                    let _ = runtime.inner.events.send(event);
                }
                *picture = now;
            }
            Err(error) => tracing::debug!(%error, "cannot list containers"),
        }
    }
}

/// Keeps the stream open until `stop` is cancelled, if the runtime supports it.
async fn listen(runtime: &Cri, notices: &Notices, stop: &CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = follow(runtime, notices) => ended,
        };
        notices.streams.store(false, Ordering::Release);
        notices.changed.notify_one();
        match ended {
            Err(error) if error.code() == Code::UNIMPLEMENTED => return,
            // A runtime without events ends the stream at once.
            ended => tracing::debug!(?ended, "the runtime's events ended"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = runtime.inner.clock.sleep(REOPEN) => {}
        }
    }
}

/// Notifies the loop of each event, until the stream ends. The runtime answers only when the first event occurs.
async fn follow(runtime: &Cri, notices: &Notices) -> Result<(), CallError> {
    let mut answers = runtime.inner.runtime.stream(EVENTS, &cri::GetEventsRequest {}).await?;
    while answers.next::<cri::ContainerEventResponse>().await?.is_some() {
        notices.streams.store(true, Ordering::Release);
        notices.changed.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pod: &str, state: State) -> Seen {
        Seen { pod_uid: pod.into(), sandbox_id: format!("s-{pod}"), state }
    }

    #[test]
    fn only_what_changed_is_told() {
        use ContainerState::{Created, Exited, Running};
        let container = |state| Some(State::Container(state));
        let sandbox = |state| Some(State::Sandbox(state));
        for (before, now, expected) in [
            (None, container(Created), None),
            (None, container(Running), Some(RuntimeEventKind::ContainerStarted)),
            (container(Created), container(Running), Some(RuntimeEventKind::ContainerStarted)),
            (container(Running), container(Running), None),
            (container(Running), container(Exited), Some(RuntimeEventKind::ContainerExited)),
            (None, container(Exited), Some(RuntimeEventKind::ContainerExited)),
            (container(Running), None, Some(RuntimeEventKind::ContainerExited)),
            (container(Exited), None, None),
            (None, sandbox(SandboxState::Ready), None),
            (
                sandbox(SandboxState::Ready),
                sandbox(SandboxState::NotReady),
                Some(RuntimeEventKind::SandboxStopped),
            ),
            (sandbox(SandboxState::Ready), None, Some(RuntimeEventKind::SandboxStopped)),
            (sandbox(SandboxState::NotReady), None, None),
        ] {
            let picture = |state: Option<State>| -> Picture {
                state.into_iter().map(|state| ("id".to_owned(), seen("p", state))).collect()
            };
            let events = changes(&picture(before), &picture(now));
            assert_eq!(events.first().map(|event| event.kind), expected, "{before:?} {now:?}");
            assert!(events.len() <= 1 && events.iter().all(|event| event.pod_uid == "p"));
        }
    }
}
