//! A copy of the cluster on which a pod group is placed on trial, with pods removed and put back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::framework::{Code, CycleState, GroupTrial, PodInfo, Scope, Status};
use crate::schedule_group::{Attempted, Found, Ground, Verdict};
use crate::schedule_one::{Cycles, Outcome};
use crate::scheduler::Scheduler;
use crate::snapshot::{NodeIdx, PlacedPod, Snapshot};

/// The scheduler chooses at random among equal nodes; on trial it always makes the same choice.
const SEED: u64 = 1;

/// The copied snapshot, with its own cycles.
struct Copy {
    cluster: Snapshot,
    cycles: Cycles,
}

impl Ground for Copy {
    fn cluster(&self) -> &Snapshot {
        &self.cluster
    }

    fn find(&mut self, attempted: &Attempted, pod: &PodInfo) -> Outcome {
        self.cycles.schedule(attempted.at, attempted.profile, &self.cluster, pod)
    }

    fn put(&mut self, pod: &PodInfo, node: &str) {
        if let Some(at) = self.cluster.find(node) {
            let placed = Arc::new(pod.placed());
            self.cluster.nominate(&placed, None);
            self.cluster.add_pod(at, placed);
        }
    }

    fn take_back(&mut self, pod: &PodInfo, node: &str) {
        if let Some(at) = self.cluster.find(node) {
            self.cluster.remove_pod(at, &pod.uid);
            if let Some(nominated) = &pod.nominated_node {
                self.cluster.nominate(&Arc::new(pod.placed()), Some(nominated));
            }
        }
    }
}

/// A group on a copy of the cluster. The copy is made with the first change.
pub(crate) struct OnTrial<'a> {
    scheduler: &'a Scheduler,
    attempted: &'a Attempted<'a>,
    original: &'a Snapshot,
    copy: Option<Copy>,
    placed: Vec<(Arc<PodInfo>, NodeIdx)>,
}

impl<'a> OnTrial<'a> {
    pub(crate) fn new(
        scheduler: &'a Scheduler,
        attempted: &'a Attempted<'a>,
        original: &'a Snapshot,
    ) -> Self {
        Self { scheduler, attempted, original, copy: None, placed: Vec::new() }
    }

    fn copy(&mut self) -> &mut Copy {
        let original = self.original;
        self.copy.get_or_insert_with(|| Copy { cluster: original.clone(), cycles: Cycles::new(SEED) })
    }

    /// Returns whether a change on other nodes can affect where the pod fits.
    fn looks_around(&self, pod: &PodInfo) -> bool {
        let work = self.copy.as_ref().and_then(|copy| copy.cycles.work(self.attempted.at, pod.shape.id));
        work.is_none_or(|work| work.filters.iter().any(|f| f.scope == Scope::Cluster))
    }
}

impl GroupTrial for OnTrial<'_> {
    fn cluster(&self) -> &Snapshot {
        self.copy.as_ref().map_or(self.original, |copy| &copy.cluster)
    }

    fn remove(&mut self, at: NodeIdx, pod: &PlacedPod) {
        self.copy().cluster.remove_pod(at, &pod.uid);
    }

    fn add(&mut self, at: NodeIdx, pod: &Arc<PlacedPod>) {
        self.copy().cluster.add_pod(at, Arc::clone(pod));
    }

    fn place(&mut self) -> Result<BTreeMap<Box<str>, Box<str>>, Status> {
        let (scheduler, attempted) = (self.scheduler, self.attempted);
        let (found, verdict) = scheduler.place_group(self.copy(), attempted);
        match verdict {
            Verdict::Fits => {}
            Verdict::Unschedulable(_) => return Err(Status::unschedulable(verdict.message())),
            Verdict::Failed(why) => return Err(Status::new(Code::Error, why)),
        }
        let mut nodes = BTreeMap::new();
        let mut reserved: Vec<(&Arc<PodInfo>, String, CycleState)> = Vec::new();
        for (pod, one) in attempted.pods.iter().zip(found) {
            let Found::Placed { node, state } = one else { continue };
            if let Some(at) = self.cluster().find(&node) {
                self.placed.push((Arc::clone(pod), at));
            }
            nodes.insert(pod.uid.clone(), node.as_str().into());
            reserved.push((pod, node, state));
        }
        // Nothing stays reserved after a trial.
        for (pod, node, mut state) in reserved.into_iter().rev() {
            scheduler.unreserve(attempted.profile, &mut state, pod, &node);
        }
        Ok(nodes)
    }

    fn still_fit(&mut self, touched: &BTreeSet<NodeIdx>) -> bool {
        let concerned = |(pod, at): &&(Arc<PodInfo>, NodeIdx)| touched.contains(at) || self.looks_around(pod);
        let concerned: Vec<_> = self.placed.iter().filter(concerned).cloned().collect();
        let Attempted { at: profile_at, profile, .. } = *self.attempted;
        let Copy { cluster, cycles } = self.copy();
        for (pod, at) in &concerned {
            cluster.remove_pod(*at, &pod.uid);
        }
        let mut fit = true;
        for (pod, at) in &concerned {
            fit = fit && !cycles.fitting(profile_at, profile, cluster, pod, &[*at]).is_empty();
            cluster.add_pod(*at, Arc::new(pod.placed()));
        }
        fit
    }
}
