//! DefaultPreemption: evicts pods of lower priority to make room for a pod. It evicts as few and as unimportant pods as
//! possible, and respects disruption budgets where possible.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/framework/preemption`.

mod groups;

use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_apimachinery::selector::Selector;
use serde::Deserialize;

use crate::diagnosis::Diagnosis;
use crate::framework::{Attempt, Catalog, Code, Descriptor, NoRoom, Parts, Plugin, PostFilter, Room, Status};
use crate::groups::Groups;
use crate::schedule_one::nominated_before;
use crate::snapshot::{NodeIdx, PlacedPod};
use crate::trial::Trial;

pub const NAME: &str = "DefaultPreemption";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        build.catalog.watch::<PodDisruptionBudget>();
        let plugin = Arc::new(DefaultPreemption {
            args,
            catalog: Arc::clone(build.catalog),
            groups: build.catalog.shared::<Groups>(),
            turn: AtomicUsize::new(0),
        });
        Ok(Parts {
            post_filter: Some(plugin.clone()),
            pod_group_post_filter: Some(plugin.clone()),
            ..Parts::of(plugin)
        })
    },
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        let at = |name: &str| path.child(name);
        let (percentage, absolute) = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute");
        let (percent, number) = (self.min_candidate_nodes_percentage, self.min_candidate_nodes_absolute);
        if !(0..=100).contains(&percent) {
            errors.push(Error::invalid(&at(percentage), percent, "not in valid range [0, 100]"));
        }
        if number < 0 {
            errors.push(Error::invalid(&at(absolute), number, "not in valid range [0, inf)"));
        }
        if percent == 0 && number == 0 {
            for (name, other) in [(percentage, absolute), (absolute, percentage)] {
                let why = format!("cannot be zero at the same time as {other}");
                errors.push(Error::invalid(&at(name), 0, why));
            }
        }
        errors
    }
}

impl Default for Args {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

struct DefaultPreemption {
    args: Args,
    catalog: Arc<Catalog>,
    groups: Arc<Groups>,
    /// The offset at which the next search starts, so that the candidates vary.
    turn: AtomicUsize,
}

/// A disruption budget with the number of disruptions left.
struct Budget {
    namespace: String,
    selector: Selector,
    disrupted: Vec<String>,
    allowed: i64,
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl PostFilter for DefaultPreemption {
    fn post_filter(&self, attempt: &Attempt) -> Result<Vec<Room>, NoRoom> {
        if let Some(why) = not_eligible(attempt, &self.groups) {
            return Err(NoRoom { words: format!("preemption: {why}"), withdraw: false });
        }
        let possible: Vec<NodeIdx> = attempt
            .diagnosis
            .rejected()
            .filter(|(_, verdict)| verdict.status.code == Code::Unschedulable)
            .map(|(node, _)| node)
            .collect();
        let (mut candidates, failures) = self.candidates(attempt, &possible);
        if candidates.is_empty() {
            let words = format!("preemption: {}", unhelpful(attempt, failures).message());
            return Err(NoRoom { words, withdraw: true });
        }
        self.rank(&mut candidates);
        Ok(candidates)
    }

    fn rank(&self, rooms: &mut [Room]) {
        rooms.sort_by_key(rank);
    }
}

/// Returns why the pod is not eligible for preemption, if it is not.
fn not_eligible(attempt: &Attempt, groups: &Groups) -> Option<&'static str> {
    let pod = attempt.pod;
    if pod.spec().and_then(|s| s.preemption_policy.as_deref()) == Some("Never") {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let nominated = attempt.cluster.find(pod.nominated_node.as_deref()?)?;
    let mut verdicts = attempt.diagnosis.rejected();
    let hopeless = verdicts.any(|(node, verdict)| {
        node == nominated && verdict.status.code == Code::UnschedulableAndUnresolvable
    });
    let mut pods = attempt.cluster.row(nominated).pods.iter();
    let leaving = pods.any(|p| p.preempted && groups::priority_of(groups, p) < pod.priority());
    (leaving && !hopeless).then_some("not eligible due to a terminating pod on the nominated node.")
}

impl DefaultPreemption {
    /// Returns nodes where evicting pods helps, up to the number to find, and the failures of the other nodes that were
    /// tried.
    fn candidates(&self, attempt: &Attempt, possible: &[NodeIdx]) -> (Vec<Room>, Vec<(NodeIdx, Status)>) {
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        if possible.is_empty() {
            return (found, failures);
        }
        let percent = usize::try_from(self.args.min_candidate_nodes_percentage).unwrap_or(0);
        let number = usize::try_from(self.args.min_candidate_nodes_absolute).unwrap_or(0);
        let enough = (possible.len() * percent / 100).max(number).min(possible.len());
        let budgets = self.budgets();
        let of_groups = !self.groups.is_empty();
        let start = self.turn.fetch_add(enough, Ordering::Relaxed) % possible.len();
        for at in possible[start..].iter().chain(&possible[..start]) {
            let judged = if of_groups {
                groups::victims(attempt, &self.groups, *at, &budgets)
            } else {
                victims(attempt, *at, &budgets)
            };
            match judged {
                // Source: upstream. Candidates that violate a budget are only collected up to the number to find.
                Ok(candidate) if candidate.violations > 0 && found.len() >= enough => {}
                Ok(candidate) => found.push(candidate),
                Err(status) => failures.push((*at, status)),
            }
            if found.len() >= enough && found.iter().any(|c| c.violations == 0) {
                break;
            }
        }
        (found, failures)
    }

    fn budgets(&self) -> Vec<Budget> {
        let read = |budget: &PodDisruptionBudget| {
            let spec = budget.spec.as_ref()?;
            let status = budget.status.as_ref();
            let selector = Selector::from_label_selector(spec.selector.as_ref()).ok()?;
            Some(Budget {
                namespace: budget.metadata.namespace.clone().unwrap_or_default(),
                selector,
                disrupted: status
                    .and_then(|s| s.disrupted_pods.as_ref())
                    .map(|pods| pods.keys().cloned().collect())
                    .unwrap_or_default(),
                allowed: status.and_then(|s| s.disruptions_allowed).map_or(0, i64::from),
            })
        };
        let all = self.catalog.list::<PodDisruptionBudget>(None);
        // An empty selector matches no pods here.
        all.iter().filter_map(|b| read(b)).filter(|b| !b.selector.is_everything()).collect()
    }
}

/// The sort key, the most important pods first: by higher priority, then earlier start.
fn importance(pod: &PlacedPod) -> (Reverse<i32>, i64) {
    (Reverse(pod.footprint.priority), pod.started_seconds.unwrap_or(i64::MAX))
}

/// Removes all pods with lower priority on trial, then puts back as many as possible.
fn victims(attempt: &Attempt, at: NodeIdx, budgets: &[Budget]) -> Result<Room, Status> {
    let priority = attempt.pod.priority();
    let row = attempt.cluster.row(at);
    let mut possible: Vec<Arc<PlacedPod>> =
        row.pods.iter().filter(|p| p.footprint.priority < priority).cloned().collect();
    if possible.is_empty() {
        return Err(Status::unresolvable("No preemption victims found for incoming pod"));
    }
    let nominated = nominated_before(attempt.cluster, row.name(), attempt.pod);
    let mut trial = Trial::new(attempt.cluster, attempt.work, at);
    possible.iter().for_each(|pod| trial.remove(pod));
    if let Some((_, status)) = trial.check_with(&nominated) {
        return Err(status);
    }
    possible.sort_by_key(|pod| importance(pod));
    let (violating, other) = by_budget(possible, budgets);
    let (mut victims, mut violations) = (Vec::new(), 0);
    for (pod, violates) in
        violating.into_iter().map(|p| (p, true)).chain(other.into_iter().map(|p| (p, false)))
    {
        trial.add(&pod);
        if trial.check_with(&nominated).is_some() {
            trial.remove(&pod);
            victims.push(pod);
            violations += usize::from(violates);
        }
    }
    victims.sort_by_key(|pod| importance(pod));
    if victims.is_empty() {
        let name = row.name();
        return Err(Status::error(format!("expected at least one victim pod on node {name:?}")));
    }
    Ok(Room { node: at, victims, violations })
}

/// Splits the pods into those whose eviction violates a budget, and the others.
fn by_budget(pods: Vec<Arc<PlacedPod>>, budgets: &[Budget]) -> (Vec<Arc<PlacedPod>>, Vec<Arc<PlacedPod>>) {
    let mut violates = budget_check(budgets);
    pods.into_iter().partition(|pod| violates(pod))
}

/// Returns a function to call with one pod after the other: whether its eviction, after those before, violates a
/// budget.
fn budget_check(budgets: &[Budget]) -> impl FnMut(&PlacedPod) -> bool {
    let mut left: Vec<i64> = budgets.iter().map(|b| b.allowed).collect();
    move |pod| {
        let labels = &pod.footprint.labels;
        for (budget, left) in budgets.iter().zip(&mut left) {
            let covers = !labels.is_empty()
                && budget.namespace == pod.namespace()
                && budget.selector.matches(labels)
                && !budget.disrupted.iter().any(|name| **name == *pod.name);
            if covers {
                *left -= 1;
                if *left < 0 {
                    return true;
                }
            }
        }
        false
    }
}

/// The sort key of candidates: fewest violated budgets, lowest highest priority, lowest sum of priorities, fewest pods,
/// latest start.
fn rank(room: &Room) -> (usize, i32, i64, usize, Reverse<i64>) {
    // The pod's own priority, even if it was sorted by that of its group.
    let first = room.victims.first().map_or(i32::MIN, |p| p.footprint.priority);
    let highest = room.victims.iter().map(|p| p.footprint.priority).max().unwrap_or(i32::MIN);
    // Shifted to be positive, so that fewer pods of negative priority have a lower sum.
    let sum: i64 = room.victims.iter().map(|p| i64::from(p.footprint.priority) + (1 << 31)).sum();
    let most_important = room.victims.iter().filter(|p| p.footprint.priority == highest);
    let earliest = most_important.map(|p| p.started_seconds.unwrap_or(i64::MAX)).min().unwrap_or(i64::MAX);
    (room.violations, first, sum, room.victims.len(), Reverse(earliest))
}

/// Returns why no room was found, node by node.
fn unhelpful(attempt: &Attempt, failures: Vec<(NodeIdx, Status)>) -> Diagnosis {
    let mut tried: BTreeMap<NodeIdx, Status> = failures.into_iter().collect();
    let mut diagnosis = Diagnosis::new(attempt.cluster.len());
    for at in attempt.cluster.live().iter() {
        let status = tried.remove(&at);
        let nothing = || Status::unresolvable("Preemption is not helpful for scheduling");
        diagnosis.reject(at, NAME, status.unwrap_or_else(nothing));
    }
    diagnosis
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::PodInfo;
    use crate::plugins::testing::{PodBuilder, cluster, labelled, node, pod};
    use crate::schedule_one::{Cycles, Outcome};
    use k8s_openapi::api::policy::v1::{PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};

    fn budget(labels: &[(&str, &str)], allowed: i32) -> PodDisruptionBudget {
        let selector = LabelSelector { match_labels: Some(labelled(labels)), ..Default::default() };
        PodDisruptionBudget {
            metadata: ObjectMeta {
                namespace: Some("default".into()),
                name: Some("b".into()),
                ..Default::default()
            },
            spec: Some(PodDisruptionBudgetSpec { selector: Some(selector), ..Default::default() }),
            status: Some(PodDisruptionBudgetStatus {
                disruptions_allowed: Some(allowed),
                ..Default::default()
            }),
        }
    }

    /// Nodes a, b and c with 4 CPUs. Returns the node and the victims' names, or the message.
    fn preempt(
        incoming: PodBuilder,
        there: Vec<(usize, PodBuilder)>,
        budgets: Vec<PodDisruptionBudget>,
    ) -> String {
        let catalog = Arc::new(Catalog::default());
        budgets.into_iter().for_each(|b| catalog.put(b));
        let profile = crate::plugins::default_profile("default-scheduler", &catalog).unwrap();
        let cluster = cluster(vec![node("a"), node("b"), node("c")], there);
        let (pod, mut cycles) = (PodInfo::new(&incoming.build()), Cycles::new(1));
        let Outcome::NoFit(diagnosis) = cycles.schedule(0, &profile, &cluster, &pod) else {
            return "fits".into();
        };
        let work = cycles.work(0, pod.shape.id).unwrap();
        let attempt = Attempt { cluster: &cluster, pod: &pod, work, diagnosis: &diagnosis };
        let plugin = profile.points.post_filter.last().unwrap();
        match plugin.post_filter(&attempt) {
            Ok(rooms) => {
                let room = &rooms[0];
                let names: Vec<&str> = room.victims.iter().map(|v| &*v.name).collect();
                format!("{}: {}", cluster.row(room.node).name(), names.join(" "))
            }
            Err(none) => none.words,
        }
    }

    fn full(priority: i32) -> Vec<(usize, PodBuilder)> {
        (0..3).map(|at| (at, pod(&format!("v{at}")).cpu("4").priority(priority))).collect()
    }

    fn urgent() -> PodBuilder {
        pod("urgent").cpu("3").priority(100)
    }

    #[test]
    fn the_least_important_leave() {
        let mut there = full(10);
        there[1].1 = pod("low").cpu("4").priority(1);
        assert_eq!(preempt(urgent(), there, vec![]), "b: low");
        let small = |n: &str, at, priority| (at, pod(n).cpu("2").priority(priority));
        let mut there = full(10);
        there.truncate(2);
        there.extend([small("s", 2, 1), small("t", 2, 10)]);
        assert_eq!(preempt(urgent(), there, vec![]), "a: v0", "one pod of 10 rather than two up to 10");
        let there =
            vec![small("s", 0, 1), small("t", 0, 5), (1, full(50)[1].1.clone()), (2, full(50)[2].1.clone())];
        assert_eq!(preempt(pod("urgent").cpu("2").priority(100), there, vec![]), "a: s");
    }

    #[test]
    fn rooms_are_ranked_rule_by_rule() {
        let room = |violations, victims: &[(i32, i64)]| {
            let victim = |(priority, started): &(i32, i64)| {
                let mut placed = PlacedPod::of(&pod("v").priority(*priority).build());
                placed.started_seconds = Some(*started);
                Arc::new(placed)
            };
            Room { node: 0, victims: victims.iter().map(victim).collect(), violations }
        };
        // Each candidate is better than the one after it.
        let table = [
            room(0, &[(1, 10)]),
            room(0, &[(1, 5)]),
            room(0, &[(1, 10), (-5, 1)]),
            room(0, &[(1, 10), (0, 1)]),
            room(0, &[(2, 10)]),
            // A group with a lower priority than its pod is sorted behind; the pod's start still counts.
            room(0, &[(2, 10), (3, 8)]),
            room(0, &[(2, 10), (3, 4)]),
            room(0, &[(3, 10)]),
            room(1, &[(-9, 10)]),
        ];
        for pair in table.windows(2) {
            assert!(rank(&pair[0]) < rank(&pair[1]), "{:?} before {:?}", rank(&pair[0]), rank(&pair[1]));
        }
    }

    #[test]
    fn the_youngest_of_equals_leave() {
        let mut there = full(10);
        for (n, (_, pod)) in there.iter_mut().enumerate() {
            let started = Time(k8s_openapi::jiff::Timestamp::new([300, 100, 200][n], 0).unwrap());
            let mut one = pod.clone().build();
            one.status.get_or_insert_default().start_time = Some(started);
            *pod = one.into();
        }
        assert_eq!(preempt(urgent(), there, vec![]), "a: v0");
    }

    #[test]
    fn budgets_are_kept_where_that_can_be() {
        let there: Vec<_> = full(10).into_iter().map(|(at, p)| (at, p.label("app", "db"))).collect();
        let mut one_free = there.clone();
        one_free[2].1 = one_free[2].1.clone().label("app", "web");
        assert_eq!(preempt(urgent(), one_free, vec![budget(&[("app", "db")], 0)]), "c: v2");
        let broken = preempt(urgent(), there, vec![budget(&[("app", "db")], 0)]);
        assert!(broken.ends_with("v0") || broken.ends_with("v1") || broken.ends_with("v2"), "{broken}");
    }

    #[test]
    fn anti_affinity_is_resolved_by_removing_who_is_in_the_way() {
        let mut there: Vec<_> = (0..3).map(|at| (at, pod("web").label("app", "web").priority(50))).collect();
        there[1].1 = pod("cheap").label("app", "web").priority(1);
        let nodes_have_no_labels = pod("p").priority(100).anti_affinity(&[("app", "web")], "host");
        assert_eq!(preempt(nodes_have_no_labels, there, vec![]), "fits");
    }

    #[test]
    fn what_cannot_be_helped_is_told() {
        assert_eq!(
            preempt(urgent(), full(100), vec![]),
            "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
        );
        assert_eq!(
            preempt(pod("huge").cpu("8").priority(100), full(1), vec![]),
            "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        );
        let mut polite = urgent().build();
        polite.spec.as_mut().unwrap().preemption_policy = Some("Never".into());
        assert_eq!(
            preempt(polite.into(), full(1), vec![]),
            "preemption: not eligible due to preemptionPolicy=Never."
        );
    }
}
