//! Claims that a node may not make about itself: addresses of another ready node, the annotation by which an
//! administrator approves addresses, and pod CIDRs.
//!
//! Upstream allows nodes all of these, because its certificates and routes are managed by other programs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knarr_api::certificates::signers::SERVING_ADDRESSES;
use serde_json::Value;

use knarr_registry::attributes::text;

/// Returns why the annotations of a new or changed Node are refused.
pub fn annotation_problem(new: &Value, old: Option<&Value>) -> Option<String> {
    let of = |node: &Value| node["metadata"]["annotations"][SERVING_ADDRESSES].clone();
    let before = old.map(of).unwrap_or_default();
    (of(new) != before).then(|| format!("is not allowed to modify the annotation {SERVING_ADDRESSES}"))
}

/// Returns why the pod CIDRs of a new or changed Node are refused: the IPAM controller assigns them, and other nodes
/// route traffic by them.
pub fn pod_cidr_problem(new: &Value, old: Option<&Value>) -> Option<String> {
    let of = |node: &Value| {
        let spec = &node["spec"];
        let list = spec["podCIDRs"].as_array().cloned().unwrap_or_default();
        (text(spec, "/podCIDR").to_owned(), list)
    };
    let before = old.map(of).unwrap_or_default();
    (of(new) != before).then(|| "is not allowed to set its pod CIDRs".to_owned())
}

/// Returns the addresses that this write adds. Addresses that the node already had are not checked again: otherwise a
/// second node that claims one of them later could take this node down.
pub fn added(new: &Value, old: Option<&Value>) -> BTreeSet<IpAddr> {
    let before = old.map(addresses).unwrap_or_default();
    addresses(new).difference(&before).copied().collect()
}

/// Returns why these addresses are refused: another node has one of them. A node that is not Ready does not count, so
/// that a machine can register again under a new name.
pub fn address_problem(node: &str, added: &BTreeSet<IpAddr>, nodes: &[Value]) -> Option<String> {
    let others = nodes.iter().filter(|n| text(n, "/metadata/name") != node && is_ready(n));
    others.into_iter().find_map(|other| {
        let address = addresses(other).intersection(added).next().copied()?;
        Some(format!(
            "is not allowed to claim the address {address} of node {:?}",
            text(other, "/metadata/name")
        ))
    })
}

fn addresses(node: &Value) -> BTreeSet<IpAddr> {
    let list = node["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    let of_machine = list.iter().filter(|a| matches!(text(a, "/type"), "InternalIP" | "ExternalIP"));
    of_machine
        .filter_map(|a| text(a, "/address").parse::<IpAddr>().ok())
        .map(|ip| ip.to_canonical())
        .collect()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, ready: &str, ips: &[&str]) -> Value {
        let addresses: Vec<Value> =
            ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        json!({"metadata": {"name": name}, "status": {"addresses": addresses,
            "conditions": [{"type": "Ready", "status": ready}]}})
    }

    #[test]
    fn addresses_of_nodes_that_are_well_are_theirs() {
        let nodes = [node("a", "True", &["192.0.2.1"]), node("gone", "Unknown", &["192.0.2.2"])];
        for (old, new, refused) in [
            (None, &["192.0.2.1"][..], true),
            (None, &["::ffff:192.0.2.1"], true),
            (None, &["192.0.2.2"], false),
            (None, &["192.0.2.3"], false),
            (Some(&["192.0.2.1"][..]), &["192.0.2.1"], false),
            (Some(&["192.0.2.3"]), &["192.0.2.3", "192.0.2.1"], true),
        ] {
            let old = old.map(|ips| node("b", "True", ips));
            let added = added(&node("b", "True", new), old.as_ref());
            assert_eq!(address_problem("b", &added, &nodes).is_some(), refused, "{old:?} {new:?}");
        }
        let same = added(&node("a", "True", &["192.0.2.1"]), None);
        assert_eq!(address_problem("a", &same, &nodes), None);
    }

    #[test]
    fn pod_addresses_are_assigned() {
        let node = |cidrs: &[&str]| match cidrs {
            [] => json!({"spec": {}}),
            [first, ..] => json!({"spec": {"podCIDR": first, "podCIDRs": cidrs}}),
        };
        for (old, new, refused) in [
            (None, &[][..], false),
            (None, &["0.0.0.0/0"], true),
            (Some(&[][..]), &["10.42.1.0/24"], true),
            (Some(&["10.42.1.0/24"][..]), &["10.42.1.0/24"], false),
            (Some(&["10.42.1.0/24"]), &["10.42.1.0/24", "fd00::/64"], true),
        ] {
            let problem = pod_cidr_problem(&node(new), old.map(node).as_ref());
            assert_eq!(problem.is_some(), refused, "{old:?} {new:?}");
        }
    }

    #[test]
    fn an_administrators_word_is_not_a_nodes() {
        let marked = json!({"metadata": {"annotations": {SERVING_ADDRESSES: "192.0.2.1"}}});
        let plain = json!({"metadata": {"annotations": {"a": "b"}}});
        assert!(annotation_problem(&marked, None).is_some());
        assert!(annotation_problem(&marked, Some(&plain)).is_some());
        assert!(annotation_problem(&plain, Some(&marked)).is_some());
        assert_eq!(annotation_problem(&marked, Some(&marked)), None);
        assert_eq!(annotation_problem(&plain, None), None);
    }
}
