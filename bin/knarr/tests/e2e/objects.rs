//! The objects of the tests, as JSON that a test adapts to its needs.

use serde_json::{Value, json};

/// The image with a busybox that exists on every node.
pub const BUSYBOX: &str = "busybox";

/// Returns a container, named `main`, that runs a shell script.
pub fn container(script: &str) -> Value {
    json!({
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
    })
}

/// Returns a pod of one container that runs a shell script, labelled `app: NAME`.
pub fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container(script)]},
    })
}

/// Returns a pod that sleeps, and ends at once on SIGTERM.
pub fn sleeper(name: &str) -> Value {
    pod(name, SLEEP)
}

/// A script that sleeps. It has a signal handler, because process 1 ignores signals that it has no handler
/// for.
pub const SLEEP: &str = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done";

/// Returns a pod that runs once and is not restarted.
pub fn once(name: &str, script: &str) -> Value {
    let mut pod = pod(name, script);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod
}

/// Returns a Deployment of the examples' web server, ready as soon as it answers.
pub fn web(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "web",
                        "image": "knarr.local/web:v1",
                        "ports": [{"name": "http", "containerPort": 80}],
                        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

/// Returns a Service for pods labelled `app: NAME`.
pub fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
    })
}

pub fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub fn secret(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}
