//! Cascading deletion: owners, namespaces, eviction.

use serde_json::{Value, json};

use crate::cluster::shared;
use crate::kubectl::Kubectl;
use crate::objects::{config_map, sleeper, web};

fn deployed(kubectl: &Kubectl) {
    kubectl.apply(&web("web", 2));
    kubectl.run("rollout status deployment/web --timeout=90s");
}

#[test]
fn c1_background_deletion_takes_the_dependents() {
    let kubectl = shared().namespace("gc-background");
    deployed(&kubectl);
    assert!(kubectl.run("delete deployment web").contains("deployment.apps \"web\" deleted"));
    kubectl.eventually("get replicasets,pods -o name", str::is_empty);
}

#[test]
fn c1_foreground_deletion_waits_for_the_dependents() {
    let kubectl = shared().namespace("gc-foreground");
    deployed(&kubectl);
    let watch = kubectl
        .background("get deployments,pods -w --no-headers -o custom-columns=K:.kind,F:.metadata.finalizers");
    kubectl.run("delete deployment web --cascade=foreground --timeout=60s");
    assert_eq!(kubectl.run("get replicasets,pods -o name"), "", "the owner goes last");
    drop(watch);
}

#[test]
fn c1_orphans_stay() {
    let kubectl = shared().namespace("gc-orphan");
    deployed(&kubectl);
    let before = kubectl.path("pods", "{.items[*].metadata.uid}");
    kubectl.run("delete deployment web --cascade=orphan");
    let set = kubectl.json("replicasets");
    assert_eq!(set["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(set["items"][0]["metadata"].get("ownerReferences"), None, "{set}");
    assert_eq!(kubectl.path("pods", "{.items[*].metadata.uid}"), before);
    kubectl.apply(&web("web", 2));
    kubectl.run("rollout status deployment/web --timeout=90s");
    assert_eq!(kubectl.path("pods", "{.items[*].metadata.uid}"), before, "adopted again");
}

#[test]
fn c1_finalizers_hold_an_object() {
    let kubectl = shared().namespace("gc-finalizer");
    let mut object = config_map("held", json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    kubectl.apply(&object);
    kubectl.run("delete configmap held --wait=false");
    assert_ne!(kubectl.path("configmap held", "{.metadata.deletionTimestamp}"), "");
    let error = kubectl.fails([
        "patch",
        "configmap",
        "held",
        "-p",
        r#"{"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}"#,
    ]);
    assert!(error.contains("no new finalizers can be added if the object is being deleted"), "{error}");
    kubectl.run(["patch", "configmap", "held", "-p", r#"{"metadata": {"finalizers": null}}"#]);
    assert!(kubectl.fails("get configmap held").contains("NotFound"));
}

#[test]
fn c1_namespaces_take_everything_with_them() {
    let kubectl = shared().namespace("gc-namespace");
    deployed(&kubectl);
    let mut object = config_map("held", json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    kubectl.apply(&object);
    kubectl.run("delete namespace gc-namespace --wait=false");
    kubectl.until("namespace gc-namespace", "{.status.phase}", "Terminating");
    let error = kubectl.fails("create configmap late");
    assert!(
        error.contains("configmaps \"late\" is forbidden: unable to create new content in namespace gc-namespace because it is being terminated"),
        "{error}"
    );
    kubectl.until(
        "namespace gc-namespace",
        "{.status.conditions[?(@.type=='NamespaceFinalizersRemaining')].status}",
        "True",
    );
    kubectl.run([
        "patch",
        "configmap",
        "held",
        "--type=merge",
        "-p",
        r#"{"metadata": {"finalizers": null}}"#,
    ]);
    kubectl.run("wait --for=delete namespace/gc-namespace --timeout=90s");
    assert_eq!(kubectl.run("get pods,configmaps,replicasets -o name"), "");
}

#[test]
fn e5_eviction_and_disruption_budgets() {
    let cluster = shared();
    let kubectl = cluster.namespace("e5");
    kubectl.apply(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }));
    kubectl.apply(&sleeper("kept"));
    kubectl.apply(&sleeper("free"));
    kubectl.ready("kept");
    kubectl.ready("free");
    let evict = |pod: &str| -> (u64, Value) {
        let eviction =
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}).to_string();
        let path = format!("/api/v1/namespaces/e5/pods/{pod}/eviction");
        let text =
            cluster.python("raw.py", &["POST", &path, "--type", "application/json", "--body", &eviction]);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let body = serde_json::from_str(answer["body"].as_str().unwrap_or_default()).unwrap_or_default();
        (answer["code"].as_u64().unwrap_or_default(), body)
    };
    let (code, status) = evict("kept");
    assert_eq!((code, &status["reason"]), (429, &json!("TooManyRequests")), "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("Cannot evict pod as it would violate the pod's disruption budget."),
        "{status}"
    );
    assert_eq!(evict("free").0, 201);
    kubectl.run("wait --for=delete pod/free --timeout=60s");
    assert_eq!(kubectl.path("pod kept", "{.status.phase}"), "Running");
    kubectl.apply(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep-too"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }));
    assert_eq!(evict("kept").0, 500, "two budgets for one pod");
    assert_eq!(evict("nobody").0, 404);
}
