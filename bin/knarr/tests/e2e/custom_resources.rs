//! Custom resources as users work with them: a definition, its objects through kubectl, and an operator.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::cluster::shared;

fn schema() -> Value {
    let spec = json!({"type": "object", "required": ["text"], "properties": {
        "text": {"type": "string", "maxLength": 40, "description": "What is said"},
        "replicas": {"type": "integer", "default": 1, "minimum": 0, "maximum": 5}},
        "x-kubernetes-validations": [{"rule": "self.text != 'no'", "message": "be polite"}]});
    let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"type": "object", "description": "A greeting to the world", "properties": {"spec": spec, "status": status}})
}

fn definition(group: &str, plural: &str, kind: &str) -> Value {
    let version = json!({
        "name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
        "additionalPrinterColumns": [
            {"name": "Text", "type": "string", "jsonPath": ".spec.text"},
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
        "schema": {"openAPIV3Schema": schema()},
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": [version],
            "names": {"plural": plural, "kind": kind, "shortNames": [&plural[..3]]},
        },
    })
}

fn greeting(group: &str, kind: &str, name: &str, text: &str) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": name}, "spec": {"text": text}})
}

#[test]
fn a5_an_operator_reconciles_custom_resources() {
    let cluster = shared();
    let kubectl = cluster.namespace("operator");
    kubectl.apply(&definition("hello.example.com", "greetings", "Greeting"));
    kubectl.run("wait --for=condition=established --timeout=30s crd/greetings.hello.example.com");
    let mut command = cluster.python_command("greeter.py", &[kubectl.namespace()]);
    let mut operator = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("operator");
    kubectl.apply(&greeting("hello.example.com", "Greeting", "one", "hello"));
    kubectl.until("greeting/one", "{.status.phase}", "Ready");
    assert_eq!(kubectl.path("configmap/one", "{.data.text}"), "hello");
    kubectl.run("scale greeting/one --replicas=2");
    kubectl.until("greeting/one", "{.status.replicas}", "2");
    kubectl.until("greeting/one", "{.status.observedGeneration}", "2");
    assert_eq!(kubectl.path("configmap/one", "{.data.text}"), "hello\nhello");
    let table = kubectl.run("get gre");
    assert!(table.contains("TEXT") && table.contains("Ready"), "{table}");
    // The dependent is deleted with its owner.
    kubectl.run("delete greeting/one");
    kubectl.eventually("get configmap one --ignore-not-found", |out| out.is_empty());
    drop(operator.stdin.take());
    let _ = operator.kill();
    let _ = operator.wait();
    kubectl.run("delete crd greetings.hello.example.com");
}

#[test]
fn a5_kubectl_knows_custom_resources() {
    let cluster = shared();
    let kubectl = cluster.namespace("custom");
    kubectl.apply(&definition("words.example.com", "sayings", "Saying"));
    kubectl.run("wait --for=condition=established --timeout=30s crd/sayings.words.example.com");
    kubectl.eventually("api-resources --api-group=words.example.com", |out| out.contains("sayings"));
    let explained = kubectl.run("explain saying.spec.text");
    assert!(explained.contains("What is said"), "{explained}");
    let saying = |text: &str| greeting("words.example.com", "Saying", "one", text);
    let refused = kubectl.with_fails("apply -f -", &saying("no").to_string());
    assert!(refused.contains("be polite"), "{refused}");
    let mut odd = saying("hello");
    odd["spec"]["odd"] = json!(1);
    let refused = kubectl.with_fails("apply -f -", &odd.to_string());
    assert!(refused.contains("unknown field \"spec.odd\""), "{refused}");
    kubectl.apply(&saying("hello"));
    assert_eq!(kubectl.path("saying/one", "{.spec.replicas}"), "1");
    kubectl.run(["patch", "saying/one", "--type=merge", "-p", r#"{"spec":{"text":"bye"}}"#]);
    kubectl.apply(&saying("again"));
    assert_eq!(kubectl.path("saying/one", "{.spec.text} {.metadata.generation}"), "again 3");
    kubectl.with("apply --server-side --force-conflicts -f -", &saying("server").to_string());
    assert_eq!(kubectl.path("saying/one", "{.spec.text}"), "server");
    kubectl.run("delete saying --all");
    kubectl.apply(&saying("last"));
    kubectl.run("delete crd sayings.words.example.com");
    kubectl.fails("get sayings");
}
