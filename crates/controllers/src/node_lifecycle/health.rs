//! How long a node has gone without a heartbeat, by the controller's own clock: times that the node writes are only
//! compared with each other.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::settings::NodeSettings;
use crate::support::nodes::condition;

/// The conditions that only the kubelet reports.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The last heartbeat of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether the node has ever reported; `None` before the first observation.
    reported: Option<bool>,
    heartbeat: Option<Timestamp>,
    renewed: Option<Timestamp>,
    /// The monotonic time of the last heartbeat.
    seen: Duration,
    /// How long the node had been silent at `seen` already.
    before: Duration,
}

impl Health {
    /// The state of a node that has not been observed yet.
    pub fn new(monotonic: Duration) -> Self {
        Self { reported: None, heartbeat: None, renewed: None, seen: monotonic, before: Duration::ZERO }
    }

    /// Observes the node's status.
    pub fn observe(&mut self, node: &Node, now: Timestamp, monotonic: Duration) {
        let ready = condition(node, "Ready");
        let heartbeat = ready.and_then(|c| c.last_heartbeat_time.as_ref()).map(|t| t.0);
        if self.reported != Some(ready.is_some()) || self.heartbeat != heartbeat {
            let first = self.reported.is_none();
            self.reported = Some(ready.is_some());
            self.heartbeat = heartbeat;
            self.sign(monotonic);
            if let (true, None, Some(created)) = (first, ready, &node.metadata.creation_timestamp) {
                self.before = now.duration_since(created.0).try_into().unwrap_or_default();
            }
        }
    }

    /// Observes the node's lease; returns whether it was renewed since the last observation.
    pub fn observe_lease(&mut self, lease: &Lease, monotonic: Duration) -> bool {
        let renewed = renew_time(lease);
        if renewed.is_none() || renewed <= self.renewed {
            return false;
        }
        self.renewed = renewed;
        self.sign(monotonic);
        true
    }

    /// Counts as a heartbeat: restarts the grace period.
    pub fn sign(&mut self, monotonic: Duration) {
        self.seen = monotonic;
        self.before = Duration::ZERO;
    }

    /// Returns how much of the grace period is left; `None` if it has expired.
    pub fn time_left(&self, monotonic: Duration, settings: &NodeSettings) -> Option<Duration> {
        let reported = self.reported == Some(true);
        let grace = if reported { settings.monitor_grace } else { settings.startup_grace };
        let silent = self.before + monotonic.saturating_sub(self.seen);
        grace.checked_sub(silent).filter(|left| !left.is_zero())
    }
}

pub fn renew_time(lease: &Lease) -> Option<Timestamp> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|t| t.0)
}

/// Returns the conditions to write for a silent node, all Unknown; none if its readiness is Unknown already.
pub fn unknown_conditions(node: &Node, now: Timestamp) -> Vec<NodeCondition> {
    if condition(node, "Ready").is_some_and(|c| c.status == "Unknown") {
        return Vec::new();
    }
    // Conditions the node lists keep its order, which the patch preserves.
    let mut types = KUBELET_CONDITIONS;
    let listed = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    types.sort_by_key(|type_| listed.iter().position(|c| c.type_ == *type_).unwrap_or(listed.len()));
    let conditions = types.iter().filter_map(|type_| match condition(node, type_) {
        Some(known) if known.status == "Unknown" => None,
        Some(known) => Some(NodeCondition {
            status: "Unknown".to_owned(),
            reason: Some("NodeStatusUnknown".to_owned()),
            message: Some("Kubelet stopped posting node status.".to_owned()),
            last_transition_time: Some(Time(now)),
            ..known.clone()
        }),
        None => Some(NodeCondition {
            type_: (*type_).to_owned(),
            status: "Unknown".to_owned(),
            reason: Some("NodeStatusNeverUpdated".to_owned()),
            message: Some("Kubelet never posted node status.".to_owned()),
            last_heartbeat_time: node.metadata.creation_timestamp.clone(),
            last_transition_time: Some(Time(now)),
        }),
    });
    conditions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_lifecycle::testing::{at, lease, node};

    fn left(health: &Health, monotonic: u64) -> Option<Duration> {
        health.time_left(secs(monotonic), &NodeSettings::default())
    }

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn signs_of_life_restart_the_count() {
        let mut health = Health::new(secs(100));
        // The node's own times are years off: only their changes count.
        health.observe(&node("n", Some("True"), 5), at(0), secs(100));
        assert_eq!(left(&health, 149), Some(secs(1)));
        assert_eq!(left(&health, 150), None);
        health.observe(&node("n", Some("True"), 5), at(0), secs(140));
        assert_eq!(left(&health, 150), None, "the same heartbeat does not count again");
        health.observe(&node("n", Some("True"), 6), at(0), secs(140));
        assert_eq!(left(&health, 150), Some(secs(40)));
        assert!(health.observe_lease(&lease("n", 9), secs(160)));
        assert!(!health.observe_lease(&lease("n", 9), secs(170)));
        assert!(!health.observe_lease(&lease("n", 8), secs(170)));
        assert_eq!(left(&health, 170), Some(secs(40)));
    }

    #[test]
    fn a_node_that_never_reported_counts_from_its_creation() {
        let mut health = Health::new(secs(10));
        let mut new = node("n", None, 0);
        new.metadata.creation_timestamp = Some(Time(at(1000)));
        health.observe(&new, at(1050), secs(10));
        assert_eq!(left(&health, 10), Some(secs(10)));
        health.observe(&node("n", Some("False"), 1), at(1055), secs(15));
        assert_eq!(left(&health, 15), Some(secs(50)));
    }

    #[test]
    fn silent_nodes_are_unknown() {
        let conditions = unknown_conditions(&node("n", Some("True"), 5), at(7));
        let reasons: Vec<_> =
            conditions.iter().map(|c| (c.type_.as_str(), c.reason.as_deref().unwrap())).collect();
        assert_eq!(
            reasons,
            [
                ("Ready", "NodeStatusUnknown"),
                ("MemoryPressure", "NodeStatusNeverUpdated"),
                ("DiskPressure", "NodeStatusNeverUpdated"),
                ("PIDPressure", "NodeStatusNeverUpdated"),
            ]
        );
        assert_eq!(conditions[0].last_heartbeat_time, Some(Time(at(5))), "the kubelet's own time is kept");
        assert_eq!(conditions[0].last_transition_time, Some(Time(at(7))));
        assert!(unknown_conditions(&node("n", Some("Unknown"), 5), at(7)).is_empty());
        let mut reporting = node("n", Some("True"), 5);
        let listed = reporting.status.as_mut().unwrap().conditions.as_mut().unwrap();
        let memory =
            NodeCondition { type_: "MemoryPressure".into(), status: "False".into(), ..listed[0].clone() };
        listed.insert(0, memory);
        let types: Vec<_> = unknown_conditions(&reporting, at(7)).into_iter().map(|c| c.type_).collect();
        assert_eq!(
            types,
            ["MemoryPressure", "Ready", "DiskPressure", "PIDPressure"],
            "in the node's own order"
        );
    }
}
