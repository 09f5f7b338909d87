//! What a simulated node tells of itself.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};

use super::{LABEL, Options, addresses};
use crate::node_status::machine::Machine;
use crate::node_status::status::{self, Facts};
use crate::node_status::{KUBELET_PORT, KUBELET_VERSION, Thresholds, registration};

fn facts(options: &Options, index: u32) -> Facts {
    let machine = Machine {
        cpus: options.cpus,
        memory_bytes: options.memory_bytes,
        machine_id: format!("{index:032x}"),
        system_uuid: format!("{index:032x}"),
        boot_id: format!("{index:032x}"),
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

/// The node as it registers.
pub fn node(options: &Options, index: u32, now: Timestamp) -> Node {
    let name = options.node_name(index);
    let mut labels = options.labels.clone();
    labels.insert(LABEL.to_owned(), "true".to_owned());
    registration::node(&name, &name, &labels, &options.taints, next_status(options, index, None, now))
}

/// The status to tell next: everything is well.
pub fn next_status(options: &Options, index: u32, old: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let old = old.cloned().unwrap_or_default();
    status::next(&old, &facts(options, index), now).0
}
