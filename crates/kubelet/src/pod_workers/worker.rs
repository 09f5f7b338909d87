//! The life of one pod on this node: admitted, synced until it is to stop, stopped, cleared away.

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
    /// Not yet known whether it may run here.
    Admit,
    /// It is to run.
    Sync,
    /// It is to stop.
    Terminating,
    /// Nothing runs any more; what it held is given back.
    Terminated,
    /// Only its records are left, until the API removes it.
    Finished,
}

/// What to do after a pass.
enum Next {
    /// The next phase, at once.
    Go(Phase),
    /// Stay, and wait for news or for a time.
    Wait(Option<Timestamp>),
    /// Stay, and try again after a pause.
    Retry,
    End,
}

/// How far a pod has come here, for all the workers that it has one after another.
#[derive(Clone)]
pub struct Reached(Arc<Mutex<(Phase, Option<i64>)>>);

impl Reached {
    /// `running`: it ran here before this kubelet started.
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

    /// The grace that the pod was given last.
    fn grace(&self) -> Option<i64> {
        self.lock().1
    }

    fn set_grace(&self, grace: i64) {
        self.lock().1 = Some(grace);
    }
}

pub struct Worker {
    syncer: Arc<PodSyncer>,
    mailbox: Arc<Mailbox>,
    reached: Reached,
    memory: PodMemory,
    failures: u32,
    /// Not synced yet.
    fresh: bool,
}

impl Worker {
    pub fn new(syncer: Arc<PodSyncer>, mailbox: Arc<Mailbox>, reached: Reached) -> Self {
        Self { syncer, mailbox, reached, memory: PodMemory::default(), failures: 0, fresh: true }
    }

    /// Runs to the end of the pod.
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

    /// A failing pod is not tried at every bit of news (its own attempts make some), but when something changed
    /// outside; and it is stopped at once.
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
        tracing::warn!(pod = %pod::format(pod), error, "will be tried again");
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
            // Begun anew with less time.
            () = self.mailbox.grace_below(grace) => Next::Go(Phase::Terminating),
        }
    }
}
