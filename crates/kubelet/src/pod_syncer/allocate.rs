//! What a pod is given of the node, as the passes see it: decided here, recorded, and published.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;

use super::{PodSyncer, blocking, lock, resize};
use crate::allocation::{self, Decided, Outcome, Record};

impl PodSyncer {
    /// The pod with the resources that it was given. What it wants beside them is decided about first.
    pub(super) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if lock(&self.allocations).want(pod) {
            self.decide_resizes();
        }
        match lock(&self.allocations).of(pod) {
            std::borrow::Cow::Borrowed(_) => Arc::clone(pod),
            std::borrow::Cow::Owned(pod) => Arc::new(pod),
        }
    }

    /// Gives room to pods whose resize waits; to be called whenever there may be more of it.
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

    /// Writes down what the pod was given, before it is carried out, so that a restarted server goes by it. Of the
    /// containers that were asked to stop for it those stay on record that are still to be followed by others.
    pub(super) async fn record_allocation(
        &self,
        pod: &Pod,
        to_replace: &BTreeSet<String>,
    ) -> Result<(), String> {
        let asked = lock(&self.allocations).replaced(pod.uid());
        self.record(pod, &(&asked & to_replace)).await
    }

    /// Writes down that this container is asked to stop so that another one can follow it. The request is the next thing
    /// to do: however the container ends from now on, the other one follows.
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

    /// Everything that runs of the pod has what the pod was given.
    pub(super) fn finish_resize(&self, pod: &Pod) {
        // Nobody gives the pod its next resources in between.
        let mut allocations = lock(&self.allocations);
        let Some(generation) = allocations.finish(pod) else { return };
        lock(&self.taken).add(pod);
        drop(allocations);
        self.weigh();
        let message = resize::message("completed", pod, generation, "");
        self.events.normal(pod, "ResizeCompleted", message);
        self.decide_resizes();
    }

    pub(super) fn fail_resize(&self, pod: &Pod, error: &str) {
        let failed = lock(&self.allocations).fail(pod.uid(), error, self.clock.now());
        if let Some(generation) = failed {
            self.events.warning(pod, "ResizeError", resize::message("error", pod, generation, error));
        }
    }

    /// Counts pods that were admitted before this kubelet started, by what they were given then. Each is one that
    /// runs, or has a record.
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

/// A record that cannot be read is as none.
fn recorded(dirs: &crate::config::PodDirs, pod: &Pod) -> Option<Record> {
    allocation::read(dirs, pod.uid()).unwrap_or_else(|error| {
        tracing::warn!(pod = %crate::pod::format(pod), %error, "what the pod was given is not known");
        None
    })
}
