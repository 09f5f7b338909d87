//! Checks whether a pod would fit on a node with some pods added or removed.

use std::sync::Arc;

use crate::framework::points::NodeView;
use crate::framework::work::Work;
use crate::framework::{Code, NodeFilter, Scope, Status};
use crate::metrics::Metrics;
use crate::snapshot::{NodeIdx, NodeRow, PlacedPod, Snapshot};

/// One node in a hypothetical state. Filters with cluster scope are copied, and the copies see the changes.
pub struct Trial<'a> {
    cluster: &'a Snapshot,
    at: NodeIdx,
    row: NodeRow,
    /// All filters in order; those with cluster scope as copies.
    filters: Vec<(&'static str, Judge<'a>)>,
    /// Records how long the copied filters take to process a change.
    measured: Option<&'a Metrics>,
}

enum Judge<'a> {
    Kept(&'a dyn NodeFilter),
    Copied(Box<dyn NodeFilter>),
}

impl<'a> Trial<'a> {
    /// Starts with the node as it is.
    pub fn new(cluster: &'a Snapshot, work: &'a Work, at: NodeIdx) -> Self {
        let filters = work.filters.iter().map(|active| {
            let judge = match active.scope {
                Scope::Row => Judge::Kept(&*active.filter),
                Scope::Cluster => Judge::Copied(active.filter.boxed()),
            };
            (active.plugin, judge)
        });
        Self {
            cluster,
            at,
            row: cluster.row(at).clone(),
            filters: filters.collect(),
            measured: work.measured.as_deref(),
        }
    }

    /// Adds a pod to the node.
    pub fn add(&mut self, pod: &Arc<PlacedPod>) {
        self.row.put_on(Arc::clone(pod));
        self.update_filters(self.at, pod, 1);
    }

    /// Removes a pod from the node.
    pub fn remove(&mut self, pod: &PlacedPod) {
        self.row.take_off(&pod.uid);
        self.update_filters(self.at, pod, -1);
    }

    /// Like `add`, for a pod on any node. Changes on other nodes reach only the filters with cluster scope.
    pub fn add_on(&mut self, at: NodeIdx, pod: &Arc<PlacedPod>) {
        if at == self.at { self.add(pod) } else { self.update_filters(at, pod, 1) }
    }

    /// Like `remove`, for a pod on any node.
    pub fn remove_on(&mut self, at: NodeIdx, pod: &PlacedPod) {
        if at == self.at { self.remove(pod) } else { self.update_filters(at, pod, -1) }
    }

    fn update_filters(&mut self, at: NodeIdx, pod: &PlacedPod, delta: i32) {
        let point = if delta > 0 { "PreFilterExtensionAddPod" } else { "PreFilterExtensionRemovePod" };
        for (plugin, judge) in &mut self.filters {
            let Judge::Copied(filter) = judge else { continue };
            let begun = self.measured.map(|metrics| (metrics, metrics.now()));
            filter.pod_changed(self.cluster, at, &pod.footprint, delta);
            if let Some((metrics, begun)) = begun {
                metrics.plugin_since(point, plugin, Code::Success, begun);
            }
        }
    }

    /// Returns the first verdict against the node in its hypothetical state.
    pub fn check(&self) -> Option<(&'static str, Status)> {
        let node = NodeView { cluster: self.cluster, at: self.at, row: &self.row };
        let verdicts = self.filters.iter().map(|(plugin, judge)| {
            let status = match judge {
                Judge::Kept(filter) => filter.check(&node),
                Judge::Copied(filter) => filter.check(&node),
            };
            (*plugin, status)
        });
        { verdicts }.find(|(_, status)| !status.is_success())
    }

    /// Like `check`, but the node must pass both with and without these pods added.
    pub fn check_with(&mut self, nominated: &[Arc<PlacedPod>]) -> Option<(&'static str, Status)> {
        if nominated.is_empty() {
            return self.check();
        }
        nominated.iter().for_each(|pod| self.add(pod));
        let with = self.check();
        nominated.iter().for_each(|pod| self.remove(pod));
        with.or_else(|| self.check())
    }
}
