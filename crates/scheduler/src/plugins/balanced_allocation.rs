//! NodeResourcesBalancedAllocation: prefers nodes on which the resources would be used in equal proportions.

use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::sync::Arc;

use serde::Deserialize;

use super::scoring_strategy::{ResourceWeight, cpu_and_memory, requests, uses};
use crate::framework::points::NodeView;
use crate::framework::{Descriptor, MAX_NODE_SCORE, NodeScore, Parts, Plugin, Scope, Score, Shape};
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodeResourcesBalancedAllocation";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        let resources = if args.resources.is_empty() { cpu_and_memory() } else { args.resources };
        let plugin = Arc::new(BalancedAllocation { resources: resources.into() });
        Ok(Parts { score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Args {
    resources: Vec<ResourceWeight>,
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = path.child("resources");
        for (i, resource) in self.resources.iter().enumerate() {
            if self.resources[..i].iter().any(|r| r.name == resource.name) {
                errors.push(Error::duplicate(&path.index(i).child("name"), resource.name.as_str()));
            }
            if resource.weight != 1 {
                errors.push(Error::invalid(&path.index(i).child("weight"), resource.weight, "must be 1"));
            }
        }
        errors
    }
}

struct BalancedAllocation {
    resources: Arc<[ResourceWeight]>,
}

struct Balance {
    resources: Arc<[ResourceWeight]>,
    requests: Vec<i64>,
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        NAME
    }
}

/// The used fraction of each resource that the node has.
#[derive(Default)]
struct Shares {
    few: [f64; 2],
    more: Vec<f64>,
    count: usize,
}

impl Shares {
    fn push(&mut self, used: i64, total: i64) {
        let share = (used as f64 / total as f64).min(1.0);
        match self.few.get_mut(self.count) {
            Some(place) => *place = share,
            None => self.more.push(share),
        }
        self.count += 1;
    }

    /// 100 minus the standard deviation in percent.
    fn evenness(&self) -> i64 {
        let deviation = match self.count {
            0 | 1 => 0.0,
            2 => ((self.few[0] - self.few[1]) / 2.0).abs(),
            n => {
                let all = || self.few.iter().chain(&self.more);
                let mean = all().sum::<f64>() / n as f64;
                (all().map(|s| (s - mean) * (s - mean)).sum::<f64>() / n as f64).sqrt()
            }
        };
        ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
    }
}

impl Score for BalancedAllocation {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    /// Returns `None` for best-effort pods, which do not change the balance.
    fn pre_score(&self, _: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let requests = requests(&self.resources, &shape.footprint.requests);
        let something = requests.iter().any(|r| *r != 0);
        something.then(|| Box::new(Balance { resources: Arc::clone(&self.resources), requests }) as _)
    }
}

impl NodeScore for Balance {
    /// Returns 75 when the pod does not change the balance, more when it improves the balance, less when it worsens it.
    fn score(&self, node: &NodeView) -> i64 {
        let (mut before, mut after) = (Shares::default(), Shares::default());
        for used in uses(&self.resources, &self.requests, node.row, false).filter(|u| u.allocatable != 0) {
            before.push(used.allocated, used.allocatable);
            after.push(used.requested, used.allocatable);
        }
        const HALF: i64 = MAX_NODE_SCORE / 2;
        HALF + (HALF + after.evenness() - before.evenness()) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod, scores};

    #[test]
    fn improving_the_balance_scores_higher() {
        let score = |cpu: &str, memory: &str| {
            let there = vec![(0, pod("a").cpu("2"))];
            scores(
                DESCRIPTOR,
                pod("p").cpu(cpu).memory(memory),
                vec![node("n").capacity("4", "4Gi", 110)],
                there,
            )
        };
        assert_eq!(score("1", "1Gi"), [75]);
        assert_eq!(score("0", "2Gi"), [87]);
        assert_eq!(score("2", "0"), [62]);
    }

    #[test]
    fn best_effort_pods_are_not_scored() {
        assert_eq!(scores(DESCRIPTOR, pod("p"), vec![node("n")], vec![]), [0]);
    }

    #[test]
    fn more_than_two_resources_use_the_deviation() {
        let mut shares = Shares::default();
        [(0, 4), (2, 4), (4, 4)].into_iter().for_each(|(used, total)| shares.push(used, total));
        assert_eq!(shares.evenness(), 59, "1 - sqrt(1/6)");
    }
}
