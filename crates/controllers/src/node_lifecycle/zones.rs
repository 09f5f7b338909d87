//! How fast NoExecute taints are added: slower in a zone in which many nodes fail, and not at all when every zone
//! fails, because then the network of the control plane is more likely to be broken.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;

use crate::metrics::{self, Metric};
use crate::settings::NodeSettings;
use crate::support::nodes::is_ready;

const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Normal,
    Partial,
    Full,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    ready: usize,
    not_ready: usize,
}

impl Count {
    fn state(self, settings: &NodeSettings) -> State {
        let all = self.ready + self.not_ready;
        let part = self.not_ready as f64 / all.max(1) as f64;
        match self {
            Self { ready: 0, not_ready: 1.. } => State::Full,
            Self { not_ready: 3.., .. } if part >= settings.unhealthy_zone_threshold => State::Partial,
            _ => State::Normal,
        }
    }

    /// Returns the time between two taints; `None` if no node may be tainted.
    fn pace(self, settings: &NodeSettings) -> Option<Duration> {
        let is_large = self.ready + self.not_ready > settings.large_cluster_size;
        let per_second = match self.state(settings) {
            State::Normal | State::Full => settings.eviction_rate,
            State::Partial if is_large => settings.secondary_eviction_rate,
            State::Partial => 0.0,
        };
        // A rate of zero, or one so low that its reciprocal overflows, means no tainting.
        Duration::try_from_secs_f64(per_second.recip()).ok()
    }
}

/// Whether a node may be tainted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    Granted,
    After(Duration),
    /// Not until the zones' state changes.
    Held,
}

/// What changed in the zones since the last refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// The pace of some zone changed: nodes that wait must ask again.
    Pace,
    /// Every zone is fully disrupted: NoExecute taints are removed from all nodes.
    Halted,
    /// Some node is ready again: every node's grace period restarts.
    Resumed,
}

/// The readiness of all nodes, by zone.
#[derive(Debug, Default)]
pub struct Zones {
    nodes: BTreeMap<String, (String, bool)>,
    counts: BTreeMap<String, Count>,
    /// The states at the last [`Zones::refresh`].
    states: BTreeMap<String, State>,
    halted: bool,
    last_taint: BTreeMap<String, Duration>,
}

/// Returns region and zone of a node as one key.
pub fn zone_of(node: &Node) -> String {
    let labels = node.metadata.labels.as_ref();
    let label = |keys: [&str; 2]| keys.iter().find_map(|k| labels?.get(*k)).map_or("", String::as_str);
    let region = label(["failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"]);
    let zone = label(["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"]);
    if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

impl Zones {
    /// Records a node's zone and readiness. Nodes that are excluded from disruption by their label do not count.
    pub fn observe(&mut self, name: &str, node: &Node) {
        self.forget(name);
        if node.metadata.labels.as_ref().is_some_and(|l| l.contains_key(EXCLUDED)) {
            return;
        }
        let (zone, ready) = (zone_of(node), is_ready(node));
        let count = self.counts.entry(zone.clone()).or_default();
        *if ready { &mut count.ready } else { &mut count.not_ready } += 1;
        self.nodes.insert(name.to_owned(), (zone, ready));
    }

    /// Drops a node.
    pub fn forget(&mut self, name: &str) {
        let Some((zone, ready)) = self.nodes.remove(name) else { return };
        if let Some(count) = self.counts.get_mut(&zone) {
            *if ready { &mut count.ready } else { &mut count.not_ready } -= 1;
            if *count == Count::default() {
                self.counts.remove(&zone);
            }
        }
    }

    /// Computes the zones' states and compares them with the last ones.
    pub fn refresh(&mut self, settings: &NodeSettings) -> Change {
        let states: BTreeMap<String, State> =
            self.counts.iter().map(|(zone, count)| (zone.clone(), count.state(settings))).collect();
        let halted = !states.is_empty() && states.values().all(|s| *s == State::Full);
        let (same, was_halted) = (states == self.states, self.halted);
        self.states = states;
        self.halted = halted;
        match (was_halted, halted) {
            (false, true) => Change::Halted,
            (true, false) => Change::Resumed,
            _ if same => Change::Nothing,
            _ => Change::Pace,
        }
    }

    /// Records the zones' sizes and health in the metrics.
    pub fn measure(&self) {
        let families = [Metric::ZoneSize, Metric::ZoneUnhealthy, Metric::ZoneHealth];
        families.into_iter().for_each(metrics::clear);
        for (zone, count) in &self.counts {
            let (ready, not_ready) = (count.ready as f64, count.not_ready as f64);
            let all = ready + not_ready;
            for (family, value) in families.into_iter().zip([all, not_ready, 100.0 * ready / all]) {
                metrics::set(family, &[zone], value);
            }
        }
    }

    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Requests permission to taint one more node of the zone.
    pub fn ask(&mut self, zone: &str, monotonic: Duration, settings: &NodeSettings) -> Permit {
        let count = self.counts.get(zone).copied().unwrap_or_default();
        let Some(pace) = count.pace(settings).filter(|_| !self.halted) else { return Permit::Held };
        let next = self.last_taint.get(zone).map(|last| *last + pace);
        match next.and_then(|next| next.checked_sub(monotonic)).filter(|wait| !wait.is_zero()) {
            Some(wait) => Permit::After(wait),
            None => {
                self.last_taint.insert(zone.to_owned(), monotonic);
                Permit::Granted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_lifecycle::testing::node;

    fn zones(ready: usize, not_ready: usize) -> Zones {
        let mut zones = Zones::default();
        for i in 0..ready + not_ready {
            let name = format!("n{i}");
            zones.observe(&name, &node(&name, Some(if i < ready { "True" } else { "False" }), 1));
        }
        zones.refresh(&NodeSettings::default());
        zones
    }

    #[test]
    fn the_pace_depends_on_how_many_nodes_fail() {
        let secs = Duration::from_secs;
        let table = [
            (9, 1, Permit::After(secs(7))),
            (1, 2, Permit::After(secs(7))),
            (1, 3, Permit::Held),
            (20, 40, Permit::After(secs(97))),
            (0, 3, Permit::Held),
        ];
        for (ready, not_ready, expected) in table {
            let mut zones = zones(ready, not_ready);
            let first = zones.ask("", secs(100), &NodeSettings::default());
            assert_eq!(first == Permit::Granted, expected != Permit::Held, "{ready} {not_ready}");
            assert_eq!(zones.ask("", secs(103), &NodeSettings::default()), expected, "{ready} {not_ready}");
            if let Permit::After(wait) = expected {
                assert_eq!(zones.ask("", secs(103) + wait, &NodeSettings::default()), Permit::Granted);
            }
        }
    }

    #[test]
    fn rates_are_set() {
        let secs = Duration::from_secs;
        let fast = NodeSettings { eviction_rate: 2.0, ..NodeSettings::default() };
        let mut some = zones(9, 1);
        assert_eq!(some.ask("", secs(100), &fast), Permit::Granted);
        assert_eq!(some.ask("", secs(100), &fast), Permit::After(Duration::from_millis(500)));
        let never = NodeSettings { eviction_rate: 0.0, ..NodeSettings::default() };
        assert_eq!(some.ask("", secs(200), &never), Permit::Held);
    }

    #[test]
    fn all_zones_down_halts_and_one_node_back_resumes() {
        let mut all = zones(1, 0);
        assert_eq!(all.refresh(&NodeSettings::default()), Change::Nothing);
        all.observe("n0", &node("n0", Some("Unknown"), 1));
        assert_eq!(all.refresh(&NodeSettings::default()), Change::Halted);
        assert!(all.is_halted());
        all.observe("n1", &node("n1", Some("True"), 1));
        assert_eq!(all.refresh(&NodeSettings::default()), Change::Resumed);
        all.forget("n1");
        all.forget("n0");
        assert_eq!(all.refresh(&NodeSettings::default()), Change::Pace);
        assert!(!all.is_halted(), "a cluster without nodes is not halted");
    }

    #[test]
    fn excluded_nodes_do_not_count() {
        let mut zones = zones(0, 1);
        let mut excluded = node("x", Some("True"), 1);
        excluded.metadata.labels = Some([(EXCLUDED.to_owned(), String::new())].into());
        zones.observe("x", &excluded);
        assert_eq!(zones.refresh(&NodeSettings::default()), Change::Nothing);
        assert!(zones.is_halted());
    }
}
