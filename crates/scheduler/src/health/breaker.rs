//! A circuit breaker for each node: when pods of several owners keep failing to start there, the node is first scored
//! lower, then avoided, then tried with one pod at a time. Pure: observations and the time go in, changes come out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::Deserialize;

/// The thresholds of the breaker and the durations of its pauses.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Thresholds {
    /// Older observations do not count.
    pub window_seconds: u64,
    /// With failed pods of at least this many owners, the node scores zero.
    pub owners_for_less: usize,
    /// With failed pods of at least this many owners, and `pods_to_avoid` of them, the node gets no pods.
    pub owners_to_avoid: usize,
    pub pods_to_avoid: usize,
    /// The first pause; each failed trial doubles it.
    pub pause_seconds: u64,
    pub max_pause_seconds: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            window_seconds: 600,
            owners_for_less: 2,
            owners_to_avoid: 3,
            pods_to_avoid: 5,
            pause_seconds: 60,
            max_pause_seconds: 1800,
        }
    }
}

/// The state of a node's breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    Full,
    /// The node scores lower.
    Less,
    /// The node gets no pods until then.
    Avoided {
        until: Duration,
        times: u32,
    },
    /// The node gets one pod, as a trial.
    Trial {
        times: u32,
    },
}

/// The number of starts kept for each node, and of nodes for each owner; the oldest starts are dropped first.
const KEPT: usize = 64;
const MAX_NODES: usize = 20_000;
const MAX_OWNERS: usize = 20_000;

#[derive(Debug, Clone)]
struct Start {
    at: Duration,
    owner: String,
    failed: bool,
}

#[derive(Debug, Default)]
struct Node {
    starts: VecDeque<Start>,
    trust: Option<Trust>,
    /// The uid of the pod on trial.
    trial: Option<String>,
}

#[derive(Debug, Default)]
struct Owner {
    failed_on: BTreeMap<String, Duration>,
    started_at: Option<Duration>,
}

/// The breakers of all nodes.
#[derive(Debug, Default)]
pub struct Breakers {
    pub thresholds: Thresholds,
    nodes: BTreeMap<String, Node>,
    owners: BTreeMap<String, Owner>,
}

impl Breakers {
    /// The state of the node's breaker.
    pub fn trust(&self, node: &str) -> Trust {
        self.nodes.get(node).and_then(|n| n.trust).unwrap_or(Trust::Full)
    }

    /// Returns whether every node has full trust.
    pub fn all_trusted(&self) -> bool {
        self.nodes.values().all(|n| n.trust.is_none())
    }

    /// The nodes without full trust.
    pub fn distrusted(&self) -> impl Iterator<Item = (&str, Trust)> {
        self.nodes.iter().filter_map(|(name, n)| Some((name.as_str(), n.trust?)))
    }

    /// Returns whether a pod may be placed on the node now.
    pub fn admits(&self, node: &str) -> bool {
        match self.trust(node) {
            Trust::Full | Trust::Less => true,
            Trust::Avoided { .. } => false,
            Trust::Trial { .. } => self.nodes.get(node).is_none_or(|n| n.trial.is_none()),
        }
    }

    /// Records that a pod will be placed on the node. Returns true when it is the trial.
    pub fn begin(&mut self, node: &str, pod: &str) -> bool {
        let Some(one) = self.nodes.get_mut(node) else { return false };
        let trial = matches!(one.trust, Some(Trust::Trial { .. })) && one.trial.is_none();
        if trial {
            one.trial = Some(pod.to_owned());
        }
        trial
    }

    /// Ends the trial of a pod that left before it started or failed, so that another pod may be tried. Returns true if
    /// the pod was on trial.
    pub fn withdraw(&mut self, node: &str, pod: &str) -> bool {
        let Some(one) = self.nodes.get_mut(node) else { return false };
        let own = one.trial.as_deref() == Some(pod);
        if own {
            one.trial = None;
        }
        own
    }

    /// Records that a pod started on the node or failed to. Returns true when the node's trust has changed.
    pub fn observe(&mut self, node: &str, owner: &str, pod: &str, failed: bool, now: Duration) -> bool {
        if !self.nodes.contains_key(node) && (!failed || self.nodes.len() >= MAX_NODES) {
            // Nodes without failures are not stored, but the start still proves that the owner's pods can start.
            self.note_owner(node, owner, failed, now);
            return false;
        }
        self.note_owner(node, owner, failed, now);
        let one = self.nodes.entry(node.to_owned()).or_default();
        if one.starts.len() >= KEPT {
            one.starts.pop_front();
        }
        one.starts.push_back(Start { at: now, owner: owner.to_owned(), failed });
        let trial = one.trial.as_deref() == Some(pod);
        let before = one.trust;
        if trial && let Some(Trust::Trial { times }) = one.trust {
            one.trial = None;
            one.trust = if failed {
                Some(Trust::Avoided { until: now + self.thresholds.pause(times + 1), times: times + 1 })
            } else {
                one.starts.clear();
                None
            };
        } else if !failed && matches!(one.trust, Some(Trust::Trial { .. })) {
            // In the trial phase, the start of a pod that was placed earlier ends the trial as well. During the pause
            // it does not: the pod may have started before the node began to hang.
            one.trial = None;
            one.starts.clear();
            one.trust = None;
        }
        self.judge(node, now);
        self.nodes.get(node).and_then(|n| n.trust) != before
    }

    /// Records that pods of an owner (or an image) have started somewhere.
    pub fn vouch(&mut self, owner: &str, now: Duration) {
        if let Some(one) = self.owners.get_mut(owner) {
            one.started_at = Some(now);
        }
    }

    fn note_owner(&mut self, node: &str, owner: &str, failed: bool, now: Duration) {
        let window = self.thresholds.window();
        if !self.owners.contains_key(owner) && self.owners.len() >= MAX_OWNERS {
            self.owners.retain(|_, o| o.failed_on.values().any(|at| *at + window > now));
            if self.owners.len() >= MAX_OWNERS {
                return;
            }
        }
        // Owners whose pods all start are not stored.
        if !failed && !self.owners.contains_key(owner) {
            return;
        }
        let one = self.owners.entry(owner.to_owned()).or_default();
        if failed {
            if one.failed_on.len() < KEPT || one.failed_on.contains_key(node) {
                one.failed_on.insert(node.to_owned(), now);
            }
        } else {
            one.started_at = Some(now);
        }
    }

    /// Returns whether the owner is to blame: its pods fail on several nodes and start on none, which shows nothing
    /// about a node.
    fn is_to_blame(&self, owner: &str, now: Duration) -> bool {
        let window = self.thresholds.window();
        let Some(one) = self.owners.get(owner) else { return false };
        let places = one.failed_on.values().filter(|at| **at + window > now).count();
        places > 1 && one.started_at.is_none_or(|at| at + window <= now)
    }

    fn judge(&mut self, node: &str, now: Duration) {
        let window = self.thresholds.window();
        let Some(one) = self.nodes.get(node) else { return };
        if matches!(one.trust, Some(Trust::Avoided { .. } | Trust::Trial { .. })) {
            return;
        }
        let recent = || one.starts.iter().filter(|s| s.at + window > now);
        let counted: Vec<&Start> =
            recent().filter(|s| s.failed && !self.is_to_blame(&s.owner, now)).collect();
        let owners: BTreeSet<&str> = counted.iter().map(|s| s.owner.as_str()).collect();
        let started = recent().filter(|s| !s.failed).count();
        let limits = &self.thresholds;
        let mostly = counted.len() > started;
        let trust =
            if mostly && owners.len() >= limits.owners_to_avoid && counted.len() >= limits.pods_to_avoid {
                Some(Trust::Avoided { until: now + limits.pause(1), times: 1 })
            } else if mostly && owners.len() >= limits.owners_for_less {
                Some(Trust::Less)
            } else {
                None
            };
        if let Some(one) = self.nodes.get_mut(node) {
            one.trust = trust;
        }
    }

    /// Returns when the next change by the passage of time alone is due.
    pub fn next_due(&self) -> Option<Duration> {
        let due = |n: &Node| match n.trust? {
            Trust::Avoided { until, .. } => Some(until),
            Trust::Less => n.starts.front().map(|s| s.at + self.thresholds.window()),
            _ => None,
        };
        self.nodes.values().filter_map(due).min()
    }

    /// Applies the changes that are due at `now`. Returns the nodes whose trust has changed.
    pub fn tick(&mut self, now: Duration) -> Vec<String> {
        let window = self.thresholds.window();
        let mut changed = Vec::new();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let Some(one) = self.nodes.get_mut(&name) else { continue };
            let before = one.trust;
            one.starts.retain(|s| s.at + window > now);
            if let Some(Trust::Avoided { until, times }) = one.trust
                && until <= now
            {
                one.trust = Some(Trust::Trial { times });
                one.trial = None;
            }
            self.judge(&name, now);
            let Some(one) = self.nodes.get(&name) else { continue };
            if one.trust != before {
                changed.push(name.clone());
            }
            if one.trust.is_none() && one.starts.is_empty() {
                self.nodes.remove(&name);
            }
        }
        self.owners.retain(|_, o| o.failed_on.values().any(|at| *at + window > now));
        changed
    }

    /// Removes a deleted node.
    pub fn forget(&mut self, node: &str) {
        self.nodes.remove(node);
    }
}

impl Thresholds {
    fn window(&self) -> Duration {
        Duration::from_secs(self.window_seconds)
    }

    fn pause(&self, times: u32) -> Duration {
        let factor = 1u64 << times.saturating_sub(1).min(20);
        Duration::from_secs(self.pause_seconds.saturating_mul(factor).min(self.max_pause_seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Observes failures (or starts) of `owner` on `node`; pods are numbered.
    fn happen(breakers: &mut Breakers, list: &[(u64, &str, &str, bool)]) {
        for (n, (seconds, node, owner, failed)) in list.iter().enumerate() {
            breakers.observe(node, owner, &format!("pod-{n}"), *failed, at(*seconds));
        }
    }

    #[test]
    fn several_owners_make_a_node_worse_and_then_avoided() {
        let mut b = Breakers::default();
        happen(&mut b, &[(1, "n", "a", true), (2, "n", "a", true), (3, "n", "a", true), (4, "n", "a", true)]);
        assert_eq!(b.trust("n"), Trust::Full, "a single owner's failures do not blame the node");
        happen(&mut b, &[(5, "n", "b", true)]);
        assert_eq!(b.trust("n"), Trust::Less);
        assert!(b.admits("n"));
        happen(&mut b, &[(6, "n", "c", true)]);
        assert_eq!(b.trust("n"), Trust::Avoided { until: at(66), times: 1 });
        assert!(!b.admits("n") && b.admits("m"));
    }

    #[test]
    fn healthy_clusters_and_the_odd_failure_change_nothing() {
        let mut b = Breakers::default();
        for n in 0..200u64 {
            let owner = format!("o{}", n % 7);
            b.observe("n", &owner, &format!("p{n}"), n % 9 == 0, at(n));
        }
        assert!(b.all_trusted(), "{:?}", b.trust("n"));
    }

    #[test]
    fn a_pod_that_fails_everywhere_does_not_trip() {
        let mut b = Breakers::default();
        for n in 0..40u64 {
            // Three broken owners on four nodes.
            happen(
                &mut b,
                &[(n, ["w", "x", "y", "z"][n as usize % 4], ["a", "b", "c"][n as usize % 3], true)],
            );
        }
        assert!(b.distrusted().all(|(_, t)| t == Trust::Less) || b.all_trusted());
        b.tick(at(41));
        assert!(b.all_trusted());
        // When their pods start elsewhere, the node is to blame.
        let mut b = Breakers::default();
        for owner in ["a", "b", "c"] {
            happen(&mut b, &[(1, "bad", owner, true), (2, "worse", owner, true), (3, "good", owner, false)]);
        }
        happen(&mut b, &[(4, "bad", "a", true), (5, "bad", "b", true)]);
        assert!(matches!(b.trust("bad"), Trust::Avoided { .. }), "{:?}", b.trust("bad"));
        assert_eq!(b.trust("good"), Trust::Full);
    }

    fn tripped() -> Breakers {
        let mut b = Breakers::default();
        let failures = [(1, "n", "a", true), (1, "n", "b", true), (1, "n", "c", true), (1, "n", "a", true)];
        happen(&mut b, &failures);
        happen(&mut b, &[(1, "n", "b", true)]);
        assert!(matches!(b.trust("n"), Trust::Avoided { .. }));
        b
    }

    #[test]
    fn after_the_pause_one_pod_tries() {
        let mut b = tripped();
        assert_eq!(b.next_due(), Some(at(61)));
        assert_eq!(b.tick(at(60)), Vec::<String>::new());
        assert_eq!(b.tick(at(61)), ["n"]);
        assert!(b.admits("n"));
        assert!(b.begin("n", "trial") && !b.begin("n", "second"));
        assert!(!b.admits("n"), "one at a time");
        assert!(b.observe("n", "d", "trial", false, at(70)));
        assert_eq!((b.trust("n"), b.admits("n")), (Trust::Full, true));
    }

    #[test]
    fn a_pod_of_before_that_starts_after_the_pause_is_as_good_as_a_trial() {
        let mut b = tripped();
        assert!(!b.observe("n", "e", "of-before", false, at(30)), "the pause lasts");
        assert!(matches!(b.trust("n"), Trust::Avoided { .. }));
        b.tick(at(61));
        assert!(b.begin("n", "trial"));
        assert!(!b.observe("n", "e", "of-before", true, at(65)), "not the pod on trial");
        assert!(!b.admits("n"));
        assert!(b.observe("n", "e", "of-before", false, at(70)));
        assert_eq!(b.trust("n"), Trust::Full);
        assert!(!b.observe("n", "d", "trial", true, at(75)), "one failure is not enough");
    }

    #[test]
    fn a_trial_that_fails_doubles_the_pause() {
        let mut b = tripped();
        let mut now = at(61);
        for expected in [120, 240, 480, 960, 1800, 1800] {
            b.tick(now);
            assert!(b.begin("n", "trial"));
            b.observe("n", "d", "trial", true, now);
            let Trust::Avoided { until, .. } = b.trust("n") else { panic!("{:?}", b.trust("n")) };
            assert_eq!(until - now, at(expected));
            now = until;
        }
    }

    #[test]
    fn a_trial_that_is_called_off_leaves_room_for_another() {
        let mut b = tripped();
        b.tick(at(61));
        assert!(b.begin("n", "trial") && b.withdraw("n", "trial"));
        assert!(b.admits("n"));
        b.forget("n");
        assert_eq!(b.trust("n"), Trust::Full);
    }

    #[test]
    fn what_is_long_ago_does_not_count() {
        let mut b = Breakers::default();
        happen(&mut b, &[(1, "n", "a", true), (2, "n", "b", true)]);
        assert_eq!((b.trust("n"), b.next_due()), (Trust::Less, Some(at(601))));
        assert_eq!(b.tick(at(603)), ["n"]);
        assert!(b.all_trusted() && b.nodes.is_empty() && b.owners.is_empty());
    }
}
