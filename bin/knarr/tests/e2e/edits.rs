//! Commands that change objects.

use serde_json::json;

use crate::cluster::{Cluster, shared};
use crate::objects::{config_map, sleeper, web};

#[test]
fn c8_label_and_annotate() {
    let kubectl = shared().namespace("c8-label");
    kubectl.apply(&sleeper("a"));
    assert_eq!(kubectl.run("label pod a tier=front"), "pod/a labeled\n");
    let error = kubectl.fails("label pod a tier=back");
    assert!(error.contains("'tier' already has a value (front), and --overwrite is false"), "{error}");
    assert_eq!(kubectl.run("label pod a tier=back --overwrite"), "pod/a labeled\n");
    assert_eq!(kubectl.path("pod a", "{.metadata.labels.tier}"), "back");
    assert_eq!(kubectl.run("label pod a tier-"), "pod/a unlabeled\n");
    assert_eq!(kubectl.run("annotate pod a note=yes"), "pod/a annotated\n");
    assert_eq!(kubectl.path("pod a", "{.metadata.annotations.note}"), "yes");
    assert_eq!(kubectl.run("annotate pod a note-"), "pod/a annotated\n");
    let error = kubectl.fails("label pod a bad/label/key=x");
    assert!(error.contains("metadata.labels: Invalid value: \"bad/label/key\""), "{error}");
}

#[test]
fn c8_patch_in_three_ways() {
    let kubectl = shared().namespace("c8-patch");
    kubectl.apply(&web("web", 0));
    let patch =
        |type_: &str, text: &str| kubectl.run(["patch", "deployment", "web", "--type", type_, "-p", text]);
    let env = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "env": [{"name": "A", "value": "1"}]}]}}}});
    assert_eq!(patch("strategic", &env.to_string()), "deployment.apps/web patched\n");
    let deployment = kubectl.json("deployment web");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "knarr.local/web:v1", "merged by name, not replaced");
    assert_eq!(container["env"], json!([{"name": "A", "value": "1"}]));
    assert_eq!(patch("strategic", &env.to_string()), "deployment.apps/web patched (no change)\n");
    patch("merge", r#"{"metadata": {"labels": {"x": "y", "app": null}}}"#);
    assert_eq!(kubectl.json("deployment web")["metadata"]["labels"], json!({"x": "y"}));
    patch("json", r#"[{"op": "replace", "path": "/spec/paused", "value": true}]"#);
    patch(
        "json",
        r#"[{"op": "test", "path": "/spec/paused", "value": true}, {"op": "remove", "path": "/spec/paused"}]"#,
    );
    assert_eq!(kubectl.json("deployment web")["spec"].get("paused"), None);
    let error = kubectl.fails([
        "patch",
        "deployment",
        "web",
        "--type=json",
        "-p",
        r#"[{"op": "remove", "path": "/spec/nothing"}]"#,
    ]);
    assert!(error.contains("The request is invalid"), "{error}");
    let error = kubectl.fails(["patch", "deployment", "web", "-p", r#"{"spec": {"replicas": -1}}"#]);
    assert!(
        error.contains("spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        "{error}"
    );
    let scaled = kubectl.run([
        "patch",
        "deployment",
        "web",
        "--subresource=scale",
        "--type=merge",
        "-p",
        r#"{"spec": {"replicas": 1}}"#,
    ]);
    assert_eq!(scaled, "scale.autoscaling/web patched\n");
    assert_eq!(kubectl.path("deployment web", "{.spec.replicas}"), "1");
}

#[test]
fn c8_edit() {
    let kubectl = shared().namespace("c8-edit");
    kubectl.apply(&config_map("edited", json!({"key": "before"})));
    let mut command = kubectl.command("edit configmap edited");
    let output = command.env("KUBE_EDITOR", "sed -i s/before/after/").output().expect("nsenter");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "configmap/edited edited\n", "{output:?}");
    assert_eq!(kubectl.path("configmap edited", "{.data.key}"), "after");
    let output =
        kubectl.command("edit configmap edited").env("KUBE_EDITOR", "true").output().expect("nsenter");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("Edit cancelled, no changes made."),
        "{output:?}"
    );
}

#[test]
fn c8_apply_keeps_what_others_own() {
    let kubectl = shared().namespace("c8-apply");
    let mut object = config_map("a", json!({"x": "1", "y": "2"}));
    assert_eq!(kubectl.apply(&object), "configmap/a created\n");
    assert_eq!(kubectl.apply(&object), "configmap/a unchanged\n");
    kubectl.run("annotate configmap a other=kept");
    object["data"] = json!({"x": "3"});
    assert_eq!(kubectl.apply(&object), "configmap/a configured\n");
    let now = kubectl.json("configmap a");
    assert_eq!(now["data"], json!({"x": "3"}));
    assert_eq!(now["metadata"]["annotations"]["other"], "kept");
}

#[test]
fn c8_server_side_apply_finds_conflicts() {
    let kubectl = shared().namespace("c8-ssa");
    let first = config_map("a", json!({"x": "1", "y": "1"})).to_string();
    assert_eq!(kubectl.with("apply --server-side -f -", &first), "configmap/a serverside-applied\n");
    let other = config_map("a", json!({"x": "2"})).to_string();
    let error = kubectl.with_fails("apply --server-side --field-manager=other -f -", &other);
    assert!(error.contains("Apply failed with 1 conflict: conflict with \"kubectl\": .data.x"), "{error}");
    kubectl.with("apply --server-side --field-manager=other --force-conflicts -f -", &other);
    let now = kubectl.json("configmap a --show-managed-fields");
    assert_eq!(now["data"], json!({"x": "2", "y": "1"}));
    let managers: Vec<&str> = now["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields")
        .iter()
        .filter_map(|m| m["manager"].as_str())
        .collect();
    assert_eq!(managers, ["kubectl", "other"]);
    let last = config_map("a", json!({})).to_string();
    kubectl.with("apply --server-side -f -", &last);
    assert_eq!(
        kubectl.json("configmap a")["data"],
        json!({"x": "2"}),
        "what an owner no longer applies goes"
    );
}

#[test]
fn c8_dry_run_and_diff() {
    let kubectl = shared().namespace("c8-dry-run");
    let object = config_map("a", json!({"x": "1"})).to_string();
    assert_eq!(
        kubectl.with("apply --dry-run=server -f -", &object),
        "configmap/a created (server dry run)\n"
    );
    assert!(kubectl.fails("get configmap a").contains("NotFound"));
    kubectl.with("apply -f -", &object);
    let changed = config_map("a", json!({"x": "2"})).to_string();
    let output = kubectl.attempt_with("diff -f -", &changed);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("-  x: \"1\"") && text.contains("+  x: \"2\""), "{text}");
    assert_eq!(kubectl.attempt_with("diff -f -", &object).status.code(), Some(0));
    assert!(kubectl.run("delete configmap a --dry-run=server").contains("(server dry run)"));
    assert_eq!(kubectl.path("configmap a", "{.data.x}"), "1");
    assert!(kubectl.with_fails("create -f -", &object).contains("configmaps \"a\" already exists"));
    assert_eq!(kubectl.with("replace -f -", &changed), "configmap/a replaced\n");
}

#[test]
fn c8_scale() {
    let kubectl = shared().namespace("c8-scale");
    kubectl.apply(&web("web", 1));
    assert_eq!(kubectl.run("scale deployment web --replicas=3"), "deployment.apps/web scaled\n");
    kubectl.until("deployment web", "{.status.readyReplicas}", "3");
    let error = kubectl.fails("scale deployment web --current-replicas=5 --replicas=1");
    assert!(error.contains("Expected replicas to be 5, was 3"), "{error}");
    kubectl.run("scale deployment web --replicas=0");
    kubectl.eventually("get pods -l app=web -o name", str::is_empty);
}

/// This test has its own cluster, because a taint of the only node affects every pod.
#[test]
fn c8_taint_and_e1_no_execute() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("taints");
    let mut tolerant = sleeper("tolerant");
    tolerant["spec"]["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]);
    let mut patient = sleeper("patient");
    patient["spec"]["tolerations"] =
        json!([{"key": "dedicated", "value": "x", "effect": "NoExecute", "tolerationSeconds": 3}]);
    for pod in [&tolerant, &patient, &sleeper("plain")] {
        kubectl.apply(pod);
    }
    for name in ["tolerant", "patient", "plain"] {
        kubectl.ready(name);
    }
    assert_eq!(kubectl.run("taint node knarr-test dedicated=x:NoSchedule"), "node/knarr-test tainted\n");
    kubectl.apply(&sleeper("late"));
    let message = kubectl.event("late", "FailedScheduling");
    assert!(message.contains("0/1 nodes are available: 1 node(s) had untolerated taint(s)."), "{message}");
    assert_eq!(
        kubectl.path("pod late", "{.status.conditions[?(@.type=='PodScheduled')].reason}"),
        "Unschedulable"
    );
    assert_eq!(kubectl.run("taint node knarr-test dedicated-"), "node/knarr-test untainted\n");
    kubectl.ready("late");

    kubectl.run("taint node knarr-test dedicated=x:NoExecute");
    for name in ["plain", "late", "patient"] {
        kubectl.run(&format!("wait --for=delete --timeout=60s pod/{name}"));
    }
    assert_eq!(kubectl.path("pod tolerant", "{.status.phase}"), "Running");
    kubectl.event("patient", "TaintManagerEviction");
    kubectl.run("taint node knarr-test dedicated-");

    assert_eq!(kubectl.run("cordon knarr-test"), "node/knarr-test cordoned\n");
    assert!(kubectl.run("get nodes").contains("Ready,SchedulingDisabled"));
    kubectl.apply(&sleeper("kept-out"));
    let message = kubectl.event("kept-out", "FailedScheduling");
    assert!(message.contains("0/1 nodes are available: 1 node(s) were unschedulable."), "{message}");
    assert_eq!(kubectl.run("uncordon knarr-test"), "node/knarr-test uncordoned\n");
    kubectl.ready("kept-out");
}
