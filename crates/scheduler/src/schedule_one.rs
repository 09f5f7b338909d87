//! One scheduling cycle as a pure function: filter the nodes, score what is left, choose.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::cache::Nodes;
use crate::diagnosis::Diagnosis;
use crate::framework::{Code, CycleState, NodeInfo, PodInfo, Profile, Status};

/// Clusters up to this size are always searched whole.
const MIN_FEASIBLE_NODES: usize = 100;
/// The adaptive share of nodes to find never falls below this many percent.
const MIN_PERCENTAGE: usize = 5;

/// What a cycle came to.
pub enum Outcome {
    /// The chosen node.
    Placed {
        node: String,
        state: CycleState,
    },
    NoFit(Diagnosis),
    /// A plugin failed.
    Failed(String),
}

/// What carries over from cycle to cycle.
pub struct Cycle {
    /// Where the next search starts, so that all nodes get their turn.
    pub start: usize,
    /// `percentageOfNodesToScore`; 0 means adaptive.
    pub percentage: usize,
    pub rng: Rng,
}

/// How many feasible nodes are enough, as upstream's adaptive default has it.
pub fn feasible_nodes_to_find(nodes: usize, percentage: usize) -> usize {
    if nodes < MIN_FEASIBLE_NODES || percentage >= 100 {
        return nodes;
    }
    let percentage =
        if percentage > 0 { percentage } else { 50usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE) };
    (nodes * percentage / 100).max(MIN_FEASIBLE_NODES)
}

/// Finds a node for the pod. Changes nothing but the cycle's own start and random state.
pub fn schedule(profile: &Profile, nodes: &Nodes, pod: &PodInfo, cycle: &mut Cycle) -> Outcome {
    let mut state = CycleState::default();
    let mut diagnosis = Diagnosis { nodes: nodes.len(), ..Diagnosis::default() };
    if nodes.is_empty() {
        return Outcome::NoFit(diagnosis);
    }
    let named = match pre_filter(profile, nodes, pod, &mut state, &mut diagnosis) {
        Ok(named) => named,
        Err(failed) => return failed.map_or(Outcome::NoFit(diagnosis), Outcome::Failed),
    };
    let feasible = match filter(profile, nodes, pod, &state, named.as_ref(), cycle, &mut diagnosis) {
        Ok(feasible) => feasible,
        Err(failed) => return Outcome::Failed(failed),
    };
    match feasible.as_slice() {
        [] => Outcome::NoFit(diagnosis),
        [only] => Outcome::Placed { node: only.name().to_owned(), state },
        _ => match score(profile, nodes, pod, &mut state, &feasible) {
            Ok(scores) => {
                let node = choose(&feasible, &scores, &mut cycle.rng).name().to_owned();
                Outcome::Placed { node, state }
            }
            Err(failed) => Outcome::Failed(failed),
        },
    }
}

/// The node names the cycle is limited to, if any. `Err(None)`: turned down; `Err(Some)`: a plugin failed.
fn pre_filter(
    profile: &Profile,
    nodes: &Nodes,
    pod: &PodInfo,
    state: &mut CycleState,
    diagnosis: &mut Diagnosis,
) -> Result<Option<BTreeSet<String>>, Option<String>> {
    let mut named: Option<BTreeSet<String>> = None;
    for plugin in &profile.points.pre_filter {
        match plugin.pre_filter(state, pod, nodes) {
            Ok(None) => {}
            Ok(Some(names)) => {
                named = Some(match named {
                    None => names,
                    Some(already) => already.intersection(&names).cloned().collect(),
                });
                if named.as_ref().is_some_and(BTreeSet::is_empty) {
                    diagnosis.plugins.insert(plugin.name());
                    diagnosis.pre_filter =
                        Some(format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", plugin.name()));
                    return Err(None);
                }
            }
            Err(status) if status.is_skip() => {
                state.skip_filter.insert(plugin.name());
            }
            Err(status) if status.is_rejected() => {
                diagnosis.plugins.insert(plugin.name());
                diagnosis.pre_filter = Some(status.message());
                return Err(None);
            }
            Err(status) => {
                return Err(Some(format!(
                    "running PreFilter plugin {}: {}",
                    plugin.name(),
                    status.message()
                )));
            }
        }
    }
    Ok(named)
}

fn filter<'n>(
    profile: &Profile,
    nodes: &'n Nodes,
    pod: &PodInfo,
    state: &CycleState,
    named: Option<&BTreeSet<String>>,
    cycle: &mut Cycle,
    diagnosis: &mut Diagnosis,
) -> Result<Vec<&'n NodeInfo>, String> {
    let list = nodes.list();
    let wanted = feasible_nodes_to_find(list.len(), cycle.percentage);
    let mut feasible = Vec::new();
    let mut walked = 0;
    for offset in 0..list.len() {
        let node = &list[(cycle.start + offset) % list.len()];
        walked = offset + 1;
        if named.is_some_and(|names| !names.contains(node.name())) {
            let reason = "node(s) didn't satisfy plugin(s) [NodeAffinity]";
            diagnosis.rejected.push((node.name().to_owned(), Status::unresolvable(reason)));
            diagnosis.plugins.insert("NodeAffinity");
            continue;
        }
        match filter_node(profile, pod, state, node) {
            None => {
                feasible.push(node);
                if feasible.len() >= wanted {
                    break;
                }
            }
            Some((plugin, status)) if status.code == Code::Error => {
                return Err(format!("running {plugin:?} filter plugin: {}", status.message()));
            }
            Some((plugin, status)) => {
                diagnosis.plugins.insert(plugin);
                diagnosis.rejected.push((node.name().to_owned(), status));
            }
        }
    }
    cycle.start = (cycle.start + walked) % list.len();
    Ok(feasible)
}

/// The first verdict against the node, if there is one.
pub fn filter_node(
    profile: &Profile,
    pod: &PodInfo,
    state: &CycleState,
    node: &NodeInfo,
) -> Option<(&'static str, Status)> {
    let plugins = profile.points.filter.iter().filter(|p| !state.skip_filter.contains(p.name()));
    plugins.map(|p| (p.name(), p.filter(state, pod, node))).find(|(_, status)| !status.is_success())
}

/// The weighted sum of all plugins, per feasible node.
fn score(
    profile: &Profile,
    nodes: &Nodes,
    pod: &PodInfo,
    state: &mut CycleState,
    feasible: &[&NodeInfo],
) -> Result<Vec<i64>, String> {
    for plugin in &profile.points.pre_score {
        let status = plugin.pre_score(state, pod, feasible);
        match status.code {
            Code::Success => {}
            Code::Skip => {
                state.skip_score.insert(plugin.name());
            }
            _ => return Err(format!("running PreScore plugin {:?}: {}", plugin.name(), status.message())),
        }
    }
    let mut totals = vec![0i64; feasible.len()];
    for (plugin, weight) in &profile.points.score {
        if state.skip_score.contains(plugin.name()) {
            continue;
        }
        let mut scores: Vec<i64> =
            feasible.iter().map(|node| plugin.score(state, pod, node, nodes)).collect();
        plugin.normalize(&mut scores);
        for (total, score) in totals.iter_mut().zip(scores) {
            *total += score * weight;
        }
    }
    Ok(totals)
}

/// One of the best, at random.
fn choose<'n>(feasible: &[&'n NodeInfo], scores: &[i64], rng: &mut Rng) -> &'n NodeInfo {
    let best = scores.iter().max();
    let candidates: Vec<usize> = (0..feasible.len()).filter(|i| scores.get(*i) == best).collect();
    feasible[candidates[rng.usize(..candidates.len())]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::plugins::testing::{node, pod};

    fn run(cache: &Cache, pod: crate::plugins::testing::PodBuilder, seed: u64) -> Outcome {
        let mut cycle = Cycle { start: 0, percentage: 0, rng: Rng::with_seed(seed) };
        let profile = Profile::default_profile("default-scheduler");
        schedule(&profile, cache.nodes(), &PodInfo::new(pod.into()), &mut cycle)
    }

    fn placed(outcome: Outcome) -> String {
        match outcome {
            Outcome::Placed { node, .. } => node,
            Outcome::NoFit(d) => d.message(),
            Outcome::Failed(e) => e,
        }
    }

    #[test]
    fn the_only_node_that_fits_is_taken() {
        let mut cache = Cache::default();
        cache.set_node(node("small").capacity("1", "1Gi", 10).into());
        cache.set_node(node("cordoned").unschedulable(true).into());
        cache.set_node(node("big").capacity("8", "8Gi", 10).into());
        assert_eq!(placed(run(&cache, pod("p").cpu("4"), 1)), "big");
        assert_eq!(
            placed(run(&cache, pod("p").cpu("16"), 1)),
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
        );
    }

    #[test]
    fn ties_are_broken_at_random() {
        let mut cache = Cache::default();
        ["a", "b", "c"].into_iter().for_each(|n| cache.set_node(node(n).into()));
        let chosen: BTreeSet<_> = (0..50).map(|seed| placed(run(&cache, pod("p").cpu("1"), seed))).collect();
        assert_eq!(chosen.len(), 3);
    }

    #[test]
    fn preferences_decide_between_nodes_that_fit() {
        let mut cache = Cache::default();
        cache.set_node(node("plain").into());
        cache.set_node(node("liked").label("disk", "ssd").into());
        cache.set_node(node("tainted").label("disk", "ssd").taint("k", "v", "PreferNoSchedule").into());
        for seed in 0..20 {
            assert_eq!(placed(run(&cache, pod("p").preferred_affinity(50, "disk", "ssd"), seed)), "liked");
        }
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
