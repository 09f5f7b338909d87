//! How many pods each ReplicaSet of a Deployment should have next: rolling update, proportional scaling, limits.
//!
//! Source: the documented behaviour of maxSurge, maxUnavailable and proportional scaling.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::revision::{DESIRED_REPLICAS, MAX_REPLICAS, number_annotation};

/// A new size for the ReplicaSet at this index; its current size if only its size annotations are outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    pub index: usize,
    pub replicas: i32,
}

/// Returns the wanted number of pods.
pub fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.replicas.unwrap_or(1)
}

/// Returns the size in the set's spec.
pub fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

/// Returns the available pods that the set keeps: its status may be older than its size, and pods beyond that are
/// being deleted.
pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0).min(replicas(set))
}

/// Returns whether the set's status was written for its current size. Until then it may count deleted pods: a set
/// that was shrunk and enlarged again keeps its old status for a while.
pub fn is_observed(set: &ReplicaSet) -> bool {
    set.status.as_ref().and_then(|s| s.observed_generation) >= set.metadata.generation
}

/// Returns whether the update strategy is RollingUpdate.
pub fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.strategy.as_ref();
    strategy.and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
}

/// Returns maxSurge and maxUnavailable in pods. Percentages of maxSurge round up, those of maxUnavailable down; never
/// are both 0.
pub fn limits(deployment: &Deployment) -> (i32, i32) {
    if !is_rolling(deployment) {
        return (0, 0);
    }
    let rolling = deployment.spec.strategy.as_ref().and_then(|s| s.rolling_update.clone());
    let rolling = rolling.unwrap_or_default();
    let quarter = || IntOrString::String("25%".to_owned());
    let total = wanted(deployment);
    let surge = resolve(&rolling.max_surge.unwrap_or_else(quarter), total, true);
    let unavailable = resolve(&rolling.max_unavailable.unwrap_or_else(quarter), total, false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable.min(total.max(1))) }
}

fn resolve(value: &IntOrString, total: i32, round_up: bool) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let scaled = percent.saturating_mul(i64::from(total));
            i32::try_from(if round_up { scaled.saturating_add(99).div_euclid(100) } else { scaled / 100 })
                .unwrap_or(0)
        }
    }
}

/// Returns the next size of the newest ReplicaSet (now `current`) while all sets together have `all` pods.
pub fn newest(deployment: &Deployment, current: i32, all: i32) -> i32 {
    let wanted = wanted(deployment);
    if !is_rolling(deployment) || current > wanted {
        return wanted;
    }
    let room = wanted.saturating_add(limits(deployment).0).saturating_sub(all);
    if room <= 0 { current } else { current + room.min(wanted - current) }
}

/// Returns the sizes of the old sets (oldest first) that a rolling update allows now: unhealthy pods are removed
/// first, then healthy ones as long as enough stay available. A status that is older than its set's size removes
/// nothing.
pub fn shrink_old(deployment: &Deployment, newest: Option<&ReplicaSet>, old: &[ReplicaSet]) -> Vec<Resize> {
    let old_pods = sum(old);
    if old_pods == 0 || old.iter().chain(newest).any(|s| replicas(s) > 0 && !is_observed(s)) {
        return Vec::new();
    }
    let min_available = wanted(deployment) - limits(deployment).1;
    let new_pods = newest.map_or(0, replicas);
    let new_unavailable = new_pods - newest.map_or(0, available);
    let mut budget = old_pods + new_pods - min_available - new_unavailable;
    if budget <= 0 {
        return Vec::new();
    }
    let mut sizes: Vec<i32> = old.iter().map(replicas).collect();
    for (size, set) in sizes.iter_mut().zip(old) {
        let unhealthy = (*size - available(set)).clamp(0, budget.max(0));
        *size -= unhealthy;
        budget -= unhealthy;
    }
    let all_available: i32 = old.iter().chain(newest).map(available).sum();
    let mut surplus = all_available - min_available;
    for size in &mut sizes {
        let step = (*size).min(surplus.max(0));
        *size -= step;
        surplus -= step;
    }
    changes(old, &sizes)
}

fn changes(sets: &[ReplicaSet], sizes: &[i32]) -> Vec<Resize> {
    let pairs = sets.iter().zip(sizes).enumerate();
    pairs
        .filter(|(_, (set, size))| replicas(set) != **size)
        .map(|(index, (_, size))| Resize { index, replicas: *size })
        .collect()
}

/// Returns whether the Deployment was scaled since its active sets were last sized.
pub fn was_scaled(deployment: &Deployment, sets: &[ReplicaSet]) -> bool {
    let desired = |set: &ReplicaSet| number_annotation(&set.metadata, DESIRED_REPLICAS);
    sets.iter().filter(|s| replicas(s) > 0).any(|s| desired(s).is_some_and(|d| d != wanted(deployment)))
}

/// Returns new sizes after the Deployment was scaled, or while it is paused. `newest` is the index of the newest set.
pub fn scale(deployment: &Deployment, sets: &[ReplicaSet], newest: Option<usize>) -> Vec<Resize> {
    let wanted = wanted(deployment);
    let active: Vec<usize> = (0..sets.len()).filter(|i| replicas(&sets[*i]) > 0).collect();
    if let Some(only) = active_or_latest(sets, &active, newest) {
        let as_wanted = replicas(&sets[only]) == wanted && is_noted(deployment, &sets[only]);
        return if as_wanted { Vec::new() } else { vec![Resize { index: only, replicas: wanted }] };
    }
    let saturated = newest.is_some_and(|i| {
        replicas(&sets[i]) == wanted
            && available(&sets[i]) == wanted
            && number_annotation(&sets[i].metadata, DESIRED_REPLICAS) == Some(wanted)
    });
    if saturated {
        let old = active.into_iter().filter(|i| Some(*i) != newest);
        return old.map(|index| Resize { index, replicas: 0 }).collect();
    }
    if is_rolling(deployment) { in_proportion(deployment, sets, active) } else { Vec::new() }
}

/// Returns whether the set's annotations have the Deployment's current size, or it has no pods and none are needed. A
/// controller that was stopped between two sets has left the old size on one, which would count as scaling forever.
fn is_noted(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let desired = number_annotation(&set.metadata, DESIRED_REPLICAS);
    replicas(set) == 0 || desired.is_none_or(|d| d == wanted(deployment))
}

/// Returns whether both size annotations for proportional scaling are current.
fn is_annotated(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let max = number_annotation(&set.metadata, MAX_REPLICAS);
    is_noted(deployment, set) && max == Some(wanted(deployment).saturating_add(limits(deployment).0))
}

/// Returns the sum of the sets' sizes, saturating at the largest number.
pub fn sum<'s>(sets: impl IntoIterator<Item = &'s ReplicaSet>) -> i32 {
    sets.into_iter().map(replicas).fold(0, i32::saturating_add)
}

fn active_or_latest(sets: &[ReplicaSet], active: &[usize], newest: Option<usize>) -> Option<usize> {
    match active {
        [] => newest.or_else(|| {
            (0..sets.len()).max_by_key(|i| sets[*i].metadata.creation_timestamp.as_ref().map(|t| t.0))
        }),
        [only] => Some(*only),
        _ => None,
    }
}

/// Distributes a change of size over the active sets in proportion; the largest set gets the rounding remainder.
fn in_proportion(deployment: &Deployment, sets: &[ReplicaSet], mut active: Vec<usize>) -> Vec<Resize> {
    let wanted = wanted(deployment);
    let allowed = if wanted > 0 { wanted.saturating_add(limits(deployment).0) } else { 0 };
    let total = sum(active.iter().map(|i| &sets[*i]));
    let to_add = allowed.saturating_sub(total);
    let created = |i: usize| sets[i].metadata.creation_timestamp.as_ref().map(|t| t.0);
    active.sort_by(|a, b| {
        let by_age = if to_add > 0 { created(*b).cmp(&created(*a)) } else { created(*a).cmp(&created(*b)) };
        replicas(&sets[*b]).cmp(&replicas(&sets[*a])).then(by_age)
    });
    let mut sizes: Vec<i32> = sets.iter().map(replicas).collect();
    let mut added = 0;
    for index in &active {
        if to_add != 0 {
            let share = share(deployment, &sets[*index], allowed);
            let left = to_add - added;
            let step = if to_add > 0 { share.min(left) } else { share.max(left) };
            sizes[*index] += step;
            added += step;
        }
    }
    if let Some(largest) = active.first() {
        sizes[*largest] = (sizes[*largest] + to_add - added).max(0);
    }
    let mut resizes = changes(sets, &sizes);
    let same = active
        .into_iter()
        .filter(|i| replicas(&sets[*i]) == sizes[*i] && !is_annotated(deployment, &sets[*i]));
    resizes.extend(same.map(|index| Resize { index, replicas: sizes[index] }));
    resizes
}

/// Returns by how much one set's size changes in proportion to the Deployment's.
fn share(deployment: &Deployment, set: &ReplicaSet, allowed: i32) -> i32 {
    let current = replicas(set);
    if wanted(deployment) == 0 {
        return -current;
    }
    let before = number_annotation(&set.metadata, MAX_REPLICAS)
        .filter(|n| *n > 0)
        .or_else(|| deployment.status.as_ref().and_then(|s| s.replicas).filter(|n| *n > 0))
        .unwrap_or(allowed);
    let scaled = f64::from(current) * f64::from(allowed) / f64::from(before);
    scaled.round() as i32 - current
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::testing::{deployment, set};

    #[test]
    fn limits_resolve_percentages_as_documented() {
        let table = [
            (10, "25%", "25%", (3, 2)),
            (4, "25%", "25%", (1, 1)),
            (1, "25%", "25%", (1, 0)),
            (5, "0%", "0%", (0, 1)),
            (5, "100%", "0%", (5, 0)),
        ];
        for (replicas, surge, unavailable, expected) in table {
            let d = deployment(replicas).rolling_text(surge, unavailable).build();
            assert_eq!(limits(&d), expected, "{replicas} {surge} {unavailable}");
        }
    }

    #[test]
    fn the_newest_set_grows_within_the_surge() {
        let d = deployment(5).rolling(1, 0).build();
        assert_eq!(newest(&d, 0, 5), 1);
        assert_eq!(newest(&d, 1, 6), 1);
        assert_eq!(newest(&d, 1, 5), 2);
        let blue_green = deployment(5).rolling(5, 0).build();
        assert_eq!(newest(&blue_green, 0, 5), 5);
        assert_eq!(newest(&deployment(5).recreate().build(), 0, 0), 5);
        assert_eq!(newest(&d, 7, 7), 5, "scaled down meanwhile");
    }

    #[test]
    fn old_sets_shrink_only_while_enough_pods_are_available() {
        let d = deployment(5).rolling(1, 0).build();
        let old = [set("old", 5).available(5).build()];
        assert_eq!(shrink_old(&d, Some(&set("new", 1).build()), &old), []);
        let resize = shrink_old(&d, Some(&set("new", 1).available(1).build()), &old);
        assert_eq!(resize, [Resize { index: 0, replicas: 4 }]);
    }

    #[test]
    fn pods_that_are_going_do_not_count_as_available() {
        let d = deployment(4).rolling(1, 1).build();
        // One pod was deleted already, which the status does not show: 4 pods for 3 that must stay, so one may be
        // removed.
        let old = [set("old", 3).available(4).build()];
        let new = set("new", 1).available(1).build();
        assert_eq!(shrink_old(&d, Some(&new), &old), [Resize { index: 0, replicas: 2 }]);
        // The set was shrunk and enlarged again: it is unknown how many of its pods are available.
        let mut old = set("old", 4).available(4).build();
        old.metadata.generation = Some(3);
        old.status.as_mut().unwrap().observed_generation = Some(1);
        assert_eq!(shrink_old(&d, Some(&new), &[old.clone()]), []);
        old.status.as_mut().unwrap().observed_generation = Some(3);
        assert_eq!(shrink_old(&d, Some(&new), &[old]), [Resize { index: 0, replicas: 2 }]);
    }

    #[test]
    fn unhealthy_old_pods_go_first() {
        let d = deployment(10).rolling(3, 2).build();
        let old = [set("a", 5).available(5).build(), set("b", 5).available(0).build()];
        let new = set("new", 3).available(0).build();
        // Of 13 pods 8 must stay and 3 new ones are not available yet: 2 may be removed, which are the unhealthy
        // ones.
        assert_eq!(shrink_old(&d, Some(&new), &old), [Resize { index: 1, replicas: 3 }]);
    }

    #[test]
    fn scaling_in_the_middle_of_a_rollout_is_in_proportion() {
        // The example of the documentation: 10 replicas, maxSurge 3, maxUnavailable 2, scaled to 15 at 8 and 5.
        let d = deployment(15).rolling(3, 2).build();
        let sets = [
            set("old", 8)
                .available(8)
                .annotated(DESIRED_REPLICAS, "10")
                .annotated(MAX_REPLICAS, "13")
                .build(),
            set("new", 5).annotated(DESIRED_REPLICAS, "10").annotated(MAX_REPLICAS, "13").build(),
        ];
        assert!(was_scaled(&d, &sets));
        let resize = scale(&d, &sets, Some(1));
        assert_eq!(resize, [Resize { index: 0, replicas: 11 }, Resize { index: 1, replicas: 7 }]);
    }

    #[test]
    fn a_set_that_keeps_its_size_learns_the_new_one_of_the_deployment() {
        // The controller was stopped after it had scaled the first set.
        let d = deployment(5).rolling(1, 1).build();
        let sets = [
            set("a", 4).available(4).annotated(DESIRED_REPLICAS, "5").annotated(MAX_REPLICAS, "6").build(),
            set("b", 2).available(2).annotated(DESIRED_REPLICAS, "4").annotated(MAX_REPLICAS, "5").build(),
        ];
        assert!(was_scaled(&d, &sets));
        assert_eq!(scale(&d, &sets, None), [Resize { index: 1, replicas: 2 }]);
        let one = [set("a", 5).annotated(DESIRED_REPLICAS, "4").build()];
        assert_eq!(scale(&d, &one, Some(0)), [Resize { index: 0, replicas: 5 }]);
    }

    #[test]
    fn a_single_active_set_follows_the_deployment() {
        let sets = [set("old", 0).build(), set("new", 5).available(5).build()];
        assert_eq!(scale(&deployment(2).build(), &sets, Some(1)), [Resize { index: 1, replicas: 2 }]);
        assert_eq!(scale(&deployment(5).build(), &sets, Some(1)), []);
    }
}
