//! The nodes, pods and volumes of the workloads.
//!
//! Source: the templates of `test/integration/scheduler_perf` of Kubernetes 1.37.

use serde_json::{Value, json};

/// The kind of volume that a pod's claim is bound to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Volume {
    None,
    InTree,
    Csi,
}

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const LARGE_NODE: &str = "scheduler-perf-node";
const DRIVER: &str = "ebs.csi.aws.com";
const MOST_VOLUMES: i32 = 39;

fn node_of(name: &str, labels: Value, pods: &str) -> Value {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": {"pods": pods, "cpu": "4", "memory": "32Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    node["metadata"]["labels"][HOST] = json!(name);
    node
}

pub fn node(number: usize) -> Value {
    node_of(&format!("scheduler-perf-{number:05}"), json!({}), "110")
}

pub fn large_node(_: usize) -> Value {
    node_of(LARGE_NODE, json!({}), "90000")
}

pub fn node_in_a_zone(number: usize) -> Value {
    let mut node = node(number);
    node["metadata"]["labels"][ZONE] = json!("zone1");
    node
}

pub fn node_in_three_zones(number: usize) -> Value {
    let mut node = node(number);
    node["metadata"]["labels"][ZONE] = json!(format!("moon-{}", number % 3 + 1));
    node
}

pub fn tainted_node(number: usize) -> Value {
    let mut node = node_of(&format!("taint-node-{number:05}"), json!({}), "110");
    node["spec"] = json!({"taints": [{"key": "foo", "effect": "NoSchedule"}]});
    node
}

pub fn node_with_driver(number: usize) -> Value {
    let mut node = node(number);
    node["status"]["capacity"][format!("attachable-volumes-csi-{DRIVER}")] = json!(MOST_VOLUMES.to_string());
    node
}

pub fn node_with_migrated_driver(number: usize) -> Value {
    let mut node = node_with_driver(number);
    node["metadata"]["annotations"] = json!({"bench": "migrated"});
    node
}

/// Returns the CSINode with a node's drivers, for nodes that have one.
pub fn csi_node(node: &Value) -> Option<Value> {
    node["status"]["capacity"].get(format!("attachable-volumes-csi-{DRIVER}"))?;
    let name = &node["metadata"]["name"];
    let mut object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "allocatable": {"count": MOST_VOLUMES}}]},
    });
    if node["metadata"]["annotations"]["bench"] == "migrated" {
        object["metadata"]["annotations"] =
            json!({"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"});
    }
    Some(object)
}

/// Returns a pod with these requests; empty texts request nothing.
fn pod_of(labels: Value, cpu: &str, memory: &str) -> Value {
    let mut container = json!({"name": "pause", "image": "pause"});
    if !cpu.is_empty() {
        let amount = json!({"cpu": cpu, "memory": memory});
        container["ports"] = json!([{"containerPort": 80}]);
        container["resources"] = json!({"requests": amount, "limits": amount});
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": {"containers": [container]}})
}

pub fn pod(_: usize) -> Value {
    pod_of(json!({}), "100m", "500Mi")
}

pub fn light(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "", "");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod
}

pub fn of_the_large_node(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "", "");
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [LARGE_NODE]}]}]}}});
    pod
}

pub fn gated(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "", "");
    pod["spec"]["schedulingGates"] = json!([{"name": "test.k8s.io/hold"}]);
    pod
}

pub fn gated_with_affinity(number: usize) -> Value {
    let mut pod = gated(number);
    let labels = json!({"app": "scheduler-perf"});
    pod["metadata"]["labels"] = labels.clone();
    pod["spec"]["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": labels}, "topologyKey": HOST}]}});
    pod
}

pub fn with_finalizer(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "", "");
    pod["metadata"]["finalizers"] = json!(["test.k8s.io/finalizer"]);
    pod
}

pub fn with_secret(number: usize) -> Value {
    let mut pod = pod(number);
    pod["spec"]["volumes"] = json!([{"name": "secret", "secret": {"secretName": "secret"}}]);
    pod
}

pub fn green(_: usize) -> Value {
    pod_of(json!({"color": "green"}), "100m", "500Mi")
}

pub fn of_the_service(_: usize) -> Value {
    pod_of(json!({"app": "scheduler-perf"}), "", "")
}

pub fn low_priority(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "900m", "500Mi");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod
}

pub fn preempting(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "3970m", "500Mi");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod["spec"]["priority"] = json!(9_999_999);
    pod
}

pub fn too_large(_: usize) -> Value {
    let mut pod = pod_of(json!({}), "9", "500Mi");
    pod["spec"]["priority"] = json!(10);
    pod
}

pub fn node_affinity(number: usize) -> Value {
    let mut pod = pod(number);
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["zone1", "zone2"]}]}]}}});
    pod
}

/// Returns an affinity term for two named namespaces, or for the namespaces with a label.
fn term(color: &str, topology: &str, by_label: bool) -> Value {
    let mut term = json!({"labelSelector": {"matchLabels": {"color": color}}, "topologyKey": topology});
    if by_label {
        term["namespaceSelector"] = json!({"matchLabels": {"team": "devops"}});
    } else {
        term["namespaces"] = json!(["sched-1", "sched-0"]);
    }
    term
}

fn company(color: &str, kind: &str, term: Value, required: bool) -> Value {
    let mut pod = pod_of(json!({"color": color}), "100m", "500Mi");
    pod["spec"]["affinity"][kind] = if required {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
    } else {
        json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term, "weight": 1}]})
    };
    pod
}

pub fn anti_affinity(_: usize) -> Value {
    company("green", "podAntiAffinity", term("green", HOST, false), true)
}

pub fn affinity(_: usize) -> Value {
    company("blue", "podAffinity", term("blue", ZONE, false), true)
}

pub fn preferred_affinity(_: usize) -> Value {
    company("red", "podAffinity", term("red", HOST, false), false)
}

pub fn preferred_anti_affinity(_: usize) -> Value {
    company("yellow", "podAntiAffinity", term("yellow", HOST, false), false)
}

pub fn anti_affinity_of_namespaces(_: usize) -> Value {
    company("green", "podAntiAffinity", term("green", HOST, true), true)
}

pub fn preferred_anti_affinity_of_namespaces(_: usize) -> Value {
    company("green", "podAntiAffinity", term("green", HOST, true), false)
}

pub fn affinity_of_namespaces(_: usize) -> Value {
    company("blue", "podAffinity", term("blue", ZONE, true), true)
}

pub fn preferred_affinity_of_namespaces(_: usize) -> Value {
    company("red", "podAffinity", term("red", HOST, true), false)
}

fn spread_by(labels: Value, skew: i32, topology: &str, otherwise: &str) -> Value {
    let mut pod = pod_of(labels.clone(), "100m", "500Mi");
    pod["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": skew, "topologyKey": topology,
        "whenUnsatisfiable": otherwise, "labelSelector": {"matchLabels": labels}}]);
    pod
}

pub fn spread(_: usize) -> Value {
    spread_by(json!({"color": "blue"}), 5, ZONE, "DoNotSchedule")
}

pub fn preferably_spread(_: usize) -> Value {
    spread_by(json!({"color": "blue"}), 5, ZONE, "ScheduleAnyway")
}

pub fn spread_over_untainted(_: usize) -> Value {
    let mut pod = spread_by(json!({"foo": "bar"}), 1, HOST, "DoNotSchedule");
    let constraint = &mut pod["spec"]["topologySpreadConstraints"][0];
    constraint["nodeAffinityPolicy"] = json!("Honor");
    constraint["nodeTaintsPolicy"] = json!("Honor");
    pod
}

pub fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "service"}, "spec": {
        "selector": {"app": "scheduler-perf"}, "ports": [{"protocol": "TCP", "port": 80, "targetPort": 8000}]}})
}

/// Returns a volume and its claim, bound to each other.
pub fn bound_volume(volume: Volume, namespace: &str, name: &str) -> (Value, Value) {
    let mut spec = json!({
        "accessModes": ["ReadOnlyMany"], "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name},
    });
    if volume == Volume::InTree {
        spec["awsElasticBlockStore"] = json!({"volumeID": format!("vol-{name}")});
    } else {
        spec["csi"] = json!({"driver": DRIVER, "volumeHandle": format!("vol-{name}")});
    }
    let of = json!({"name": name});
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "true"}},
        "spec": {"accessModes": ["ReadOnlyMany"], "volumeName": name, "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    (json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": of, "spec": spec}), claim)
}

/// Returns the pod with the claim of this name.
pub fn with_claim(mut pod: Value, name: &str) -> Value {
    pod["spec"]["volumes"] = json!([{"name": "vol", "persistentVolumeClaim": {"claimName": name}}]);
    pod
}
