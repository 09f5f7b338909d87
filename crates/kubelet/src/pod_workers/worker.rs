//! The phases of one pod on this node: admitted, synced until it is to stop, terminated, cleaned up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;

use super::mailbox::Mailbox;
use crate::pod;
use crate::pod_syncer::{Admission, PodMemory, PodSyncer, SyncOutcome, pause_after};
use crate::termination::effective_grace;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Whether the pod is admitted is not decided yet.
    Admit,
    /// The pod should run.
    Sync,
    /// The pod is being stopped.
    Terminating,
    /// Nothing of the pod runs any more; its volumes and cgroup are to be released.
    Terminated,
    /// Only records, logs and the pod's folder are left, until the API removes the pod.
    Finished,
}

/// What the worker does after a pass.
enum Next {
    /// Enter this phase at once.
    Go(Phase),
    /// Stay in this phase, and wait for a notification, or for the given time if that is earlier.
    Wait(Option<Timestamp>),
    /// Stay in this phase, and retry after a pause.
    Retry,
    End,
}

/// The phase and the grace period of a pod, shared by its worker and those that replace it after a panic.
#[derive(Clone)]
pub struct Reached(Arc<Mutex<(Phase, Option<i64>)>>);

impl Reached {
    /// The start of a pod's life here; `running`: the pod ran before this kubelet started.
    pub fn new(running: bool) -> Self {
        let phase = if running { Phase::Sync } else { Phase::Admit };
        Self(Arc::new(Mutex::new((phase, None))))
    }

    fn lock(&self) -> MutexGuard<'_, (Phase, Option<i64>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> Phase {
        self.lock().0
    }

    fn set_phase(&self, phase: Phase) {
        self.lock().0 = phase;
    }

    /// The grace period in seconds of the last termination pass.
    fn grace(&self) -> Option<i64> {
        self.lock().1
    }

    fn set_grace(&self, grace: i64) {
        self.lock().1 = Some(grace);
    }
}

/// Carries out the changes of one pod, one after the other.
pub struct Worker {
    syncer: Arc<PodSyncer>,
    mailbox: Arc<Mailbox>,
    reached: Reached,
    memory: PodMemory,
    failures: u32,
    /// Whether no sync pass has been made yet.
    fresh: bool,
}

impl Worker {
    pub fn new(syncer: Arc<PodSyncer>, mailbox: Arc<Mailbox>, reached: Reached) -> Self {
        Self { syncer, mailbox, reached, memory: PodMemory::default(), failures: 0, fresh: true }
    }

    /// Runs until the pod is cleaned up after its removal from the API.
    pub async fn run(mut self) {
        self.memory.first_seen =
            (self.reached.phase() == Phase::Admit).then(|| self.syncer.clock.monotonic());
        loop {
            let phase = self.reached.phase();
            let next = self.timed_pass(phase).await;
            let until = match next {
                Next::End => return,
                Next::Go(next) => {
                    self.reached.set_phase(next);
                    self.failures = 0;
                    continue;
                }
                Next::Wait(until) => {
                    self.failures = 0;
                    until
                }
                Next::Retry => {
                    let until = self.syncer.clock.now().checked_add(pause_after(self.failures)).ok();
                    self.failures += 1;
                    self.wait_for_retry(until, phase).await;
                    continue;
                }
            };
            self.wait(until).await;
        }
    }

    async fn wait(&self, until: Option<Timestamp>) {
        match until {
            None => self.mailbox.notifier().notified().await,
            Some(until) => tokio::select! {
                () = self.mailbox.notifier().notified() => {}
                () = self.sleep_until(until) => {}
            },
        }
    }

    /// Waits before a retry. Notifications of this node do not end the wait, as the failed attempts cause some
    /// themselves; a change from outside does, and so does the end of the pod.
    async fn wait_for_retry(&self, until: Option<Timestamp>, phase: Phase) {
        let Some(until) = until else { return };
        tokio::select! {
            () = self.sleep_until(until) => {}
            () = self.mailbox.news_from_outside() => {}
            () = self.mailbox.terminate().cancelled(), if phase == Phase::Sync => {}
        }
    }

    async fn sleep_until(&self, until: Timestamp) {
        let left = until.duration_since(self.syncer.clock.now());
        self.syncer.clock.sleep(Duration::try_from(left).unwrap_or(Duration::ZERO)).await;
    }

    async fn timed_pass(&mut self, phase: Phase) -> Next {
        let began = self.syncer.clock.monotonic();
        let next = self.pass(phase).await;
        let operation = match phase {
            Phase::Admit | Phase::Finished => return next,
            Phase::Sync if std::mem::take(&mut self.fresh) => "create",
            Phase::Sync => "sync",
            Phase::Terminating => "kill",
            Phase::Terminated => "terminated",
        };
        let took = self.syncer.clock.monotonic().saturating_sub(began);
        self.syncer.metrics.passed(operation, took);
        next
    }

    async fn pass(&mut self, phase: Phase) -> Next {
        let (pod, deleted) = self.mailbox.latest();
        match phase {
            Phase::Admit => self.admit(&pod),
            Phase::Sync => self.sync(&pod).await,
            Phase::Terminating => self.terminating(&pod).await,
            Phase::Terminated => match self.syncer.sync_terminated_pod(&pod, &mut self.memory).await {
                Ok(()) => Next::Go(Phase::Finished),
                Err(error) => self.failed(&pod, &error),
            },
            Phase::Finished if !deleted => Next::Wait(None),
            Phase::Finished => match self.syncer.clean_up(pod.uid()).await {
                Ok(()) => Next::End,
                Err(error) => self.failed(&pod, &error),
            },
        }
    }

    fn failed(&self, pod: &Pod, error: &str) -> Next {
        tracing::warn!(pod = %pod::format(pod), error, "the pass failed; it is tried again");
        Next::Retry
    }

    fn must_stop(&self, pod: &Pod) -> bool {
        self.mailbox.terminate().is_cancelled() || pod::is_terminal_phase(pod::phase(pod))
    }

    fn admit(&self, pod: &Pod) -> Next {
        if self.must_stop(pod) {
            return Next::Go(Phase::Terminating);
        }
        match self.syncer.admit(pod) {
            Admission::Admitted => Next::Go(Phase::Sync),
            Admission::Rejected => Next::Go(Phase::Finished),
            Admission::NotYet => Next::Wait(None),
        }
    }

    async fn sync(&mut self, pod: &Arc<Pod>) -> Next {
        if self.must_stop(pod) {
            return Next::Go(Phase::Terminating);
        }
        let outcome = self.syncer.sync_pod(pod, &mut self.memory, self.mailbox.terminate()).await;
        if self.mailbox.terminate().is_cancelled() {
            return Next::Go(Phase::Terminating);
        }
        match outcome {
            SyncOutcome::Done { look_again } => Next::Wait(look_again),
            SyncOutcome::Terminal => Next::Go(Phase::Terminating),
            SyncOutcome::Failed => Next::Retry,
        }
    }

    async fn terminating(&mut self, pod: &Arc<Pod>) -> Next {
        let grace = effective_grace(pod, self.reached.grace());
        self.reached.set_grace(grace);
        let news = self.mailbox.notifier();
        tokio::select! {
            result = self.syncer.sync_terminating_pod(pod, &mut self.memory, grace, news) => match result {
                Ok(()) => Next::Go(Phase::Terminated),
                Err(error) => self.failed(pod, &error),
            },
            // The grace period became shorter: the pass begins anew.
            () = self.mailbox.grace_below(grace) => Next::Go(Phase::Terminating),
        }
    }
}
