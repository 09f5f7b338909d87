//! Pod groups and preemption: a group that makes room for itself, and groups whose pods leave together or not at all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_api::kind::ObjectKey;

use super::{Budget, DefaultPreemption, budget_check};
use crate::framework::{Attempt, GroupAttempt, GroupRoom, GroupTrial, PodGroupPostFilter, Room, Status};
use crate::groups::{Groups, priority};
use crate::schedule_one::nominated_before;
use crate::snapshot::{NodeIdx, PlacedPod, Snapshot};
use crate::trial::Trial;

/// Pods that leave together.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub pods: Vec<(NodeIdx, Arc<PlacedPod>)>,
    /// The group's, where it is known.
    pub priority: i32,
    /// It is a group, or a pod of one.
    pub of_group: bool,
}

impl Unit {
    /// More important units come first: higher priority, groups, larger ones, longer running.
    fn importance(&self) -> (Reverse<i32>, Reverse<bool>, Reverse<usize>, i64) {
        let started = self.pods.iter().map(|(_, p)| p.started_seconds.unwrap_or(i64::MAX)).min();
        (
            Reverse(self.priority),
            Reverse(self.of_group),
            Reverse(self.pods.len()),
            started.unwrap_or(i64::MAX),
        )
    }
}

fn leaves_as_a_whole(group: &PodGroup) -> bool {
    group.spec.disruption_mode.as_ref().is_some_and(|mode| mode.all.is_some())
}

/// The importance of a pod on a node: its group's, where it has one.
fn priority_of(groups: &Groups, pod: &PlacedPod) -> i32 {
    let group = groups.of_pod(&pod.uid).and_then(|(_, group)| group);
    group.map_or(pod.footprint.priority, |group| priority(&group))
}

/// The pods of these nodes as units; those of a group that leaves as a whole with its pods on all other nodes.
pub(super) fn units(cluster: &Snapshot, groups: &Groups, nodes: impl Iterator<Item = NodeIdx>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut whole: BTreeMap<ObjectKey, Arc<PodGroup>> = BTreeMap::new();
    for at in nodes {
        for pod in &cluster.row(at).pods {
            let single = |priority, of_group| Unit { pods: vec![(at, Arc::clone(pod))], priority, of_group };
            match groups.of_pod(&pod.uid) {
                Some((key, Some(group))) if leaves_as_a_whole(&group) => drop(whole.insert(key, group)),
                Some((_, Some(group))) => units.push(single(priority(&group), true)),
                Some((_, None)) => units.push(single(pod.footprint.priority, true)),
                None => units.push(single(pod.footprint.priority, false)),
            }
        }
    }
    if whole.is_empty() {
        return units;
    }
    let mut pods: BTreeMap<ObjectKey, Vec<(NodeIdx, Arc<PlacedPod>)>> = BTreeMap::new();
    for at in cluster.live().iter() {
        for pod in &cluster.row(at).pods {
            if let Some((key, _)) = groups.of_pod(&pod.uid).filter(|(key, _)| whole.contains_key(key)) {
                pods.entry(key).or_default().push((at, Arc::clone(pod)));
            }
        }
    }
    let together = pods
        .into_iter()
        .filter_map(|(key, pods)| Some(Unit { pods, priority: priority(whole.get(&key)?), of_group: true }));
    units.extend(together);
    units
}

/// Those whose removal would break a budget, with how many of their pods would; and the others. The most important
/// first.
fn by_budget(mut units: Vec<Unit>, budgets: &[Budget]) -> Vec<(Unit, usize)> {
    units.sort_by_key(Unit::importance);
    let mut violates = budget_check(budgets);
    let (violating, other): (Vec<_>, Vec<_>) = units
        .into_iter()
        .map(|unit| {
            let n = unit.pods.iter().filter(|(_, pod)| violates(pod)).count();
            (unit, n)
        })
        .partition(|(_, n)| *n > 0);
    violating.into_iter().chain(other).collect()
}

/// As for single pods, with units that leave as a whole.
pub(super) fn victims(
    attempt: &Attempt,
    groups: &Groups,
    at: NodeIdx,
    budgets: &[Budget],
) -> Result<Room, Status> {
    let wanted = attempt.pod.priority();
    let mut possible = units(attempt.cluster, groups, std::iter::once(at));
    possible.retain(|unit| unit.priority < wanted);
    if possible.is_empty() {
        return Err(Status::unresolvable("No preemption victims found for incoming pod"));
    }
    let name = attempt.cluster.row(at).name();
    let nominated = nominated_before(attempt.cluster, name, attempt.pod);
    let mut trial = Trial::new(attempt.cluster, attempt.work, at);
    let here = |unit: &Unit| -> Vec<Arc<PlacedPod>> {
        unit.pods.iter().filter(|(node, _)| *node == at).map(|(_, pod)| Arc::clone(pod)).collect()
    };
    possible.iter().flat_map(here).for_each(|pod| trial.remove(&pod));
    if let Some((_, status)) = trial.check_with(&nominated) {
        return Err(status);
    }
    let (mut leaving, mut violations) = (Vec::new(), 0);
    for (unit, violating) in by_budget(possible, budgets) {
        here(&unit).iter().for_each(|pod| trial.add(pod));
        if trial.check_with(&nominated).is_some() {
            here(&unit).iter().for_each(|pod| trial.remove(pod));
            leaving.push(unit);
            violations += violating;
        }
    }
    leaving.sort_by_key(Unit::importance);
    let victims: Vec<_> = leaving.into_iter().flat_map(|unit| unit.pods).map(|(_, pod)| pod).collect();
    if victims.is_empty() {
        return Err(Status::error(format!("expected at least one victim pod on node {name:?}")));
    }
    Ok(Room { node: at, victims, violations })
}

impl PodGroupPostFilter for DefaultPreemption {
    fn pod_group_post_filter(
        &self,
        attempt: &GroupAttempt,
        trial: &mut dyn GroupTrial,
    ) -> Result<GroupRoom, Status> {
        let found = make_room(&self.groups, &self.budgets(), attempt, trial);
        found.map_err(|mut status| {
            if let Some(first) = status.reasons.first_mut() {
                *first = format!("pod group preemption: {first}").into();
            }
            status
        })
    }
}

fn make_room(
    groups: &Groups,
    budgets: &[Budget],
    attempt: &GroupAttempt,
    trial: &mut dyn GroupTrial,
) -> Result<GroupRoom, Status> {
    let never = |p: &crate::framework::PodInfo| {
        p.spec().and_then(|s| s.preemption_policy.as_deref()) == Some("Never")
    };
    if attempt.pods.iter().any(|p| never(p)) {
        return Err(Status::unschedulable("not eligible due to preemptionPolicy=Never."));
    }
    let wanted = priority(attempt.group);
    if let Some(room) = under_way(groups, attempt, trial.cluster(), wanted) {
        return Ok(room);
    }
    let mut possible = units(trial.cluster(), groups, trial.cluster().live().clone().iter());
    possible.retain(|unit| unit.priority < wanted);
    if possible.is_empty() {
        return Err(Status::unresolvable("No preemption victims found for incoming preemptor"));
    }
    for (at, pod) in possible.iter().flat_map(|unit| &unit.pods) {
        trial.remove(*at, pod);
    }
    let nodes = trial.place()?;
    let (mut leaving, mut violations) = (Vec::new(), 0);
    for (unit, violating) in by_budget(possible, budgets) {
        unit.pods.iter().for_each(|(at, pod)| trial.add(*at, pod));
        let touched: BTreeSet<NodeIdx> = unit.pods.iter().map(|(at, _)| *at).collect();
        if !trial.still_fit(&touched) {
            unit.pods.iter().for_each(|(at, pod)| trial.remove(*at, pod));
            leaving.push(unit);
            violations += violating;
        }
    }
    leaving.sort_by_key(Unit::importance);
    let disruptions = leaving.iter().filter(|unit| unit.of_group).count();
    let victims: Vec<_> = leaving.into_iter().flat_map(|unit| unit.pods).map(|(_, pod)| pod).collect();
    let words =
        format!("pod group preemption: found a placement for podgroup, preempting {} victims", victims.len());
    Ok(GroupRoom { nodes, victims, disruptions, violations, words })
}

/// Victims of an earlier attempt are still on their way out.
fn under_way(groups: &Groups, attempt: &GroupAttempt, cluster: &Snapshot, wanted: i32) -> Option<GroupRoom> {
    let nominated = |p: &Arc<crate::framework::PodInfo>| Some((p.uid.clone(), p.nominated_node.clone()?));
    let nodes: BTreeMap<_, _> = attempt.pods.iter().filter_map(nominated).collect();
    let leaving = |pod: &Arc<PlacedPod>| pod.preempted && priority_of(groups, pod) < wanted;
    let distinct: BTreeSet<_> = nodes.values().cloned().collect();
    let mut rows = distinct.iter().filter_map(|name| cluster.named(name));
    rows.any(|row| row.pods.iter().any(leaving)).then(|| GroupRoom {
        nodes,
        words: "pod group preemption: ongoing preemption on nominated nodes".to_owned(),
        ..GroupRoom::default()
    })
}
