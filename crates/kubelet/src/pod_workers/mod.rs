//! One worker per pod, by uid: it alone acts for the pod, on the newest version that it has received.

mod mailbox;
mod worker;

#[cfg(test)]
pub(crate) mod fake_runtime;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_client::Supervisor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::pod_syncer::PodSyncer;
use mailbox::Mailbox;
use worker::{Reached, Worker};

/// The task name under which all workers are supervised.
const TASK: &str = "pod-workers";

/// All workers of the node.
pub struct PodWorkers {
    supervisor: Supervisor,
    syncer: Arc<PodSyncer>,
    /// Uids of pods that ran before this kubelet started: they skip admission.
    running: BTreeSet<String>,
    mailboxes: Mutex<BTreeMap<String, Arc<Mailbox>>>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl PodWorkers {
    pub fn new(
        supervisor: Supervisor,
        syncer: Arc<PodSyncer>,
        running: BTreeSet<String>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (mailboxes, tracker) = (Mutex::default(), TaskTracker::new());
        Arc::new(Self { supervisor, syncer, running, mailboxes, stop, tracker })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new version of a pod; starts a worker for a pod not seen before. To be called inside a tokio
    /// runtime.
    pub fn update(self: &Arc<Self>, pod: Arc<Pod>) {
        let uid = pod.uid().to_owned();
        if uid.is_empty() || self.stop.is_cancelled() {
            return;
        }
        let mut mailboxes = self.lock();
        if let Some(mailbox) = mailboxes.get(&uid) {
            mailbox.update(pod);
        } else {
            let mailbox = Arc::new(Mailbox::new(pod));
            mailboxes.insert(uid.clone(), Arc::clone(&mailbox));
            let working = self.worker(mailbox, self.running.contains(&uid));
            let workers = Arc::clone(self);
            self.tracker.spawn(async move {
                working.await;
                if !workers.stop.is_cancelled() {
                    workers.lock().remove(&uid);
                }
            });
            return;
        }
        drop(mailboxes);
        self.syncer.status.refresh(&uid);
    }

    /// Runs the worker of one pod until the pod is gone. A worker that panics is followed by another one, which
    /// continues from the phase that was reached.
    fn worker(&self, mailbox: Arc<Mailbox>, running: bool) -> impl Future<Output = ()> + Send + use<> {
        let (syncer, reached) = (Arc::clone(&self.syncer), Reached::new(running));
        self.supervisor.run_until_done(TASK, self.stop.clone(), move |stop| {
            let worker = Worker::new(Arc::clone(&syncer), Arc::clone(&mailbox), reached.clone());
            async move {
                tokio::select! {
                    // The pod's containers continue to run.
                    () = stop.cancelled() => {}
                    () = worker.run() => {}
                }
            }
        })
    }

    /// Takes the last version of a pod that the API has removed.
    pub fn delete(&self, last: Arc<Pod>) {
        if let Some(mailbox) = self.lock().get(last.uid()) {
            mailbox.delete(last);
        }
    }

    /// Notifies a pod's worker of an event on this node.
    pub fn notify(&self, uid: &str) {
        if let Some(mailbox) = self.lock().get(uid) {
            mailbox.notify();
        }
    }

    /// Notifies a pod's worker that an object to which the pod refers has changed.
    pub fn notify_from_outside(&self, uid: &str) {
        if let Some(mailbox) = self.lock().get(uid) {
            mailbox.notify_from_outside();
        }
    }

    /// Notifies all workers of an event on this node.
    pub fn notify_all(&self) {
        for mailbox in self.lock().values() {
            mailbox.notify();
        }
    }

    /// Acquires and releases the locks that pod events and passes take. The sync loop's health check calls it: it
    /// returns only if none of them is stuck.
    pub fn pass_through(&self) {
        drop(self.lock());
        self.syncer.pass_through();
    }

    /// The number of pods that have a worker.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether no pod has a worker.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until all workers have ended, after `stop` is cancelled.
    pub async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
