//! Finds workloads that make one node after another fail: each time, their pods had come from the node that failed
//! before. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

/// The thresholds for holding a workload back, and the duration of the hold.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// The number of nodes that failed one after another.
    pub nodes: usize,
    /// The maximum time between two of these failures.
    pub window_seconds: u64,
    /// The hold ends by itself after this time.
    pub hold_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 3, window_seconds: 1800, hold_seconds: 3600 }
    }
}

const MAX_CHAINS: usize = 20_000;
const MAX_LENGTH: usize = 64;

#[derive(Debug, Clone, Default)]
struct Chain {
    nodes: Vec<String>,
    last: Duration,
    held_until: Option<Duration>,
}

/// The suspected workloads, by owner.
#[derive(Debug, Default)]
pub struct Chains {
    pub limits: Limits,
    chains: BTreeMap<String, Chain>,
}

/// A workload that is held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub nodes: Vec<String>,
    pub until: Duration,
}

impl Chains {
    /// Records that a node failed with pods of these owners, each with the start time of its newest pod there. Returns
    /// the owners that are held back from now on.
    pub fn node_fell<'a>(
        &mut self,
        node: &str,
        owners: impl IntoIterator<Item = (&'a str, Duration)>,
        now: Duration,
    ) -> Vec<String> {
        let mut held = Vec::new();
        for (owner, came) in owners {
            if !self.chains.contains_key(owner) && self.chains.len() >= MAX_CHAINS {
                continue;
            }
            let window = Duration::from_secs(self.limits.window_seconds);
            let chain = self.chains.entry(owner.to_owned()).or_default();
            let stale = chain.last + window < now;
            if chain.held_until.is_none() && (chain.nodes.is_empty() || stale) {
                // This is the first failed node of the chain.
                *chain = Chain { nodes: vec![node.to_owned()], last: now, held_until: None };
                continue;
            }
            // Pods that were on the node before the previous node failed did not move here from it.
            if came < chain.last || chain.nodes.iter().any(|n| n == node) || chain.nodes.len() >= MAX_LENGTH {
                continue;
            }
            chain.nodes.push(node.to_owned());
            chain.last = now;
            if chain.nodes.len() >= self.limits.nodes && chain.held_until.is_none() {
                chain.held_until = Some(now + Duration::from_secs(self.limits.hold_seconds));
                held.push(owner.to_owned());
            }
        }
        held
    }

    /// Returns the hold of the owner's pods, if there is one.
    pub fn held(&self, owner: &str) -> Option<Held> {
        let chain = self.chains.get(owner)?;
        Some(Held { nodes: chain.nodes.clone(), until: chain.held_until? })
    }

    /// The number of workloads that are held back.
    pub fn count_held(&self) -> usize {
        self.chains.values().filter(|c| c.held_until.is_some()).count()
    }

    /// Ends the hold of an owner on request. Returns true when it was held.
    pub fn release(&mut self, owner: &str) -> bool {
        self.chains.remove(owner).is_some_and(|c| c.held_until.is_some())
    }

    /// Returns when the next hold ends.
    pub fn next_due(&self) -> Option<Duration> {
        self.chains.values().filter_map(|c| c.held_until).min()
    }

    /// Applies the changes that are due at `now`. Returns true when a hold has ended.
    pub fn tick(&mut self, now: Duration) -> bool {
        let window = Duration::from_secs(self.limits.window_seconds);
        let mut released = false;
        self.chains.retain(|_, chain| match chain.held_until {
            Some(until) => {
                released |= until <= now;
                until > now
            }
            None => chain.last + window >= now,
        });
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_workload_that_takes_node_after_node_with_it_is_held() {
        let mut chains = Chains::default();
        assert!(chains.node_fell("a", [("bomb", at(0))], at(100)).is_empty());
        assert!(chains.node_fell("b", [("bomb", at(160))], at(200)).is_empty());
        assert_eq!(chains.node_fell("c", [("bomb", at(260)), ("other", at(0))], at(300)), ["bomb"]);
        let held = chains.held("bomb").unwrap();
        assert_eq!((held.nodes, held.until), (["a", "b", "c"].map(str::to_owned).into(), at(3900)));
        assert!(chains.held("other").is_none());
        assert!(!chains.tick(at(3899)));
        assert!(chains.tick(at(3900)) && chains.held("bomb").is_none(), "the hold ends by time");
    }

    #[test]
    fn nodes_that_fall_together_are_no_workloads_fault() {
        let mut chains = Chains::default();
        for (node, seconds) in [("a", 100), ("b", 101), ("c", 103), ("d", 110)] {
            // Its pods had been on all of these nodes for a long time.
            assert!(chains.node_fell(node, [("web", at(5))], at(seconds)).is_empty());
        }
        assert_eq!(chains.count_held(), 0);
    }

    #[test]
    fn falls_far_apart_do_not_add_up() {
        let mut chains = Chains::default();
        for n in 0..6u64 {
            let now = 100 + n * 4000;
            assert!(chains.node_fell(&format!("n{n}"), [("web", at(now - 10))], at(now)).is_empty());
        }
    }

    #[test]
    fn somebody_can_let_it_go() {
        let mut chains = Chains { limits: Limits { nodes: 2, ..Limits::default() }, ..Chains::default() };
        chains.node_fell("a", [("x", at(0))], at(10));
        chains.node_fell("b", [("x", at(20))], at(30));
        assert_eq!((chains.count_held(), chains.next_due()), (1, Some(at(3630))));
        assert!(chains.release("x") && !chains.release("x"));
        assert!(chains.held("x").is_none());
    }
}
