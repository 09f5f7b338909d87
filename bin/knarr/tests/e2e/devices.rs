//! Devices: dynamic resource allocation, from ResourceSlices and DeviceClasses to pods that get them or wait.

use serde_json::json;

use crate::cluster::Cluster;
use crate::objects::{sleeper, web};

#[test]
fn devices_are_allocated_and_given_back() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("devices");
    let of = |kind: &str, name: &str, spec: serde_json::Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let device = |name: &str, memory: &str| json!({"name": name, "attributes": {"model": {"string": "m1"}}, "capacity": {"memory": {"value": memory}}});
    kubectl.apply(&of(
        "DeviceClass",
        "gpu",
        json!({"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}),
    ));
    kubectl.apply(&of(
        "ResourceSlice",
        "knarr-test-gpus",
        json!({"driver": "gpu.example.com", "nodeName": "knarr-test",
            "pool": {"name": "knarr-test", "generation": 1, "resourceSliceCount": 1},
            "devices": [device("small", "8Gi"), device("large-0", "80Gi"), device("large-1", "80Gi")]}),
    ));
    let large = "device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0";
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": large}}]}});
    kubectl.apply(&of(
        "ResourceClaimTemplate",
        "large-gpu",
        json!({"spec": {"devices": {"requests": [request]}}}),
    ));
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "large-gpu"}]);
    let mut deployment = web("users", 2);
    deployment["spec"]["template"]["spec"]["resourceClaims"] = claims.clone();
    kubectl.apply(&deployment);
    kubectl.run("rollout status deployment/users --timeout=120s");
    let devices = r"{range .items[*]}{.status.allocation.devices.results[0].device} {.status.reservedFor[0].resource}{'\n'}{end}";
    let given =
        kubectl.path("resourceclaims --sort-by=.status.allocation.devices.results[0].device", devices);
    let mut given: Vec<_> = given.lines().collect();
    given.sort_unstable();
    assert_eq!(given, ["large-0 pods", "large-1 pods"]);

    let mut late = sleeper("late");
    late["spec"]["resourceClaims"] = claims;
    kubectl.apply(&late);
    let message = kubectl.event("late", "FailedScheduling");
    let expected = "0/1 nodes are available: 1 cannot allocate all claims.";
    // The first attempt may be made before the claim exists.
    kubectl.until(
        "pod late",
        "{.status.conditions[?(@.type=='PodScheduled')].message}",
        "0/1 nodes are available: 1 cannot allocate all claims. preemption: 0/1 nodes are available: 1 Preemption is \
         not helpful for scheduling.",
    );
    assert!(message.starts_with(expected) || message.contains("ResourceClaim not created yet"), "{message}");
    kubectl.run("scale deployment users --replicas=1");
    kubectl.ready("late");
    kubectl.run("delete deployment users");
    kubectl.run("delete pod late");
    kubectl.eventually("get resourceclaims -o name", str::is_empty);
}

#[test]
fn extended_resources_are_devices_and_tainted_devices_lose_their_pods() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("cards");
    let of = |kind: &str, name: &str, spec: serde_json::Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let selector = json!([{"cel": {"expression": "device.driver == 'card.example.com'"}}]);
    kubectl.apply(&of(
        "DeviceClass",
        "card",
        json!({"selectors": selector, "extendedResourceName": "example.com/card"}),
    ));
    kubectl.apply(&of(
        "ResourceSlice",
        "knarr-test-cards",
        json!({"driver": "card.example.com", "nodeName": "knarr-test",
            "pool": {"name": "knarr-test", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "card-0"}, {"name": "card-1"}]}),
    ));
    for (name, resource) in
        [("explicit", "example.com/card"), ("implicit", "deviceclass.resource.kubernetes.io/card")]
    {
        let mut pod = sleeper(name);
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {resource: "1"}});
        kubectl.apply(&pod);
        kubectl.ready(name);
        let told = "{.status.extendedResourceClaimStatus.requestMappings[0].resourceName}";
        assert_eq!(kubectl.path(&format!("pod {name}"), told), resource);
        let claim = "{.status.extendedResourceClaimStatus.resourceClaimName}";
        let claim = kubectl.path(&format!("pod {name}"), claim);
        let reserved = kubectl.path(&format!("resourceclaim {claim}"), "{.status.reservedFor[0].name}");
        assert_eq!(reserved, name);
        assert_eq!(kubectl.path(&format!("pod {name}"), "{.status.nominatedNodeName}"), "");
    }
    kubectl.run("delete pod implicit");
    kubectl.eventually("get resourceclaims -o name", |all| all.lines().count() == 1);

    let request = json!({"name": "card", "exactly": {"deviceClassName": "card"}});
    kubectl.apply(&of("ResourceClaim", "by-name", json!({"devices": {"requests": [request]}})));
    let mut doomed = sleeper("doomed");
    doomed["spec"]["resourceClaims"] = json!([{"name": "card", "resourceClaimName": "by-name"}]);
    kubectl.apply(&doomed);
    kubectl.ready("doomed");
    let device = kubectl.path("resourceclaim by-name", "{.status.allocation.devices.results[0].device}");
    kubectl.apply(&of(
        "DeviceTaintRule",
        "broken-card",
        json!({"deviceSelector": {"driver": "card.example.com", "device": device},
            "taint": {"key": "broken", "effect": "NoExecute"}}),
    ));
    kubectl.event("doomed", "DeviceTaintManagerEviction");
    kubectl.eventually("get pods -o name", |pods| !pods.contains("doomed"));
    kubectl.until("devicetaintrule broken-card", "{.status.conditions[0].reason}", "Completed");
    kubectl.run("delete devicetaintrule broken-card");
}
