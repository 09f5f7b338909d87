//! Builders for the tests of this controller.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn with_condition(mut node: Node, type_: &str, status: &str) -> Node {
    let condition = NodeCondition { type_: type_.into(), status: status.into(), ..NodeCondition::default() };
    node.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    node
}

/// Makes a node whose Ready condition, if any, has this status and this heartbeat.
pub fn node(name: &str, ready: Option<&str>, heartbeat: i64) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.into());
    if let Some(status) = ready {
        node = with_condition(node, "Ready", status);
        let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions[0].last_heartbeat_time = Some(Time(at(heartbeat)));
    }
    node
}

pub fn lease(name: &str, renewed: i64) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.name = Some(name.into());
    lease.metadata.namespace = Some("kube-node-lease".into());
    lease.spec = Some(LeaseSpec { renew_time: Some(MicroTime(at(renewed))), ..LeaseSpec::default() });
    lease
}
