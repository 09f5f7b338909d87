//! The Node object and status of a simulated node.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};

use super::{LABEL, Options, addresses};
use crate::node_status::machine::Machine;
use crate::node_status::status::{self, Facts};
use crate::node_status::{KUBELET_PORT, KUBELET_VERSION, Thresholds, registration};

/// Page sizes in KiB, and reserved bytes: those of an x86-64 machine without reserved huge pages.
const HUGE_PAGES: [(u64, u64); 2] = [(2 << 10, 0), (1 << 20, 0)];

fn facts(options: &Options, index: u32) -> Facts {
    let machine = Machine {
        cpus: options.cpus,
        memory_bytes: options.memory_bytes,
        machine_id: format!("{index:032x}"),
        system_uuid: format!("{index:032x}"),
        boot_id: format!("{index:032x}"),
        huge_pages: HUGE_PAGES.into(),
        kernel_version: "simulated".to_owned(),
        os_image: "Simulated node".to_owned(),
        ..Machine::default()
    };
    Facts {
        addresses: vec![IpAddr::V4(addresses::of_node(index))],
        hostname: options.node_name(index),
        kubelet_port: KUBELET_PORT,
        max_pods: options.max_pods,
        machine,
        node_fs_bytes: options.ephemeral_storage_bytes,
        thresholds: Thresholds::default(),
        runtime_version: concat!("knarr-simulated://", env!("CARGO_PKG_VERSION")).to_owned(),
        kubelet_version: KUBELET_VERSION.to_owned(),
        ..Facts::default()
    }
}

/// Returns the node as it registers, and the reasons of the events to emit.
pub fn node(options: &Options, index: u32, now: Timestamp) -> (Node, Vec<&'static str>) {
    let name = options.node_name(index);
    let mut labels = options.labels.clone();
    labels.insert(LABEL.to_owned(), "true".to_owned());
    let (status, events) = next_status(options, index, None, now);
    (registration::node(&name, &name, &labels, &options.taints, status), events)
}

/// Returns the status to write next, without any problems, and the reasons of the events to emit.
pub fn next_status(
    options: &Options,
    index: u32,
    old: Option<&NodeStatus>,
    now: Timestamp,
) -> (NodeStatus, Vec<&'static str>) {
    let old = old.cloned().unwrap_or_default();
    let (next, mut events) = status::next(&old, &facts(options, index), now);
    // Kubelets register before they are ready, and emit NodeReady later; simulated nodes are ready at once.
    if !old.conditions.iter().flatten().any(|condition| condition.type_ == "Ready") {
        events.push("NodeReady");
    }
    (next, events)
}
