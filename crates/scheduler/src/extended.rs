//! The cycle of a pod that extenders take part in. It runs in steps: extenders are called between them without the
//! lock, and the cluster is read again after each answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;

use crate::decide::Rooms;
use crate::diagnosis::Diagnosis;
use crate::extender::{self, Candidate, Filtered};
use crate::framework::{NoRoom, PodInfo, Profile, Room, Status};
use crate::schedule_one::Outcome;
use crate::scheduler::{Next, Scheduler, State};
use crate::snapshot::NodeIdx;

/// The error with which a pod is retried when none of the nodes that extenders returned fits any more.
pub(crate) const CHANGED: &str = "the nodes changed while extenders were asked";

/// Returns the best of these nodes among those that still fit the pod.
pub(crate) fn best_left(
    state: &mut State,
    (at, profile): (usize, &Profile),
    pod: &PodInfo,
    names: &[String],
    scores: &BTreeMap<String, i64>,
) -> Option<NodeIdx> {
    let cluster = state.cache.snapshot();
    let left: Vec<_> = names.iter().filter_map(|name| cluster.find(name)).collect();
    let left = state.cycles.fitting(at, profile, cluster, pod, &left);
    let more = |at| scores.get(cluster.row(at).name()).copied().unwrap_or(0);
    state.cycles.best(at, cluster, pod, &left, more)
}

impl Scheduler {
    pub(crate) async fn extended_cycle(self: Arc<Self>, pod: Arc<PodInfo>) {
        let name = pod.scheduler_name().to_owned();
        // Nothing has been written before the decision, so ending here leaves nothing behind.
        let (next, begun) = tokio::select! {
            biased;
            () = self.background.ending() => return,
            decided = self.extended_decision(pod) => decided,
        };
        if let Some((_, profile)) = self.profiles.find(&name) {
            self.count(profile, next.result(), begun);
        }
        self.carry_on(next).await;
    }

    /// Decides what to do with the pod. Returns the step with the time at which the attempt began.
    async fn extended_decision(&self, pod: Arc<PodInfo>) -> (Next, Duration) {
        let _turn = self.extended.lock().await;
        let begun = self.now();
        (self.decide_extended(pod, begun).await, begun)
    }

    /// The pod object from the informer; `None` when it no longer needs to be scheduled.
    pub(crate) fn whole(&self, pod: &PodInfo) -> Option<Arc<Pod>> {
        let whole = self.catalog.get::<Pod>(pod.namespace(), &pod.name)?;
        (*whole.uid() == *pod.uid && self.lock().queue.get(pod.uid()).is_some()).then_some(whole)
    }

    async fn decide_extended(&self, pod: Arc<PodInfo>, begun: Duration) -> Next {
        let Some((at, profile)) = self.profiles.find(pod.scheduler_name()) else { return Next::Nothing };
        let Some(whole) = self.whole(&pod) else {
            self.lock().queue.remove(pod.uid());
            return Next::Nothing;
        };
        let names = match self.feasible_names(at, profile, &pod) {
            Ok(names) => names,
            Err(Outcome::NoFit(diagnosis)) => {
                return self.no_fit_extended(at, profile, pod, &whole, *diagnosis).await;
            }
            Err(Outcome::Failed(why)) => return Self::failed(pod, why),
            Err(Outcome::Placed(_)) => return Next::Nothing,
        };
        let (filtered, scores) = match self.ask(&whole, &names).await {
            Ok(answers) => answers,
            Err(why) => return Self::failed(pod, why),
        };
        if filtered.nodes.is_empty() {
            let diagnosis = self.diagnose_extended(at, &pod, &filtered);
            return match diagnosis {
                Ok(diagnosis) => self.no_fit_extended(at, profile, pod, &whole, diagnosis).await,
                Err(why) => Self::failed(pod, why),
            };
        }
        self.place_extended((at, profile), pod, &filtered.nodes, &scores, begun)
    }

    /// Returns the names of the nodes that pass the plugins' filters.
    pub(crate) fn feasible_names(
        &self,
        at: usize,
        profile: &Profile,
        pod: &PodInfo,
    ) -> Result<Vec<String>, Outcome> {
        let mut state = self.lock();
        let state = &mut *state;
        let cluster = state.cache.snapshot();
        let found = state.cycles.feasible(at, profile, cluster, pod);
        found.map(|nodes| nodes.iter().map(|at| cluster.row(*at).name().to_owned()).collect())
    }

    /// Calls the extenders: returns the nodes they accept, and their scores where more than one node is left.
    pub(crate) async fn ask(
        &self,
        whole: &Pod,
        names: &[String],
    ) -> Result<(Filtered, BTreeMap<String, i64>), String> {
        let nodes: Vec<Arc<Node>> = names.iter().filter_map(|n| self.catalog.get::<Node>("", n)).collect();
        let clock = Arc::clone(self.client.clock());
        let filtered = self.extenders.filter(&*clock, whole, &nodes).await;
        let filtered = filtered.map_err(|error| extender::chain(&error))?;
        let scores = match filtered.nodes.len() {
            0 | 1 => BTreeMap::new(),
            _ => self.extenders.prioritize(&*clock, whole, &nodes, &filtered.nodes).await,
        };
        Ok((filtered, scores))
    }

    /// Chooses among the nodes that extenders accepted, if they still fit.
    fn place_extended(
        &self,
        (at, profile): (usize, &Profile),
        pod: Arc<PodInfo>,
        names: &[String],
        scores: &BTreeMap<String, i64>,
        begun: Duration,
    ) -> Next {
        let mut state = self.lock();
        let state = &mut *state;
        if state.queue.get(pod.uid()).is_none() || state.cache.is_assumed(pod.uid()) {
            return Next::Nothing;
        }
        match best_left(state, (at, profile), &pod, names, scores) {
            Some(node) => self.place(&mut state.cache, profile, pod, node, begun),
            None => Self::failed(pod, CHANGED.to_owned()),
        }
    }

    /// Combines the plugins' verdicts with those of the extenders.
    pub(crate) fn diagnose_extended(
        &self,
        at: usize,
        pod: &PodInfo,
        filtered: &Filtered,
    ) -> Result<Diagnosis, String> {
        let state = self.lock();
        let cluster = state.cache.snapshot();
        let mut diagnosis = state.cycles.diagnose(at, cluster, pod)?;
        diagnosis.plugins.insert(crate::diagnosis::EXTENDER);
        let unresolvable =
            filtered.unresolvable.iter().map(|(n, why)| (n, Status::unresolvable(why.clone())));
        let failed = filtered.failed.iter().map(|(n, why)| (n, Status::unschedulable(why.clone())));
        for (name, status) in unresolvable.chain(failed) {
            if let Some(node) = cluster.find(name) {
                diagnosis.reject(node, crate::diagnosis::EXTENDER, status);
            }
        }
        Ok(diagnosis)
    }

    /// Preempts where extenders agree to it, and marks the pod unschedulable.
    async fn no_fit_extended(
        &self,
        at: usize,
        profile: &Profile,
        pod: Arc<PodInfo>,
        whole: &Pod,
        mut diagnosis: Diagnosis,
    ) -> Next {
        let rooms = self.rooms(&self.lock(), at, profile, &pod, &diagnosis);
        let rooms = match rooms {
            Ok((plugin, rooms)) => {
                let candidates = self.candidates(&rooms);
                let clock = Arc::clone(self.client.clock());
                match self.extenders.preempt(&*clock, whole, candidates).await {
                    Ok(left) => self.agreed(left, plugin),
                    Err(error) => Err(Some(NoRoom {
                        words: format!("preemption: {}", crate::extender::chain(&error)),
                        withdraw: false,
                    })),
                }
            }
            none => none,
        };
        let mut state = self.lock();
        let nomination = self.take_room(&mut state, &pod, &mut diagnosis, rooms);
        drop(state);
        self.no_fit(profile, pod, diagnosis, nomination)
    }

    /// Converts the preemption candidates to the extenders' form: by node name, with full pod objects.
    fn candidates(&self, rooms: &[Room]) -> BTreeMap<String, Candidate> {
        let state = self.lock();
        let cluster = state.cache.snapshot();
        let pods = |placed: &[Arc<crate::snapshot::PlacedPod>]| {
            placed.iter().filter_map(|p| self.catalog.get::<Pod>(p.namespace(), &p.name)).collect()
        };
        let candidate = |room: &Room| {
            let row = cluster.row(room.node);
            let (victims, there) = (pods(&room.victims), pods(&row.pods));
            (row.name().to_owned(), Candidate { victims, there, violations: room.violations })
        };
        rooms.iter().map(candidate).collect()
    }

    /// Converts the candidates that extenders left back, and ranks them.
    fn agreed(
        &self,
        left: BTreeMap<String, Candidate>,
        plugin: Arc<dyn crate::framework::PostFilter>,
    ) -> Rooms {
        let state = self.lock();
        let cluster = state.cache.snapshot();
        let room = |(name, candidate): (String, Candidate)| {
            let node = cluster.find(&name)?;
            let there = |uid: &str| cluster.row(node).pods.iter().find(|p| *p.uid == *uid).cloned();
            let victims = candidate.victims.iter().filter_map(|p| there(p.uid())).collect();
            Some(Room { node, victims, violations: candidate.violations })
        };
        let mut rooms: Vec<Room> = left.into_iter().filter_map(room).collect();
        if rooms.is_empty() {
            let words = "preemption: no candidate node for preemption".to_owned();
            return Err(Some(NoRoom { words, withdraw: true }));
        }
        plugin.rank(&mut rooms);
        Ok((plugin, rooms))
    }
}
