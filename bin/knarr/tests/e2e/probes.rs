//! Probes: which pods get traffic, and which containers are restarted.

use serde_json::json;

use crate::cluster::shared;
use crate::objects::{SLEEP, pod, service, sleeper};

#[test]
fn b5_readiness_gates_traffic() {
    let kubectl = shared().namespace("b5-readiness");
    let mut object = sleeper("gated");
    object["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    kubectl.apply(&object);
    kubectl.apply(&service("gated"));
    kubectl.phase("gated", "Running");
    let slice = "endpointslices -l kubernetes.io/service-name=gated";
    let ready = "{.items[0].endpoints[0].conditions.ready}";
    kubectl.until(slice, ready, "false");
    assert!(
        kubectl.event("gated", "Unhealthy").contains("Readiness probe failed: cat: can't open '/tmp/ready'")
    );
    assert!(kubectl.run("get pod gated").contains("0/1"));
    kubectl.run("exec gated -- touch /tmp/ready");
    kubectl.ready("gated");
    kubectl.until(slice, ready, "true");
    kubectl.run("exec gated -- rm /tmp/ready");
    kubectl.until(slice, ready, "false");
    assert_eq!(
        kubectl.path("pod gated", "{.status.containerStatuses[0].restartCount}"),
        "0",
        "never restarted"
    );
    assert_eq!(
        kubectl.path("pod gated", "{.status.conditions[?(@.type=='Ready')].reason}"),
        "ContainersNotReady"
    );
}

#[test]
fn b5_liveness_restarts() {
    let kubectl = shared().namespace("b5-liveness");
    let mut object = pod("live", &format!("touch /tmp/healthy; {SLEEP}"));
    object["spec"]["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["cat", "/tmp/healthy"]}, "periodSeconds": 1, "failureThreshold": 2});
    kubectl.apply(&object);
    kubectl.ready("live");
    let id = kubectl.path("pod live", "{.status.containerStatuses[0].containerID}");
    kubectl.run("exec live -- rm /tmp/healthy");
    kubectl.until("pod live", "{.status.containerStatuses[0].restartCount}", "1");
    kubectl.ready("live");
    assert_ne!(kubectl.path("pod live", "{.status.containerStatuses[0].containerID}"), id);
    assert!(kubectl.event("live", "Unhealthy").contains("Liveness probe failed"));
    assert!(
        kubectl.event("live", "Killing").contains("Container main failed liveness probe, will be restarted")
    );
}

#[test]
fn b5_startup_probe_holds_the_others_back() {
    let kubectl = shared().namespace("b5-startup");
    let mut object = sleeper("slow");
    object["spec"]["containers"][0]["startupProbe"] =
        json!({"exec": {"command": ["cat", "/tmp/started"]}, "periodSeconds": 1, "failureThreshold": 60});
    object["spec"]["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["cat", "/tmp/started"]}, "periodSeconds": 1, "failureThreshold": 1});
    kubectl.apply(&object);
    assert!(kubectl.event("slow", "Unhealthy").contains("Startup probe failed"));
    assert_eq!(kubectl.path("pod slow", "{.status.containerStatuses[0].started}"), "false");
    kubectl.run("exec slow -- touch /tmp/started");
    kubectl.ready("slow");
    assert_eq!(kubectl.path("pod slow", "{.status.containerStatuses[0].started}"), "true");
    assert_eq!(kubectl.path("pod slow", "{.status.containerStatuses[0].restartCount}"), "0");
}

#[test]
fn b5_http_and_tcp() {
    let kubectl = shared().namespace("b5-http");
    let with_probe = |name: &str, probe: serde_json::Value| {
        let mut object = sleeper(name);
        object["spec"]["containers"] = json!([{
            "name": "main", "image": "knarr.local/web:v1", "ports": [{"name": "http", "containerPort": 80}],
            "readinessProbe": probe,
        }]);
        object
    };
    kubectl.apply(&with_probe("http", json!({"httpGet": {"path": "/", "port": "http", "httpHeaders": [{"name": "X-Probe", "value": "1"}]}, "periodSeconds": 1})));
    kubectl.apply(&with_probe("tcp", json!({"tcpSocket": {"port": 80}, "periodSeconds": 1})));
    kubectl.apply(&with_probe(
        "not-found",
        json!({"httpGet": {"path": "/none", "port": 80}, "periodSeconds": 1}),
    ));
    kubectl.apply(&with_probe("closed", json!({"tcpSocket": {"port": 81}, "periodSeconds": 1})));
    kubectl.ready("http");
    kubectl.ready("tcp");
    let events = "get events --field-selector involvedObject.name=not-found,reason=Unhealthy -o custom-columns=M:.message";
    kubectl.eventually(events, |out| {
        out.contains("Readiness probe failed: HTTP probe failed with statuscode: 404")
    });
    let message = kubectl.event("closed", "Unhealthy");
    assert!(message.contains("connection refused"), "{message}");
    let states =
        kubectl.path("pods", "{range .items[*]}{.metadata.name}={.status.containerStatuses[0].ready} {end}");
    assert_eq!(states, "closed=false http=true not-found=false tcp=true ");
}
