//! The usage of Services: their number, node ports, load balancers.

use serde_json::Value;

use super::amounts::{Amounts, count};

const NAMES: [&str; 4] = ["count/services", "services", "services.nodeports", "services.loadbalancers"];

pub fn tracks(name: &str) -> bool {
    NAMES.contains(&name)
}

pub fn usage(service: &Value) -> Amounts {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    // Node ports are counted before they are allocated: each port that will get one counts.
    let explicit = || ports.iter().filter(|p| p["nodePort"].as_i64().unwrap_or(0) != 0).count();
    let (node_ports, balancers) = match spec["type"].as_str() {
        Some("NodePort") => (ports.len(), 0),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => (explicit(), 1),
        Some("LoadBalancer") => (ports.len(), 1),
        _ => (0, 0),
    };
    let amounts = [1, 1, number(node_ports), balancers];
    NAMES.iter().zip(amounts).map(|(name, n)| ((*name).to_owned(), count(n))).collect()
}
