//! Scoring by resources: the weights of resources, and the functions from utilization to score.

use serde::{Deserialize, Deserializer};

use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::framework::MAX_NODE_SCORE;
use crate::framework::resources::Resources;
use crate::snapshot::NodeRow;

/// A resource with its weight.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResourceWeight {
    #[serde(default)]
    pub name: String,
    #[serde(default = "one", deserialize_with = "one_for_zero")]
    pub weight: i64,
}

fn one() -> i64 {
    1
}

fn one_for_zero<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    i64::deserialize(from).map(|weight| if weight == 0 { 1 } else { weight })
}

/// CPU and memory with equal weights.
pub fn cpu_and_memory() -> Vec<ResourceWeight> {
    ["cpu", "memory"].map(|name| ResourceWeight { name: name.to_owned(), weight: 1 }).into()
}

/// Requested after placement, requested before, and allocatable, of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    pub requested: i64,
    pub allocated: i64,
    pub allocatable: i64,
}

/// Returns whether the name is an extended resource, a huge page size or an attachable volume. These do not matter for
/// pods that do not request them.
fn is_scalar(name: &str) -> bool {
    !matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods")
}

fn amount(resources: &Resources, name: &str) -> i64 {
    match name {
        "cpu" => resources.milli_cpu,
        "memory" => resources.memory,
        "ephemeral-storage" => resources.ephemeral_storage,
        other => resources.scalar.get(other).copied().unwrap_or(0),
    }
}

/// The pod's request of each resource.
pub fn requests(resources: &[ResourceWeight], pod: &Resources) -> Vec<i64> {
    resources.iter().map(|r| amount(pod, &r.name)).collect()
}

/// The use of each resource on the node; all zero where the resource does not matter. With `assumed`, pods without
/// requests count with the assumed minimums of CPU and memory.
pub fn uses<'a>(
    resources: &'a [ResourceWeight],
    requests: &'a [i64],
    node: &'a NodeRow,
    assumed: bool,
) -> impl Iterator<Item = Use> + 'a {
    resources.iter().zip(requests).map(move |(resource, request)| {
        let name = resource.name.as_str();
        if *request == 0 && is_scalar(name) {
            return Use::default();
        }
        let used = if assumed && matches!(name, "cpu" | "memory") {
            &node.non_zero_requested
        } else {
            &node.requested
        };
        let (allocated, allocatable) = (amount(used, name), amount(&node.allocatable, name));
        if allocatable == 0 {
            return Use::default();
        }
        Use { requested: allocated + request, allocated, allocatable }
    })
}

/// A point of the function: utilization in percent, and the score there from 0 to 10.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ShapePoint {
    pub utilization: i64,
    pub score: i64,
}

/// Validates the points of a function.
pub fn shape_problems(shape: &[ShapePoint], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if shape.is_empty() {
        errors.push(Error::required(path, "at least one point must be specified"));
    }
    let falls = shape.windows(2).position(|two| two[0].utilization >= two[1].utilization);
    if let Some(before) = falls {
        let at = path.index(before + 1).child("utilization");
        let why = "values must be sorted in increasing order";
        errors.push(Error::invalid(&at, shape[before + 1].utilization, why));
    }
    for (i, point) in shape.iter().enumerate() {
        for (name, value, most) in [("utilization", point.utilization, 100), ("score", point.score, 10)] {
            if !(0..=most).contains(&value) {
                let why = format!("not in valid range [0, {most}]");
                errors.push(Error::invalid(&path.index(i).child(name), value, why));
            }
        }
    }
    errors
}

/// The function from utilization to score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Linear between the points.
    RequestedToCapacityRatio(Vec<ShapePoint>),
}

fn percent(part: i64, whole: i64) -> i64 {
    i64::try_from(i128::from(part) * i128::from(MAX_NODE_SCORE) / i128::from(whole)).unwrap_or(0)
}

impl Strategy {
    fn of_one(&self, used: &Use) -> i64 {
        let Use { requested, allocatable, .. } = *used;
        match self {
            Self::LeastAllocated if requested > allocatable => 0,
            Self::LeastAllocated => percent(allocatable - requested, allocatable),
            Self::MostAllocated => percent(requested.min(allocatable), allocatable),
            Self::RequestedToCapacityRatio(shape) => broken_line(
                shape,
                if requested > allocatable { 100 } else { percent(requested, allocatable) },
            ),
        }
    }

    /// The weighted mean of the scores of the resources.
    pub fn score(&self, resources: &[ResourceWeight], uses: impl Iterator<Item = Use>) -> i64 {
        let ratio = matches!(self, Self::RequestedToCapacityRatio(_));
        let (mut sum, mut weights) = (0, 0);
        for (resource, used) in resources.iter().zip(uses).filter(|(_, used)| used.allocatable != 0) {
            let score = self.of_one(&used);
            if score > 0 || !ratio {
                sum += score * resource.weight;
                weights += resource.weight;
            }
        }
        match weights {
            0 => 0,
            _ if ratio => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }
}

/// Interpolates between the points, scaled to node scores.
pub fn broken_line(shape: &[ShapePoint], at: i64) -> i64 {
    let score = |p: &ShapePoint| p.score * (MAX_NODE_SCORE / 10);
    let Some(after) = shape.iter().position(|p| at <= p.utilization) else {
        return shape.last().map_or(0, score);
    };
    let end = &shape[after];
    match after.checked_sub(1).and_then(|before| shape.get(before)) {
        None => score(end),
        Some(begin) => {
            let run = (end.utilization - begin.utilization).max(1);
            score(begin) + (score(end) - score(begin)) * (at - begin.utilization) / run
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(requested: i64, allocatable: i64) -> Use {
        Use { requested, allocated: 0, allocatable }
    }

    #[test]
    fn strategies_lean_to_their_side() {
        let shape = vec![ShapePoint { utilization: 0, score: 0 }, ShapePoint { utilization: 100, score: 10 }];
        let ratio = Strategy::RequestedToCapacityRatio(shape);
        // requested, allocatable; expected scores of least, most, ratio
        let table = [(0, 4, 100, 0, 0), (1, 4, 75, 25, 25), (4, 4, 0, 100, 100), (5, 4, 0, 100, 100)];
        for (requested, of, least, most, by_ratio) in table {
            let one = cpu_and_memory();
            let score = |s: &Strategy| s.score(&one[..1], std::iter::once(used(requested, of)));
            let got = (score(&Strategy::LeastAllocated), score(&Strategy::MostAllocated), score(&ratio));
            assert_eq!(got, (least, most, by_ratio), "{requested}/{of}");
        }
    }

    #[test]
    fn resources_count_by_their_weight_and_only_where_the_node_has_them() {
        let resources = vec![
            ResourceWeight { name: "cpu".into(), weight: 3 },
            ResourceWeight { name: "memory".into(), weight: 1 },
            ResourceWeight { name: "x/gpu".into(), weight: 9 },
        ];
        let uses = [used(1, 2), used(0, 2), Use::default()];
        assert_eq!(Strategy::LeastAllocated.score(&resources, uses.into_iter()), (50 * 3 + 100) / 4);
    }

    #[test]
    fn curves_are_linear_between_their_points() {
        let shape: Vec<_> = [(20, 10), (60, 4), (100, 0)]
            .map(|(utilization, score)| ShapePoint { utilization, score })
            .into();
        for (at, expected) in [(0, 100), (20, 100), (40, 70), (60, 40), (80, 20), (100, 0), (150, 0)] {
            assert_eq!(broken_line(&shape, at), expected, "{at}");
        }
    }
}
