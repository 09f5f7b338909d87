//! Requests and limits: from the manifest to the cgroups.

use serde_json::json;

use crate::cluster::{Cluster, shared};
use crate::objects::{once, pod, sleeper};

/// Returns the cgroup files of a container, in every hierarchy.
fn cgroup_files(cluster: &Cluster, container_id: &str, names: &str) -> Vec<String> {
    let id = container_id.rsplit('/').next().expect("an id");
    let find = format!(
        "find /sys/fs/cgroup -path '*{}*' -path '*{id}*' \\( {names} \\) -exec cat {{}} +",
        cluster.sandbox.cgroup_root
    );
    cluster.sandbox.sh(&find).lines().map(str::to_owned).collect()
}

#[test]
fn b8_limits_are_in_the_cgroups() {
    let cluster = shared();
    let kubectl = cluster.namespace("b8-limits");
    let mut object = sleeper("limited");
    object["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "250m", "memory": "64Mi"}});
    kubectl.apply(&object);
    kubectl.ready("limited");
    let id = kubectl.path("pod limited", "{.status.containerStatuses[0].containerID}");
    let memory = cgroup_files(cluster, &id, "-name memory.limit_in_bytes -o -name memory.max");
    assert_eq!(memory, ["67108864"]);
    let quota = cgroup_files(cluster, &id, "-name cpu.cfs_quota_us -o -name cpu.max");
    assert!(quota == ["25000"] || quota == ["25000 100000"], "{quota:?}");
    let weight = cgroup_files(cluster, &id, "-name cpu.shares -o -name cpu.weight");
    assert!(weight == ["102"] || weight == ["4"] || weight == ["17"], "{weight:?}");
}

#[test]
fn b8_qos_classes() {
    let kubectl = shared().namespace("b8-qos");
    for (name, resources, class) in [
        ("best-effort", json!({}), "BestEffort"),
        ("burstable", json!({"requests": {"cpu": "10m"}}), "Burstable"),
        ("guaranteed", json!({"limits": {"cpu": "10m", "memory": "16Mi"}}), "Guaranteed"),
    ] {
        let mut object = sleeper(name);
        object["spec"]["containers"][0]["resources"] = resources;
        kubectl.apply(&object);
        assert_eq!(kubectl.path(&format!("pod {name}"), "{.status.qosClass}"), class);
    }
    assert_eq!(kubectl.path("pod guaranteed", "{.spec.containers[0].resources.requests.memory}"), "16Mi");
}

#[test]
fn b8_out_of_memory_is_reported() {
    let kubectl = shared().namespace("b8-oom");
    let mut object = once("greedy", "x=0123456789abcdef; while true; do x=$x$x; done");
    object["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "16Mi"}});
    kubectl.apply(&object);
    kubectl.phase("greedy", "Failed");
    let state = "{.status.containerStatuses[0].state.terminated";
    assert_eq!(kubectl.path("pod greedy", &format!("{state}.reason}}")), "OOMKilled");
    assert_eq!(kubectl.path("pod greedy", &format!("{state}.exitCode}}")), "137");
    assert!(kubectl.run("get pod greedy").contains("OOMKilled"));
}

#[test]
fn e7_pod_pid_limit() {
    let kubectl = shared().namespace("e7");
    kubectl
        .apply(&once("many", "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true"));
    kubectl.phase("many", "Succeeded");
    let mut object = pod("bomb", "bomb() { bomb | bomb & }; bomb; sleep 600");
    object["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "50m", "memory": "64Mi"}});
    object["spec"]["restartPolicy"] = json!("Never");
    kubectl.apply(&object);
    kubectl.eventually("get pod bomb -o jsonpath={.status.phase}", |phase| {
        phase == "Running" || phase == "Failed"
    });
    kubectl.apply(&sleeper("neighbour"));
    kubectl.ready("neighbour");
    kubectl.run("delete pod bomb --timeout=60s");
}

/// Resizes a pod through the subresource, as a whole pod and by container.
#[test]
fn pods_are_resized_in_place() {
    let cluster = shared();
    let kubectl = cluster.namespace("resize");
    let mut object = sleeper("whole");
    object["spec"]["resources"] =
        json!({"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}});
    kubectl.apply(&object);
    kubectl.ready("whole");
    let container = kubectl.path("pod whole", "{.spec.containers[0].name}");
    let id = kubectl.path("pod whole", "{.status.containerStatuses[0].containerID}");
    kubectl.until("pod whole", "{.status.resources.limits.cpu} {.status.allocatedResources.cpu}", "200m 50m");

    let resize = |patch: &serde_json::Value| {
        let patch = patch.to_string();
        ["patch", "pod", "whole", "--subresource=resize", "-p", &patch].map(str::to_owned)
    };
    let sizes = json!([{"name": container, "resources": {"limits": {"memory": "48Mi"}}}]);
    let sizes = json!({"resources": {"limits": {"cpu": "300m"}}, "containers": sizes});
    kubectl.run(&resize(&json!({"spec": sizes}))[..]);
    kubectl.until("pod whole", "{.status.resources.limits.cpu}", "300m");
    kubectl.until("pod whole", "{.status.containerStatuses[0].resources.limits.memory}", "48Mi");
    let memory = cgroup_files(cluster, &id, "-name memory.limit_in_bytes -o -name memory.max");
    assert_eq!(memory, [(48 << 20).to_string()]);
    let quotas = format!(
        "find /sys/fs/cgroup -path '*{}*' -path '*pod{}/cpu.cfs_quota_us' -exec cat {{}} + -o \
         -path '*{0}*' -path '*pod{1}/cpu.max' -exec cat {{}} +",
        cluster.sandbox.cgroup_root,
        kubectl.path("pod whole", "{.metadata.uid}")
    );
    let quota = cluster.sandbox.sh(&quotas);
    assert!(quota.trim() == "30000" || quota.trim() == "30000 100000", "{quota}");
    let after = kubectl.path(
        "pod whole",
        "{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}",
    );
    assert_eq!(after, format!("{id} 0"));

    let refused = kubectl.fails(&resize(&json!({"spec": {"resources": {"limits": {"cpu": null}}}}))[..]);
    assert!(refused.contains("pod-level resource limits cannot be removed"), "{refused}");
}
