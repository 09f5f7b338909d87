//! Allocated resources during a pass: decides about resizes, records the decision on disk and emits its events.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;

use super::{PodSyncer, blocking, lock, resize};
use crate::allocation::{self, Decided, Outcome, Record};

impl PodSyncer {
    /// Returns the pod with its allocated resources. Decides first about a resize that the pod's spec asks for.
    pub(super) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if lock(&self.allocations).want(pod) {
            self.decide_resizes();
        }
        match lock(&self.allocations).of(pod) {
            std::borrow::Cow::Borrowed(_) => Arc::clone(pod),
            std::borrow::Cow::Owned(pod) => Arc::new(pod),
        }
    }

    /// Allocates resources to pods with a pending resize. To be called whenever more of the node may be free.
    pub fn decide_resizes(&self) {
        let Some(node) = self.node() else { return };
        let now = self.clock.now();
        let decided = {
            let mut allocations = lock(&self.allocations);
            allocations.decide(&node, &mut lock(&self.taken), now)
        };
        if decided.is_empty() {
            return;
        }
        self.weigh();
        for Decided { pod, outcome } in decided {
            let generation = pod.metadata.generation.unwrap_or(0);
            match outcome {
                Outcome::Allocated => {
                    let message = resize::message("started", &pod, generation, "");
                    self.events.normal(&pod, "ResizeStarted", message);
                }
                Outcome::Pending { news: false, .. } => continue,
                Outcome::Pending { rejection, infeasible, .. } => {
                    let reason = if infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
                    let message = resize::message(&rejection.reason, &pod, generation, &rejection.message);
                    self.events.warning(&pod, reason, message);
                }
            }
            (self.wake)(pod.uid());
        }
    }

    /// Records on disk what is allocated to the pod, before the resize is actuated, so that a restarted server
    /// uses the same values. Of the containers that were asked to stop for the resize, the record keeps those
    /// whose replacement has not started yet (`to_replace`).
    pub(super) async fn record_allocation(
        &self,
        pod: &Pod,
        to_replace: &BTreeSet<String>,
    ) -> Result<(), String> {
        let asked = lock(&self.allocations).replaced(pod.uid());
        self.record(pod, &(&asked & to_replace)).await
    }

    /// Records that this container is asked to stop in order to be replaced. The caller sends the request right
    /// afterwards: however the container ends from now on, its replacement is started.
    pub(super) async fn record_replacement(&self, pod: &Pod, id: &str) -> Result<(), String> {
        let mut asked = lock(&self.allocations).replaced(pod.uid());
        asked.insert(id.to_owned());
        self.record(pod, &asked).await
    }

    async fn record(&self, pod: &Pod, replaced: &BTreeSet<String>) -> Result<(), String> {
        let (record, resized) = {
            let allocations = lock(&self.allocations);
            let Some(record) = allocations.unrecorded(pod.uid(), replaced) else { return Ok(()) };
            (record, allocations.in_progress(pod.uid()) || !replaced.is_empty())
        };
        let (dirs, uid, written) = (self.config.dirs(), pod.uid().to_owned(), record.clone());
        let written = blocking(move || allocation::write(&dirs, &uid, &written, resized)).await?;
        written.map_err(|error| error.to_string())?;
        lock(&self.allocations).set_recorded(pod.uid(), &record);
        Ok(())
    }

    /// Ends the resize: all running containers of the pod have the allocated resources.
    pub(super) fn finish_resize(&self, pod: &Pod) {
        // The lock is held so that no other resources are allocated to the pod in between.
        let mut allocations = lock(&self.allocations);
        let Some(generation) = allocations.finish(pod) else { return };
        lock(&self.taken).add(pod);
        drop(allocations);
        self.weigh();
        let message = resize::message("completed", pod, generation, "");
        self.events.normal(pod, "ResizeCompleted", message);
        self.decide_resizes();
    }

    /// Records that the resize cannot be actuated, and emits `ResizeError` if the error is a new one.
    pub(super) fn fail_resize(&self, pod: &Pod, error: &str) {
        let failed = lock(&self.allocations).fail(pod.uid(), error, self.clock.now());
        if let Some(generation) = failed {
            self.events.warning(pod, "ResizeError", resize::message("error", pod, generation, error));
        }
    }

    /// Counts pods that were admitted before this kubelet started, with the resources that were allocated to them
    /// then. Each pod comes with whether it runs; a pod that neither runs nor has a record is skipped.
    pub async fn take_up(&self, pods: Vec<(Arc<Pod>, bool)>) -> Result<(), String> {
        let dirs = self.config.dirs();
        let pods = blocking(move || {
            let with_record = |(pod, runs): (Arc<Pod>, bool)| (recorded(&dirs, &pod), pod, runs);
            pods.into_iter().map(with_record).collect::<Vec<_>>()
        });
        for (record, pod, runs) in pods.await? {
            if record.is_none() && !runs {
                continue;
            }
            let mut allocations = lock(&self.allocations);
            allocations.take_up(&pod, record);
            lock(&self.taken).add(&allocations.of(&pod));
        }
        self.weigh();
        Ok(())
    }
}

/// Reads the pod's record; one that cannot be read counts as missing.
fn recorded(dirs: &crate::config::PodDirs, pod: &Pod) -> Option<Record> {
    allocation::read(dirs, pod.uid()).unwrap_or_else(|error| {
        tracing::warn!(pod = %crate::pod::format(pod), %error, "cannot read the allocated resources");
        None
    })
}
