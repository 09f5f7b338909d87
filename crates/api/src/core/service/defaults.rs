//! Defaults of Services, and the fields that an update carries over or drops.

use serde_json::{Value, json};

use crate::defaults::{Fields, blank, child, existing, items, text, unset};
use crate::prepare::{clear, object, same};

/// The default timeout of ClientIP affinity, in seconds.
const STICKY_SECONDS: i64 = 10_800;

pub fn service(service: &mut Value) {
    let fields = object(service);
    let spec = child(fields, "spec");
    blank(spec, "type", "ClusterIP");
    blank(spec, "sessionAffinity", "None");
    match text(spec, "sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => {
            let config = child(spec, "sessionAffinityConfig");
            unset(child(config, "clientIP"), "timeoutSeconds", STICKY_SECONDS);
        }
        _ => {}
    }
    for port in items(spec, "ports") {
        blank(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or(Value::Null);
        blank(port, "targetPort", number);
    }
    if is_external(spec) {
        blank(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(text(spec, "type"), "ClusterIP" | "NodePort" | "LoadBalancer") {
        unset(spec, "internalTrafficPolicy", "Cluster");
    }
    if text(spec, "type") == "LoadBalancer" {
        unset(spec, "allocateLoadBalancerNodePorts", true);
        let status = existing(fields, "status").and_then(|s| existing(s, "loadBalancer"));
        for ingress in status.into_iter().flat_map(|balancer| items(balancer, "ingress")) {
            if !text(ingress, "ip").is_empty() {
                unset(ingress, "ipMode", "VIP");
            }
        }
    }
}

/// Returns whether the Service is reachable from outside: by node port, load balancer, or external addresses.
fn is_external(spec: &Fields) -> bool {
    let external = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|ips| !ips.is_empty());
    match text(spec, "type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => external,
        _ => false,
    }
}

fn needs_cluster_ip(spec: &Fields) -> bool {
    text(spec, "type") != "ExternalName"
}

fn needs_node_port(spec: &Fields) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

fn needs_health_check_port(spec: &Fields) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

fn is_blank(fields: &Fields, name: &str) -> bool {
    match fields.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Array(a)) => a.is_empty(),
        Some(v) => v == 0,
    }
}

fn unchanged(new: &Fields, old: &Fields, name: &str) -> bool {
    same(new.get(name), old.get(name))
}

/// Keeps allocated values that an update omits, and drops those that the new type does not use.
pub fn carry_over(new: &mut Value, old: &Value) {
    let no_spec = Fields::new();
    let old_spec = old.get("spec").and_then(Value::as_object).unwrap_or(&no_spec);
    let spec = child(object(new), "spec");
    match (needs_cluster_ip(old_spec), needs_cluster_ip(spec)) {
        (true, true) => keep_addresses(spec, old_spec),
        (true, false) => drop_addresses(spec, old_spec),
        _ => {}
    }
    match (needs_node_port(old_spec), needs_node_port(spec)) {
        (true, true) => keep_node_ports(spec, old_spec),
        (true, false) => drop_node_ports(spec, old_spec),
        _ => {}
    }
    let health = "healthCheckNodePort";
    match (needs_health_check_port(old_spec), needs_health_check_port(spec)) {
        (true, true) => take(spec, old_spec, health),
        (true, false) if unchanged(spec, old_spec, health) => {
            spec.remove(health);
        }
        _ => {}
    }
    if text(old_spec, "type") == "LoadBalancer" && text(spec, "type") != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if unchanged(spec, old_spec, field) {
                spec.remove(field);
            }
        }
    }
    let policy = "externalTrafficPolicy";
    if is_external(old_spec) && !is_external(spec) && unchanged(spec, old_spec, policy) {
        spec.remove(policy);
    }
    let balanced = text(spec, "type") == "LoadBalancer";
    if let Some(status) = new.get_mut("status").filter(|_| !balanced) {
        clear(status, "loadBalancer");
        object(status).insert("loadBalancer".to_owned(), json!({}));
    }
}

fn take(spec: &mut Fields, old: &Fields, name: &str) {
    if let Some(before) = old.get(name).filter(|_| is_blank(spec, name)) {
        spec.insert(name.to_owned(), before.clone());
    }
}

fn keep_addresses(spec: &mut Fields, old: &Fields) {
    take(spec, old, "clusterIP");
    if unchanged(spec, old, "clusterIP") {
        take(spec, old, "clusterIPs");
    } else if unchanged(spec, old, "clusterIPs") {
        let single = json!([text(spec, "clusterIP")]);
        spec.insert("clusterIPs".to_owned(), single);
    }
    if spec.get("ipFamilyPolicy").is_none_or(Value::is_null) {
        take(spec, old, "ipFamilyPolicy");
    }
    if text(spec, "ipFamilyPolicy") == text(old, "ipFamilyPolicy") {
        take(spec, old, "ipFamilies");
    }
}

fn drop_addresses(spec: &mut Fields, old: &Fields) {
    if unchanged(spec, old, "clusterIPs") && unchanged(spec, old, "clusterIP") {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if unchanged(spec, old, field) {
            spec.remove(field);
        }
    }
}

fn node_port(port: &Value) -> i64 {
    port.get("nodePort").and_then(Value::as_i64).unwrap_or(0)
}

fn node_ports(spec: &Fields) -> Vec<i64> {
    let ports = spec.get("ports").and_then(Value::as_array);
    ports.into_iter().flatten().map(node_port).filter(|port| *port != 0).collect()
}

/// Gives a port without a node port the old one of the port with its name, unless another port has that number.
fn keep_node_ports(spec: &mut Fields, old: &Fields) {
    let taken = node_ports(spec);
    let before = old.get("ports").and_then(Value::as_array).cloned().unwrap_or_default();
    for port in items(spec, "ports") {
        if !is_blank(port, "nodePort") {
            continue;
        }
        let name = text(port, "name");
        let had = before.iter().rev().find(|b| b.get("name").and_then(Value::as_str).unwrap_or("") == name);
        match had.map_or(0, node_port) {
            0 => {}
            number if taken.contains(&number) => {}
            number => {
                port.insert("nodePort".to_owned(), json!(number));
            }
        }
    }
}

fn drop_node_ports(spec: &mut Fields, old: &Fields) {
    let before = node_ports(old);
    if node_ports(spec).iter().all(|port| before.contains(port)) {
        for port in items(spec, "ports") {
            port.remove("nodePort");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults() {
        let mut value = json!({"spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "http"}]}});
        service(&mut value);
        assert_eq!(
            value["spec"],
            json!({
                "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
                "ports": [
                    {"port": 80, "protocol": "TCP", "targetPort": 80},
                    {"port": 81, "protocol": "TCP", "targetPort": "http"},
                ],
            })
        );
        let mut value = json!({"spec": {"type": "NodePort", "sessionAffinity": "ClientIP"}});
        service(&mut value);
        assert_eq!(value["spec"]["externalTrafficPolicy"], "Cluster");
        assert_eq!(value["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
        let mut value = json!({"spec": {"type": "ExternalName", "externalName": "a.b"}});
        service(&mut value);
        assert_eq!(
            value["spec"],
            json!({"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"})
        );
    }

    #[test]
    fn updates_keep_what_was_allocated() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "nodePort": 30001}]}, "status": {"loadBalancer": {}}});
        let mut same_type = json!({"spec": {"type": "NodePort", "ports": [{"port": 81}],
            "externalTrafficPolicy": "Cluster"}, "status": {"loadBalancer": {}}});
        carry_over(&mut same_type, &old);
        let mut expected = old.clone();
        expected["spec"]["ports"] = json!([{"port": 81, "nodePort": 30001}]);
        assert_eq!(same_type, expected);
        let mut changed = old.clone();
        changed["spec"]["type"] = json!("ClusterIP");
        carry_over(&mut changed, &old);
        assert_eq!(
            changed["spec"],
            json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80}]})
        );
        let mut external = old.clone();
        external["spec"]["type"] = json!("ExternalName");
        external["spec"]["externalName"] = json!("a.b");
        carry_over(&mut external, &old);
        assert_eq!(
            external["spec"],
            json!({"type": "ExternalName", "externalName": "a.b", "ports": [{"port": 80}]})
        );
    }
}
