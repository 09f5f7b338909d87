//! Preemption with pod groups: for a group, and of groups whose pods are evicted together.

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

/// Pods that are evicted together.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub pods: Vec<(NodeIdx, Arc<PlacedPod>)>,
    /// The priority of the group if it is known, otherwise of the pod.
    pub priority: i32,
    /// Whether the unit is a group, or a pod of one.
    pub of_group: bool,
}

impl Unit {
    /// The sort key, the most important units first: by higher priority, groups, more pods, earlier start.
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

/// The priority that counts for a placed pod: that of its group, if it has one.
pub(super) fn priority_of(groups: &Groups, pod: &PlacedPod) -> i32 {
    let group = groups.of_pod(&pod.uid).and_then(|(_, group)| group);
    group.map_or(pod.footprint.priority, |group| priority(&group))
}

/// Splits the pods of these nodes into units. A group that is evicted as a whole includes its pods on all other nodes.
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

/// Sorts the units: first those whose eviction violates a budget, with the number of their pods that do, then the
/// others; each part by descending importance.
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

/// Like `victims` for single pods, with units that are evicted as a whole.
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
    possible.iter().flat_map(|unit| &unit.pods).for_each(|(node, pod)| trial.remove_on(*node, pod));
    if let Some((_, status)) = trial.check_with(&nominated) {
        return Err(status);
    }
    let (mut leaving, mut violations) = (Vec::new(), 0);
    for (unit, violating) in by_budget(possible, budgets) {
        unit.pods.iter().for_each(|(node, pod)| trial.add_on(*node, pod));
        if trial.check_with(&nominated).is_some() {
            unit.pods.iter().for_each(|(node, pod)| trial.remove_on(*node, pod));
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

/// Returns the room of an earlier attempt whose victims are still terminating.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{Catalog, PodInfo};
    use crate::plugins::testing::{NodeBuilder, PodBuilder, cluster, node, pod, pod_group};
    use crate::schedule_one::{Cycles, Outcome};
    use k8s_openapi::api::scheduling::v1beta1::{AllDisruptionMode, DisruptionMode};

    fn group(name: &str, whole: bool, priority: i32) -> PodGroup {
        let mut group = pod_group(name, Some(2));
        group.spec.priority = Some(priority);
        let all = whole.then(|| AllDisruptionMode(serde_json::json!({})));
        group.spec.disruption_mode = Some(DisruptionMode { all, ..Default::default() });
        group
    }

    /// Pods with the index of their node.
    type There = Vec<(usize, PodBuilder)>;

    /// Returns the best node with its victims, or the message.
    fn preempt(all: Vec<PodGroup>, nodes: Vec<NodeBuilder>, there: There, incoming: PodBuilder) -> String {
        let catalog = Arc::new(Catalog::default());
        let groups = catalog.shared::<Groups>();
        all.into_iter().for_each(|group| groups.set_object(group.into()));
        for (n, (_, pod)) in there.iter().enumerate() {
            let mut pod = pod.clone().on("anywhere").build();
            pod.metadata.uid = Some(format!("there-{n}"));
            groups.set_pod(&pod);
        }
        let profile = crate::plugins::default_profile("default-scheduler", &catalog).unwrap();
        let cluster = cluster(nodes, there);
        let (pod, mut cycles) = (PodInfo::new(&incoming.build()), Cycles::new(1));
        let Outcome::NoFit(diagnosis) = cycles.schedule(0, &profile, &cluster, &pod) else {
            return "fits".into();
        };
        let work = cycles.work(0, pod.shape.id).unwrap();
        let attempt = Attempt { cluster: &cluster, pod: &pod, work, diagnosis: &diagnosis };
        match profile.points.post_filter.last().unwrap().post_filter(&attempt) {
            Ok(rooms) => {
                let names: Vec<&str> = rooms[0].victims.iter().map(|v| &*v.name).collect();
                format!("{}: {}", cluster.row(rooms[0].node).name(), names.join(" "))
            }
            Err(none) => none.words,
        }
    }

    fn big(name: &str, priority: i32) -> PodBuilder {
        pod(name).cpu("3").priority(priority)
    }

    fn two() -> Vec<NodeBuilder> {
        vec![node("a").label("zone", "z"), node("b").label("zone", "z")]
    }

    #[test]
    fn the_rules_of_groups_decide_who_leaves() {
        let member = |name, priority| big(name, priority).group("g");
        let urgent = || big("urgent", 100);
        let table: Vec<(&str, Vec<PodGroup>, There, &str)> = vec![
            (
                "a lone pod rather than a group of the same priority on two nodes",
                vec![group("g", true, 10)],
                vec![(0, member("g0", 10)), (0, pod("g1").priority(10).group("g")), (1, big("s", 10))],
                "b: s",
            ),
            (
                "one of a group that leaves one by one",
                vec![group("g", false, 10)],
                vec![(0, member("g0", 10)), (1, big("s", 20))],
                "a: g0",
            ),
            (
                "the group's priority counts, not its pods'",
                vec![group("g", false, 200)],
                vec![(0, member("g0", 10)), (1, big("s", 20))],
                "b: s",
            ),
            (
                "the whole group leaves with its pods elsewhere",
                vec![group("g", true, 10)],
                vec![(0, member("g0", 10)), (1, member("g1", 10))],
                "a: g0 g1",
            ),
        ];
        for (what, groups, there, expected) in table {
            let said = preempt(groups, two(), there, urgent());
            // Either of two equal nodes may be tried first.
            let same = said == expected || expected == "a: g0 g1" && said == "b: g0 g1";
            assert!(same, "{what}: {said}");
        }
    }

    #[test]
    fn pods_that_leave_other_nodes_with_their_group_are_not_in_the_way_there() {
        let member = |name: &str| pod(name).label("app", "web").priority(1).group("g");
        let alone = pod("alone").priority(100).anti_affinity(&[("app", "web")], "zone");
        let there = || vec![(0, member("g0")), (1, member("g1"))];
        let said = preempt(vec![group("g", true, 1)], two(), there(), alone.clone());
        assert!(said.ends_with(": g0 g1"), "{said}");
        let said = preempt(vec![group("g", false, 1)], two(), there(), alone);
        assert!(said.starts_with("preemption: 0/2 nodes are available"), "{said}");
    }

    #[test]
    fn units_are_ordered_by_importance() {
        let unit = |name: &str, priority, of_group, sizes: &[Option<i64>]| {
            let pods = sizes.iter().map(|started| {
                let mut placed = PlacedPod::of(&pod(name).build());
                placed.started_seconds = *started;
                (0, Arc::new(placed))
            });
            Unit { pods: pods.collect(), priority, of_group }
        };
        let mut units = [
            unit("young", 1, false, &[Some(9)]),
            unit("old", 1, false, &[Some(3)]),
            unit("not-started", 1, false, &[None]),
            unit("small-group", 1, true, &[Some(1)]),
            unit("younger-group", 1, true, &[Some(8), Some(7)]),
            unit("older-group", 1, true, &[Some(9), Some(2)]),
            unit("important", 2, false, &[None]),
        ];
        units.sort_by_key(Unit::importance);
        let names: Vec<&str> = units.iter().map(|u| &*u.pods[0].1.name).collect();
        let expected =
            ["important", "older-group", "younger-group", "small-group", "old", "young", "not-started"];
        assert_eq!(names, expected);
    }
}
