//! Admission of a pod that is bound to this node: resources, host ports, node selection, taints.
//!
//! Source: the behaviour of upstream's kubelet admission and of the scheduler plugins it shares.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::core::pod::node_features;
use knarr_api::core::pod::placement::{node_matches, taints, tolerated, tolerations};
use knarr_api::kind::Kind;

use crate::container_config::host_ports;
use crate::pod;
use crate::pod_network::PortMapping;
use crate::resources::{Amounts, amounts, max, pod_requests};

/// The reason and message in the status of a rejected pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

/// The resources and host ports that the pods on this node use.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    pods: BTreeMap<String, (Amounts, Vec<PortMapping>)>,
}

impl Taken {
    pub fn add(&mut self, pod: &Pod) {
        self.pods.insert(pod.uid().to_owned(), (pod_requests(pod), host_ports(pod)));
    }

    /// Counts a pod that is about to be resized, by the larger of its current and its new amount of each resource.
    pub fn grow(&mut self, pod: &Pod) {
        let had = self.pods.get(pod.uid()).map(|(amounts, _)| amounts.clone()).unwrap_or_default();
        self.add(pod);
        if let Some((amounts, _)) = self.pods.get_mut(pod.uid()) {
            max(amounts, &had);
        }
    }

    pub fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Returns the sum over all pods.
    pub fn amounts(&self) -> Amounts {
        let mut sum = Amounts::new();
        for (name, n) in self.pods.values().flat_map(|(amounts, _)| amounts) {
            *sum.entry(name.clone()).or_insert(0) += n;
        }
        sum
    }

    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

fn predicate(name: &str, what: &str) -> Option<Rejection> {
    Some(Rejection { reason: name.to_owned(), message: format!("Predicate {name} failed: {what}") })
}

/// Returns why the pod cannot run on the node; `None` if it can.
pub fn rejection(pod: &Pod, node: &Node, taken: &Taken) -> Option<Rejection> {
    os_mismatch(pod, node)
        .or_else(|| groups_policy(pod, node))
        .or_else(|| lacking_feature(pod, node))
        .or_else(|| lacking_resource(pod, node, taken))
        .or_else(|| {
            let chosen = node_matches(pod, node);
            if chosen {
                None
            } else {
                predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
            }
        })
        .or_else(|| {
            let wanted = host_ports(pod);
            let used = taken.pods.values().flat_map(|(_, ports)| ports);
            let clash = used.into_iter().any(|port| wanted.iter().any(|w| conflict(w, port)));
            if clash {
                predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
            } else {
                None
            }
        })
        .or_else(|| {
            let untolerated =
                taints(node).iter().any(|t| t.effect == "NoExecute" && !tolerated(tolerations(pod), t));
            if untolerated {
                predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
            } else {
                None
            }
        })
}

/// Returns `(infeasible, rejection)` if a resize does not fit. It is infeasible if the node is too small for the pod
/// alone.
///
/// Source: upstream's kubelet runs a resize through the admission checks for new pods, without counting the pod's
/// current resources; any rejection defers the resize. A resize beyond the whole node's capacity is infeasible,
/// with this message, as in kubelets up to 1.35, which users know. Upstream's 1.37 leaves this to the admission
/// plugin PodResizeValidator, which may be off, or may have seen the node when it was larger; its kubelet then
/// reports Deferred.
pub fn resize_rejection(pod: &Pod, node: &Node, taken: &Taken) -> Option<(bool, Rejection)> {
    let capacity = amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
    let requests = pod_requests(pod);
    for name in ["memory", "cpu"] {
        let (Some(requested), Some(capacity)) = (requests.get(name), capacity.get(name)) else { continue };
        if requested > capacity {
            let message = format!(
                "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
            );
            return Some((true, Rejection { reason: "Infeasible".to_owned(), message }));
        }
    }
    let mut others = taken.clone();
    others.remove(pod.uid());
    rejection(pod, node, &others).map(|rejection| (false, rejection))
}

fn os_mismatch(pod: &Pod, node: &Node) -> Option<Rejection> {
    let spec = pod::spec(pod);
    const LABEL: &str = "kubernetes.io/os";
    let wanted = spec.node_selector.as_ref().and_then(|s| s.get(LABEL));
    let has = node.metadata.labels.as_ref().and_then(|l| l.get(LABEL));
    if wanted.is_some() && has.is_some() && wanted != has {
        return Some(Rejection {
            reason: "PodOSSelectorNodeLabelDoesNotMatch".to_owned(),
            message: format!("Failed to admit pod as the `{LABEL}` label doesn't match node label"),
        });
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Some(Rejection {
            reason: "PodOSNotSupported".to_owned(),
            message: "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
        });
    }
    None
}

fn lacking_feature(pod: &Pod, node: &Node) -> Option<Rejection> {
    let lacking = node_features::lacking(&node_features::for_pod(pod::spec(pod)), node);
    (!lacking.is_empty()).then(|| Rejection {
        reason: "PodFeatureUnsupported".to_owned(),
        message: format!("Pod requires node features that are not available: {}", lacking.join(", ")),
    })
}

/// A runtime without supplementalGroupsPolicy merges the image's groups in.
fn groups_policy(pod: &Pod, node: &Node) -> Option<Rejection> {
    let policy = pod::spec(pod).security_context.as_ref()?.supplemental_groups_policy.as_deref()?;
    let features = node.status.as_ref().and_then(|s| s.features.as_ref());
    let supported = features.is_some_and(|f| f.supplemental_groups_policy == Some(true));
    (policy == "Strict" && !supported).then(|| Rejection {
        reason: "SupplementalGroupsPolicyNotSupported".to_owned(),
        message: "SupplementalGroupsPolicy=Strict is not supported in this node".to_owned(),
    })
}

fn lacking_resource(pod: &Pod, node: &Node, taken: &Taken) -> Option<Rejection> {
    let capacity = amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
    let used = taken.amounts();
    let lacks = |name: &str, requested: i64, used: i64, capacity: i64| Rejection {
        reason: format!("OutOf{name}"),
        message: format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
    };
    let used_pods = i64::try_from(taken.len()).unwrap_or(i64::MAX);
    if let Some(pods) = capacity.get("pods").copied().filter(|pods| used_pods + 1 > *pods) {
        return Some(lacks("pods", 1, used_pods, pods));
    }
    for (name, requested) in pod_requests(pod) {
        // Resources that the node does not list are counted by other components.
        let Some(capacity) = capacity.get(&name).copied() else { continue };
        let used = used.get(&name).copied().unwrap_or(0);
        if requested > 0 && requested > capacity.saturating_sub(used) {
            return Some(lacks(&name, requested, used, capacity));
        }
    }
    None
}

fn conflict(a: &PortMapping, b: &PortMapping) -> bool {
    let same_address = match (a.host_ip, b.host_ip) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    same_address && a.host_port == b.host_port && a.protocol == b.protocol
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{NodeFeatures, Taint};
    use serde_json::{Value, json};

    fn pod(uid: &str, spec: Value) -> Pod {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "web"}]);
        }
        Pod::decode(json!({"metadata": {"name": uid, "uid": uid}, "spec": spec}).to_string().as_bytes())
            .unwrap()
    }

    fn node() -> Node {
        let node = json!({
            "metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux", "disk": "ssd", "cores": "8"}},
            "spec": {"taints": [{"key": "gone", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3"}},
        });
        Node::decode(node.to_string().as_bytes()).unwrap()
    }

    fn requests(cpu: &str) -> Value {
        json!([{"name": "web", "resources": {"requests": {"cpu": cpu}}}])
    }

    #[test]
    fn reasons_and_messages() {
        let mut taken = Taken::default();
        taken.add(&pod(
            "a",
            json!({"containers": [{
                "name": "web", "resources": {"requests": {"cpu": "1500m"}},
                "ports": [{"containerPort": 80, "hostPort": 80}],
            }]}),
        ));
        let affinity = |operator: &str, key: &str, values: &[&str]| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}],
            }}}})
        };
        let port = |n: i32, ip: &str| json!({"containers": [{"name": "w", "ports": [{"containerPort": 1, "hostPort": n, "hostIP": ip}]}]});
        let table = [
            (json!({"containers": requests("500m")}), ""),
            (
                json!({"containers": requests("501m")}),
                "OutOfcpu: Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000",
            ),
            (json!({"nodeSelector": {"disk": "ssd"}}), ""),
            (
                json!({"nodeSelector": {"disk": "hdd"}}),
                "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            ),
            (affinity("In", "disk", &["ssd"]), ""),
            (affinity("NotIn", "disk", &["ssd"]), "NodeAffinity: "),
            (affinity("Gt", "cores", &["4"]), ""),
            (affinity("Lt", "cores", &["4"]), "NodeAffinity: "),
            (port(80, "10.0.0.1"), "NodePorts: "),
            (port(81, ""), ""),
            (json!({"os": {"name": "windows"}}), "PodOSNotSupported: "),
        ];
        for (spec, expected) in table {
            let got = rejection(&pod("b", spec.clone()), &node(), &taken);
            let text = got.map(|r| format!("{}: {}", r.reason, r.message)).unwrap_or_default();
            assert!(text.starts_with(expected) && text.is_empty() == expected.is_empty(), "{spec} {text}");
        }
        taken.add(&pod("c", json!({})));
        taken.add(&pod("d", json!({})));
        let text = rejection(&pod("e", json!({})), &node(), &taken).unwrap();
        assert_eq!(text.reason, "OutOfpods");
        taken.remove("d");
        assert_eq!(rejection(&pod("e", json!({})), &node(), &taken), None);
    }

    #[test]
    fn strict_groups_need_a_runtime_that_knows_them() {
        let strict = pod("a", json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}));
        let merge = pod("b", json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}}));
        let mut node = node();
        for (supported, refused) in [(None, true), (Some(false), true), (Some(true), false)] {
            node.status.as_mut().unwrap().features =
                supported.map(|yes| NodeFeatures { supplemental_groups_policy: Some(yes) });
            let reason = rejection(&strict, &node, &Taken::default()).map(|r| r.reason);
            assert_eq!(reason, refused.then(|| "SupplementalGroupsPolicyNotSupported".to_owned()));
            assert_eq!(rejection(&merge, &node, &Taken::default()), None);
        }
    }

    #[test]
    fn only_no_execute_taints_count() {
        let mut node = node();
        let taint = Taint { key: "dead".into(), effect: "NoExecute".into(), ..Taint::default() };
        assert_eq!(rejection(&pod("a", json!({})), &node, &Taken::default()), None);
        node.spec.as_mut().unwrap().taints.as_mut().unwrap().push(taint);
        assert_eq!(
            rejection(&pod("a", json!({})), &node, &Taken::default()).unwrap().reason,
            "TaintToleration"
        );
        for toleration in [json!({"operator": "Exists"}), json!({"key": "dead", "effect": "NoExecute"})] {
            let pod = pod("a", json!({"tolerations": [toleration]}));
            assert_eq!(rejection(&pod, &node, &Taken::default()), None);
        }
    }
}
