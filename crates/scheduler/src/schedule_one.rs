//! One scheduling cycle as a function of the snapshot: filter the nodes, score what is left, choose.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fastrand::Rng;

use crate::diagnosis::Diagnosis;
use crate::framework::points::NodeView;
use crate::framework::work::Work;
use crate::framework::{Code, PodInfo, Profile, Shape, Status};
use crate::metrics::{Metric, Metrics, SAMPLED};
use crate::snapshot::{NodeIdx, PlacedPod, Snapshot};
use crate::trial::Trial;

/// In clusters up to this size all nodes are searched.
const MIN_FEASIBLE_NODES: usize = 100;
/// The minimum of the adaptive percentage of nodes to find.
const MIN_PERCENTAGE: usize = 5;
/// The number of shapes whose work is cached; the least recently used is dropped first.
const KEPT_SHAPES: usize = 512;

/// The outcome of a scheduling cycle.
pub enum Outcome {
    /// The chosen node.
    Placed(NodeIdx),
    NoFit(Box<Diagnosis>),
    /// A plugin failed.
    Failed(String),
}

struct Kept {
    /// Keeps the shape alive, so that it keeps its id while no pod with it waits.
    shape: Arc<Shape>,
    work: Work,
    used: u64,
    /// The number of cycles that used its filters, and its scores, and that are not in `evaluations` yet.
    filtered: u64,
    scored: u64,
    /// The last diagnosis, with the position of the log that it is valid for.
    diagnosis: Option<(u64, Diagnosis)>,
}

/// The number of evaluations, by the profile's index, the extension point and the plugin.
pub type Evaluations = BTreeMap<(usize, &'static str, &'static str), u64>;

/// The state that is kept between cycles.
pub struct Cycles {
    /// Where the next search starts, so that nodes are searched round robin.
    start: NodeIdx,
    rng: Rng,
    turn: u64,
    /// The cached work, by profile index and shape id.
    kept: HashMap<(usize, u64), Kept>,
    /// Evaluations of cached work that was dropped, not reported yet.
    evaluations: Evaluations,
    metrics: Option<Arc<Metrics>>,
}

impl Kept {
    /// Moves the counts to `all`. The plugins of a shape's cached work count as evaluated in each cycle that used it.
    fn move_counts(&mut self, at: usize, all: &mut Evaluations) {
        let (filtered, scored) = (std::mem::take(&mut self.filtered), std::mem::take(&mut self.scored));
        let filters = self.work.filters.iter().map(|f| (["PreFilter", "Filter"], f.plugin, filtered));
        let scores = self.work.scores.iter().map(|s| (["PreScore", "Score"], s.plugin, scored));
        for (points, plugin, n) in filters.chain(scores).filter(|(_, _, n)| *n > 0) {
            points.into_iter().for_each(|point| *all.entry((at, point, plugin)).or_default() += n);
        }
    }
}

/// The number of feasible nodes after which the search stops. Source: upstream's adaptive `percentageOfNodesToScore`.
pub fn feasible_nodes_to_find(nodes: usize, percentage: usize) -> usize {
    if nodes < MIN_FEASIBLE_NODES || percentage >= 100 {
        return nodes;
    }
    let percentage =
        if percentage > 0 { percentage } else { 50usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE) };
    (nodes * percentage / 100).max(MIN_FEASIBLE_NODES)
}

impl Cycles {
    /// Creates the state without cached work; `seed` is that of the choice among equal nodes.
    pub fn new(seed: u64) -> Self {
        Self {
            start: 0,
            rng: Rng::with_seed(seed),
            turn: 0,
            kept: HashMap::new(),
            evaluations: BTreeMap::new(),
            metrics: None,
        }
    }

    /// Like `new`, but records durations.
    pub fn measured(seed: u64, metrics: Arc<Metrics>) -> Self {
        Self { metrics: Some(metrics), ..Self::new(seed) }
    }

    /// Finds a node for the pod. `at` is the index of its profile.
    pub fn schedule(&mut self, at: usize, profile: &Profile, cluster: &Snapshot, pod: &PodInfo) -> Outcome {
        match self.feasible(at, profile, cluster, pod) {
            Ok(feasible) => {
                self.record_pre_score(at, profile, pod);
                let begun = self.metrics.as_ref().map(|m| m.now());
                let best = self.best(at, cluster, pod, &feasible, |_| 0);
                if let (Some(metrics), Some(begun)) = (&self.metrics, begun) {
                    metrics.point("Score", &profile.scheduler_name, Code::Success, begun);
                }
                let nothing = || Outcome::Failed("no node is left to choose from".to_owned());
                best.map_or_else(nothing, Outcome::Placed)
            }
            Err(outcome) => outcome,
        }
    }

    /// Returns nodes that the pod fits on, up to the number to find, or the outcome that says why there are none.
    pub fn feasible(
        &mut self,
        at: usize,
        profile: &Profile,
        cluster: &Snapshot,
        pod: &PodInfo,
    ) -> Result<Vec<NodeIdx>, Outcome> {
        if cluster.is_empty() {
            return Err(Outcome::NoFit(Box::default()));
        }
        self.turn += 1;
        let (key, turn) = ((at, pod.shape.id), self.turn);
        if !self.kept.contains_key(&key) && self.kept.len() >= KEPT_SHAPES {
            self.forget_oldest();
        }
        let kept = self.kept.entry(key).or_insert_with(|| Kept {
            work: Work::new(profile, cluster, &pod.shape),
            shape: Arc::clone(&pod.shape),
            used: turn,
            filtered: 0,
            scored: 0,
            diagnosis: None,
        });
        kept.used = turn;
        let begun = self.metrics.as_ref().map(|m| m.now());
        if kept.work.catch_up(profile, cluster, &kept.shape) {
            kept.diagnosis = None;
        }
        kept.filtered += 1;
        kept.work.measured = self.metrics.clone().filter(|_| turn.is_multiple_of(SAMPLED));
        if let (Some(metrics), Some(begun)) = (&self.metrics, begun) {
            let code = kept.work.rejected.as_ref().map_or(Code::Success, |(_, status)| status.code);
            metrics.point("PreFilter", &profile.scheduler_name, code, begun);
        }
        let position = cluster.log().position();
        if let Some((known, diagnosis)) = &kept.diagnosis
            && *known == position
            && pod.nominated_node.is_none()
        {
            return Err(Outcome::NoFit(Box::new(diagnosis.clone())));
        }
        let begun = self.metrics.as_ref().map(|m| m.now());
        let feasible = find(&mut kept.work, profile, cluster, pod, &mut self.start);
        if let (Some(metrics), Some(begun)) = (&self.metrics, begun) {
            let code = if feasible.is_empty() { Code::Unschedulable } else { Code::Success };
            metrics.point("Filter", &profile.scheduler_name, code, begun);
            if turn.is_multiple_of(SAMPLED) {
                sample(metrics, &kept.work, cluster, feasible.first().copied());
            }
        }
        if !feasible.is_empty() {
            return Ok(feasible);
        }
        match diagnose(&kept.work, cluster, pod) {
            Ok(diagnosis) => {
                kept.diagnosis = cluster.nominated().is_empty().then(|| (position, diagnosis.clone()));
                Err(Outcome::NoFit(Box::new(diagnosis)))
            }
            Err(failed) => Err(Outcome::Failed(failed)),
        }
    }

    /// Returns those of these nodes that the pod fits on at present.
    pub fn fitting(
        &mut self,
        at: usize,
        profile: &Profile,
        cluster: &Snapshot,
        pod: &PodInfo,
        nodes: &[NodeIdx],
    ) -> Vec<NodeIdx> {
        let Some(kept) = self.kept.get_mut(&(at, pod.shape.id)) else { return Vec::new() };
        if kept.work.catch_up(profile, cluster, &kept.shape) {
            kept.diagnosis = None;
        }
        if kept.work.rejected.is_some() {
            return Vec::new();
        }
        let mut fits = |at: &NodeIdx| {
            let node = NodeView { cluster, at: *at, row: cluster.row(*at) };
            kept.work.passes_local(cluster, *at)
                && kept.work.passes_cluster(&node)
                && passes_with_nominated(&kept.work, &node, pod)
        };
        nodes.iter().copied().filter(|at| fits(at)).collect()
    }

    /// Returns one of the best of these nodes, where `more` is added to the plugins' scores.
    pub fn best(
        &mut self,
        at: usize,
        cluster: &Snapshot,
        pod: &PodInfo,
        feasible: &[NodeIdx],
        more: impl Fn(NodeIdx) -> i64,
    ) -> Option<NodeIdx> {
        if let [only] = feasible {
            return Some(*only);
        }
        let kept = self.kept.get_mut(&(at, pod.shape.id))?;
        kept.scored += 1;
        let mut totals = kept.work.totals(cluster, feasible);
        feasible.iter().zip(&mut totals).for_each(|(at, total)| *total = total.saturating_add(more(*at)));
        (!feasible.is_empty()).then(|| choose(feasible, &totals, &mut self.rng))
    }

    /// Returns why the pod does not fit on the nodes that its plugins reject.
    pub fn diagnose(&self, at: usize, cluster: &Snapshot, pod: &PodInfo) -> Result<Diagnosis, String> {
        match self.work(at, pod.shape.id) {
            Some(work) => diagnose(work, cluster, pod),
            None => Ok(Diagnosis::new(cluster.len())),
        }
    }

    /// Records the duration of PreScore. Scores are prepared together with a shape's filters; with cached work it is
    /// zero.
    fn record_pre_score(&mut self, at: usize, profile: &Profile, pod: &PodInfo) {
        let Some(metrics) = &self.metrics else { return };
        let took =
            self.kept.get_mut(&(at, pod.shape.id)).map(|kept| std::mem::take(&mut kept.work.pre_score));
        let labels = ["PreScore", &profile.scheduler_name, "Success"];
        metrics.record(Metric::PointDuration, &labels, took.unwrap_or_default().as_secs_f64());
    }

    fn forget_oldest(&mut self) {
        if let Some(key) = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key)
            && let Some(mut kept) = self.kept.remove(&key)
        {
            kept.move_counts(key.0, &mut self.evaluations);
        }
    }

    /// Returns the evaluations since the last call.
    pub fn take_evaluations(&mut self) -> Evaluations {
        let mut all = std::mem::take(&mut self.evaluations);
        self.kept.iter_mut().for_each(|((at, _), kept)| kept.move_counts(*at, &mut all));
        all
    }

    /// The cached work of a shape, if there is any.
    pub fn work(&self, at: usize, shape: u64) -> Option<&Work> {
        self.kept.get(&(at, shape)).map(|kept| &kept.work)
    }
}

/// Runs every active plugin once more for one node, and records how long it takes.
fn sample(metrics: &Metrics, work: &Work, cluster: &Snapshot, node: Option<NodeIdx>) {
    let Some(at) = node.or_else(|| cluster.live().iter().next()) else { return };
    let node = NodeView { cluster, at, row: cluster.row(at) };
    for active in &work.filters {
        metrics.plugin("Filter", active.plugin, || active.filter.check(&node));
    }
    for active in &work.scores {
        metrics.plugin("Score", active.plugin, || {
            active.score.score(&node);
            Status::SUCCESS
        });
        let mut scores = [active.score.score(&node)];
        metrics.plugin("ScoreExtensionNormalize", active.plugin, || {
            active.score.normalize(cluster, &[at], &mut scores);
            Status::SUCCESS
        });
    }
}

/// Returns feasible nodes, up to the number to find, starting at `start`.
fn find(
    work: &mut Work,
    profile: &Profile,
    cluster: &Snapshot,
    pod: &PodInfo,
    start: &mut NodeIdx,
) -> Vec<NodeIdx> {
    if work.rejected.is_some() {
        return Vec::new();
    }
    // Rows are read only where they decide: thousands of them do not fit into the processor's cache.
    let (local_only, nobody) = (work.is_local(), cluster.nominated().is_empty());
    let fits = |work: &Work, at: NodeIdx| {
        if local_only && nobody {
            return true;
        }
        let node = NodeView { cluster, at, row: cluster.row(at) };
        work.passes_cluster(&node) && (nobody || passes_with_nominated(work, &node, pod))
    };
    if let Some(at) = pod.nominated_node.as_deref().and_then(|name| cluster.find(name))
        && work.passes_local(cluster, at)
        && fits(work, at)
    {
        return vec![at];
    }
    let nodes = work.only.as_ref().map_or(cluster.len(), |(only, _)| only.count());
    let wanted =
        if profile.points.score.is_empty() { 1 } else { feasible_nodes_to_find(nodes, profile.percentage) };
    let mut feasible = Vec::with_capacity(wanted.min(nodes));
    let mut last = None;
    if let Some(local) = work.all_local() {
        let mut all = local.iter_round(*start).filter(|at| fits(work, *at));
        feasible.extend(all.by_ref().take(wanted));
        last = feasible.last().copied().filter(|_| feasible.len() == wanted);
    } else {
        let (mut from, mut around) = (*start, false);
        while feasible.len() < wanted {
            match work.next_local(cluster, from).filter(|at| !around || at < start) {
                Some(at) => {
                    from = at + 1;
                    if fits(work, at) {
                        feasible.push(at);
                        last = Some(at).filter(|_| feasible.len() == wanted);
                    }
                }
                None if around => break,
                None => (from, around) = (0, true),
            }
        }
    }
    if let Some(last) = last {
        *start = (last + 1) % cluster.bound() as NodeIdx;
    }
    feasible
}

/// Returns whether the node still fits when the nominated pods that this pod may not displace are counted on it.
fn passes_with_nominated(work: &Work, node: &NodeView, pod: &PodInfo) -> bool {
    let nominated = nominated_before(node.cluster, node.row.name(), pod);
    nominated.is_empty() || Trial::new(node.cluster, work, node.at).check_with(&nominated).is_none()
}

/// The pods nominated to a node whose priority is at least that of this pod.
pub fn nominated_before(cluster: &Snapshot, node: &str, pod: &PodInfo) -> Vec<Arc<PlacedPod>> {
    let all = cluster.nominated();
    if all.is_empty() {
        return Vec::new();
    }
    let here = all.get(node).into_iter().flatten();
    here.filter(|n| n.footprint.priority >= pod.priority() && *n.uid != *pod.uid).cloned().collect()
}

/// Returns the first verdict against the node, if there is one.
pub fn check_node(work: &Work, node: &NodeView) -> Option<(&'static str, Status)> {
    let verdicts = work.filters.iter().map(|f| (f.plugin, f.filter.check(node)));
    { verdicts }.find(|(_, status)| !status.is_success())
}

/// Returns every node with the first verdict against it, or an error when a plugin failed.
fn diagnose(work: &Work, cluster: &Snapshot, pod: &PodInfo) -> Result<Diagnosis, String> {
    let mut diagnosis = Diagnosis::new(cluster.len());
    if let Some((plugins, status)) = &work.rejected {
        diagnosis.plugins.clone_from(plugins);
        diagnosis.pre_filter = Some(status.message());
        if status.code == Code::Error {
            let plugin = plugins.iter().next().copied().unwrap_or_default();
            return Err(format!("running PreFilter plugin {plugin:?}: {}", status.message()));
        }
        for at in cluster.live().iter() {
            plugins.iter().take(1).for_each(|plugin| diagnosis.reject(at, plugin, status.clone()));
        }
        return Ok(diagnosis);
    }
    for at in cluster.live().iter() {
        let node = NodeView { cluster, at, row: cluster.row(at) };
        if let Some((plugin, status)) = work.left_out(at) {
            diagnosis.reject(at, plugin, status);
            diagnosis.plugins.extend(work.only.iter().flat_map(|(_, plugins)| plugins));
            continue;
        }
        let verdict = check_node(work, &node).or_else(|| {
            let nominated = nominated_before(cluster, node.row.name(), pod);
            Trial::new(cluster, work, at).check_with(&nominated)
        });
        match verdict {
            Some((plugin, status)) if status.code == Code::Error => {
                return Err(format!("running {plugin:?} filter plugin: {}", status.message()));
            }
            Some((plugin, status)) => diagnosis.reject(at, plugin, status),
            None => {}
        }
    }
    Ok(diagnosis)
}

/// Returns one of the nodes with the highest total, at random.
fn choose(feasible: &[NodeIdx], totals: &[i64], rng: &mut Rng) -> NodeIdx {
    let (mut best, mut score, mut ties) = (feasible[0], i64::MIN, 0);
    for (at, total) in feasible.iter().zip(totals) {
        if *total > score {
            (best, score, ties) = (*at, *total, 1);
        } else if *total == score {
            ties += 1;
            if rng.u32(..ties) == 0 {
                best = *at;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{PodBuilder, cluster, node, pod};
    use std::collections::BTreeSet;

    fn profile() -> Profile {
        crate::plugins::default_profile("default-scheduler", &Arc::default()).unwrap()
    }

    fn run(cluster: &Snapshot, pod: PodBuilder, seed: u64) -> String {
        match Cycles::new(seed).schedule(0, &profile(), cluster, &PodInfo::new(&pod.build())) {
            Outcome::Placed(at) => cluster.row(at).name().to_owned(),
            Outcome::NoFit(d) => d.message(),
            Outcome::Failed(e) => e,
        }
    }

    #[test]
    fn the_only_node_that_fits_is_taken() {
        let nodes = vec![
            node("small").capacity("1", "1Gi", 10),
            node("cordoned").unschedulable(true),
            node("big").capacity("8", "8Gi", 10),
        ];
        let cluster = cluster(nodes, vec![]);
        assert_eq!(run(&cluster, pod("p").cpu("4"), 1), "big");
        assert_eq!(
            run(&cluster, pod("p").cpu("16"), 1),
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
        );
        assert_eq!(run(&Snapshot::default(), pod("p"), 1), "no nodes available to schedule pods");
    }

    #[test]
    fn ties_are_broken_at_random() {
        let cluster = cluster(vec![node("a"), node("b"), node("c")], vec![]);
        let chosen: BTreeSet<_> = (0..50).map(|seed| run(&cluster, pod("p").cpu("1"), seed)).collect();
        assert_eq!(chosen.len(), 3);
    }

    #[test]
    fn preferences_decide_between_nodes_that_fit() {
        let liked = || node("liked").label("disk", "ssd");
        let tainted = node("tainted").label("disk", "ssd").taint("k", "v", "PreferNoSchedule");
        let cluster = cluster(vec![node("plain"), liked(), tainted], vec![]);
        for seed in 0..20 {
            assert_eq!(run(&cluster, pod("p").preferred_affinity(50, "disk", "ssd"), seed), "liked");
        }
    }

    #[test]
    fn named_nodes_alone_are_looked_at() {
        let cluster = cluster(vec![node("a"), node("b")], vec![]);
        let named = |name: &str| {
            let mut pod = pod("p").required_affinity("x", "Exists", &[]).build();
            let affinity =
                pod.spec.as_mut().unwrap().affinity.as_mut().unwrap().node_affinity.as_mut().unwrap();
            let terms = affinity.required_during_scheduling_ignored_during_execution.as_mut().unwrap();
            let field = serde_json::json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
            terms.node_selector_terms = vec![serde_json::from_value(field).unwrap()];
            match Cycles::new(1).schedule(0, &profile(), &cluster, &PodInfo::new(&pod)) {
                Outcome::Placed(at) => cluster.row(at).name().to_owned(),
                Outcome::NoFit(d) => d.message(),
                Outcome::Failed(e) => e,
            }
        };
        assert_eq!(named("b"), "b");
        assert_eq!(
            named("gone"),
            "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        );
    }

    #[test]
    fn room_made_for_another_pod_is_not_taken() {
        let mut cluster = cluster(vec![node("n").capacity("2", "4Gi", 10)], vec![]);
        let waiting = Arc::new(PodInfo::new(&pod("first").cpu("2").priority(10).build()).placed());
        cluster.nominate(&waiting, Some("n"));
        assert_eq!(run(&cluster, pod("second").cpu("1"), 1), "0/1 nodes are available: 1 Insufficient cpu.");
        assert_eq!(run(&cluster, pod("urgent").cpu("1").priority(20), 1), "n");
        assert_eq!(run(&cluster, pod("first").cpu("2").priority(10), 1), "n", "own nomination");
    }

    #[test]
    fn after_a_pod_is_placed_only_its_node_is_judged_anew() {
        let nodes = (0..50).map(|n| node(&format!("n{n}"))).collect();
        let mut cluster = cluster(nodes, vec![]);
        let (profile, mut cycles) = (profile(), Cycles::new(1));
        let info = |n: usize| PodInfo::new(&pod(&format!("p{n}")).cpu("100m").build());
        for n in 0..20 {
            let Outcome::Placed(at) = cycles.schedule(0, &profile, &cluster, &info(n)) else {
                panic!("no room")
            };
            cluster.add_pod(at, Arc::new(info(n).placed()));
        }
        assert_eq!(cycles.work(0, info(0).shape.id).unwrap().judged, 50 + 19);
    }

    #[test]
    fn large_clusters_are_searched_in_part() {
        let table =
            [(50, 0, 50), (100, 0, 100), (1000, 0, 420), (5000, 0, 500), (20000, 0, 1000), (1000, 30, 300)];
        for (nodes, percentage, expected) in table {
            assert_eq!(feasible_nodes_to_find(nodes, percentage), expected, "{nodes} {percentage}");
        }
    }
}
