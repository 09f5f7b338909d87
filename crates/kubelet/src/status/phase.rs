//! The phase of a pod, computed from the states of its containers.
//!
//! Source: the pod lifecycle documentation; the behaviour of upstream's `getPhase`.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod};

use crate::pod;

/// The state of a container, as far as the phase depends on it.
enum Standing {
    Unknown,
    Running {
        started: bool,
    },
    Terminated {
        exit_code: i32,
    },
    /// The container waits to be restarted, after it ended with this code.
    WaitingAfter {
        exit_code: i32,
    },
    Waiting,
}

fn standing(statuses: &[&ContainerStatus], name: &str) -> Standing {
    let Some(status) = statuses.iter().find(|s| s.name == name) else { return Standing::Unknown };
    match &status.state {
        Some(ContainerState { running: Some(_), .. }) => {
            Standing::Running { started: status.started == Some(true) }
        }
        Some(ContainerState { terminated: Some(end), .. }) => {
            Standing::Terminated { exit_code: end.exit_code }
        }
        Some(ContainerState { waiting: Some(_), .. }) => {
            match status.last_state.as_ref().and_then(|last| last.terminated.as_ref()) {
                Some(end) => Standing::WaitingAfter { exit_code: end.exit_code },
                None => Standing::Waiting,
            }
        }
        _ => Standing::Unknown,
    }
}

#[derive(Default)]
struct Counts {
    pending_init: usize,
    pending_sidecars: usize,
    failed_for_good: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

impl Counts {
    fn init(&mut self, pod: &Pod, container: &Container, standing: &Standing) {
        match standing {
            Standing::Terminated { exit_code } | Standing::WaitingAfter { exit_code } => {
                if *exit_code != 0 && !pod::restarts_after(container, pod, *exit_code) {
                    self.failed_for_good += 1;
                }
            }
            _ => self.pending_init += 1,
        }
    }

    fn sidecar(&mut self, standing: &Standing) {
        match standing {
            Standing::Running { started } => {
                self.pending_sidecars += usize::from(!started);
                self.running += 1;
            }
            // Sidecars that have ended do not count.
            Standing::Terminated { .. } | Standing::WaitingAfter { .. } => {}
            Standing::Waiting => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            _ => {
                self.pending_sidecars += 1;
                self.unknown += 1;
            }
        }
    }

    /// Counts a main container. `again`: another container follows, however this one ended.
    fn main(&mut self, pod: &Pod, container: &Container, standing: &Standing, again: bool) {
        match standing {
            Standing::Running { .. } => self.running += 1,
            Standing::Terminated { exit_code } | Standing::WaitingAfter { exit_code } => {
                self.stopped += 1;
                self.stopped_for_good +=
                    usize::from(!again && !pod::restarts_after(container, pod, *exit_code));
                let ended = matches!(standing, Standing::Terminated { .. });
                self.succeeded += usize::from(ended && *exit_code == 0);
            }
            Standing::Waiting => self.waiting += 1,
            _ => self.unknown += 1,
        }
    }
}

/// Computes the phase. `replaced`: whether another container follows the one of this name, however it ends.
/// `terminal`: no container will be started any more. `initialized`: a main container has been started before.
pub fn phase(
    pod: &Pod,
    statuses: &[&ContainerStatus],
    replaced: impl Fn(&str) -> bool,
    terminal: bool,
    initialized: bool,
) -> &'static str {
    let mut n = Counts::default();
    for container in pod::init_containers(pod) {
        let standing = standing(statuses, &container.name);
        if pod::is_sidecar(container) {
            n.sidecar(&standing);
        } else {
            n.init(pod, container, &standing);
        }
    }
    for container in &pod::spec(pod).containers {
        n.main(pod, container, &standing(statuses, &container.name), replaced(&container.name));
    }
    if n.failed_for_good > 0 {
        return "Failed";
    }
    if n.pending_init > 0 || (n.pending_sidecars > 0 && !initialized) || n.waiting > 0 {
        return "Pending";
    }
    if n.running > 0 && n.unknown == 0 {
        return "Running";
    }
    if n.running == 0 && n.stopped > 0 && n.unknown == 0 {
        let outcome = if n.stopped == n.succeeded { "Succeeded" } else { "Failed" };
        return if terminal || n.stopped == n.stopped_for_good { outcome } else { "Running" };
    }
    "Pending"
}
