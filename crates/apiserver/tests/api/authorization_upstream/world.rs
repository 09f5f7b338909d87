//! The objects other than roles that both servers hold: nodes, pods and the objects to which they refer.

use serde_json::{Value, json};

/// A path and a body: a POST to a collection, or a merge patch to a subresource ([`is_part`]).
pub type Step = (String, Value);

/// A config map to which the last pod refers: once a server lets the pod's node read it, it has cached everything
/// before it.
pub const LAST: &str = "/api/v1/namespaces/alpha/configmaps/last";

const NAMED: &[(&str, &[&str])] = &[
    (
        "secrets",
        &[
            "mounted",
            "pulled",
            "env",
            "projected",
            "published",
            "debugged",
            "ended",
            "elsewhere",
            "waiting",
            "unrelated",
            "mirrored",
            "init",
            "volume-1",
            "controller",
            "staged",
        ],
    ),
    (
        "configmaps",
        &[
            "mounted",
            "settings",
            "env",
            "projected",
            "elsewhere",
            "unrelated",
            "mirrored",
            "optional",
            "last",
        ],
    ),
    ("serviceaccounts", &["runner", "other", "unused"]),
];

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn claim(name: &str, volume: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn volume(name: &str, claim: &str, secret: &str) -> Value {
    let reference = |name: &str| json!({"name": name, "namespace": "beta"});
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
            "claimRef": {"namespace": "alpha", "name": claim},
            "csi": {"driver": "d.example.com", "volumeHandle": name,
                "nodePublishSecretRef": reference(secret), "nodeStageSecretRef": reference("staged"),
                "controllerPublishSecretRef": reference("controller")},
        },
    })
}

fn pod(name: &str, node: &str, mut spec: Value) -> Value {
    spec["automountServiceAccountToken"] = json!(false);
    if !node.is_empty() {
        spec["nodeName"] = json!(node);
    }
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}

/// Returns a pod spec with every kind of reference.
fn referring() -> Value {
    let from = |kind: &str, name: &str| json!({kind: {"name": name}});
    let spec = json!({
        "serviceAccountName": "runner",
        "imagePullSecrets": [{"name": "pulled"}],
        "initContainers": [{"name": "i", "image": "i", "envFrom": [from("secretRef", "init")]}],
        "containers": [{
            "name": "c", "image": "i", "envFrom": [from("configMapRef", "settings")],
            "env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "k"}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "optional", "key": "k", "optional": true}}},
            ],
        }],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "device-1"}],
        "volumes": [
            {"name": "secret", "secret": {"secretName": "mounted"}},
            {"name": "settings", "configMap": {"name": "mounted"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "claim-1"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
            {"name": "inline", "csi": {"driver": "d.example.com", "nodePublishSecretRef": {"name": "published"}}},
            {"name": "both", "projected": {"sources": [
                {"secret": {"name": "projected"}}, {"configMap": {"name": "projected"}}]}},
        ],
    });
    pod("p1", "n1", spec)
}

fn pods() -> Vec<Step> {
    let alpha = |pod: Value| ("/api/v1/namespaces/alpha/pods".to_owned(), pod);
    let secret = |name: &str| json!({"volumes": [{"name": "v", "secret": {"secretName": name}}]});
    let settings = |name: &str| json!({"volumes": [{"name": "v", "configMap": {"name": name}}]});
    let mut elsewhere = json!({"volumes": [
        {"name": "v", "secret": {"secretName": "elsewhere"}},
        {"name": "w", "configMap": {"name": "elsewhere"}},
        {"name": "x", "persistentVolumeClaim": {"claimName": "claim-2"}},
    ]});
    elsewhere["serviceAccountName"] = json!("other");
    elsewhere["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "device-2"}]);
    let mut mirror = pod("mirror", "n1", settings("mirrored"));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let debugger = json!({"name": "d", "image": "i", "envFrom": [{"secretRef": {"name": "debugged"}}]});
    let debugged = json!({"spec": {"ephemeralContainers": [debugger]}});
    let mut ended = secret("ended");
    ended["restartPolicy"] = json!("Never");
    vec![
        alpha(referring()),
        alpha(pod("p2", "n2", elsewhere)),
        alpha(pod("waiting", "", secret("waiting"))),
        alpha(mirror),
        alpha(pod("debugged", "n1", json!({}))),
        ("/api/v1/namespaces/alpha/pods/debugged/ephemeralcontainers".into(), debugged),
        alpha(pod("ended", "n1", ended)),
        ("/api/v1/namespaces/alpha/pods/ended/status".into(), json!({"status": {"phase": "Succeeded"}})),
        ("/api/v1/namespaces/beta/pods".into(), pod("p1", "n2", secret("mounted"))),
        alpha(pod("last", "n1", settings("last"))),
    ]
}

/// Returns the cluster-scoped objects of one node.
fn of_nodes(node: &str) -> Vec<Step> {
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    // This port is closed.
    let status = json!({"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}});
    let slice = json!({
        "metadata": {"name": format!("slice-{node}")},
        "spec": {"driver": "d.example.com", "nodeName": node, "devices": [],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    });
    let attachment = json!({
        "metadata": {"name": format!("attachment-{node}")},
        "spec": {"attacher": "d.example.com", "nodeName": node, "source": {"persistentVolumeName": "volume-1"}},
    });
    vec![
        ("/api/v1/nodes".into(), named(node)),
        (format!("/api/v1/nodes/{node}/status"), json!({"status": status})),
        ("/apis/resource.k8s.io/v1/resourceslices".into(), slice),
        ("/apis/storage.k8s.io/v1/volumeattachments".into(), attachment),
        (
            "/apis/storage.k8s.io/v1/csinodes".into(),
            json!({"metadata": {"name": node}, "spec": {"drivers": []}}),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases".into(),
            json!({"metadata": {"name": node}, "spec": {"holderIdentity": node}}),
        ),
    ]
}

fn workloads() -> Vec<Step> {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let selector = json!({"matchLabels": {"app": "web"}});
    let widgets = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            }],
        },
    });
    let remote = json!({
        "metadata": {"name": "v1.remote.example.com"},
        "spec": {"group": "remote.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true, "service": {"namespace": "alpha", "name": "missing"}},
    });
    vec![
        (
            "/apis/apps/v1/namespaces/alpha/deployments".into(),
            json!({"metadata": {"name": "web"}, "spec": {"selector": selector, "template": template}}),
        ),
        (
            "/api/v1/namespaces/alpha/services".into(),
            json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "web"}}}),
        ),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".into(), widgets),
        ("/apis/apiregistration.k8s.io/v1/apiservices".into(), remote),
    ]
}

/// Returns the steps in an order in which the objects can be created.
pub fn steps() -> Vec<Step> {
    let mut all: Vec<Step> =
        ["alpha", "beta"].iter().map(|name| ("/api/v1/namespaces".to_owned(), named(name))).collect();
    for namespace in ["alpha", "beta"] {
        for (plural, names) in NAMED {
            let collection = format!("/api/v1/namespaces/{namespace}/{plural}");
            all.extend(names.iter().map(|name| (collection.clone(), named(name))));
        }
        all.push((format!("/api/v1/namespaces/{namespace}/serviceaccounts"), named("default")));
    }
    for (name, claimed, secret) in [("volume-1", "claim-1", "volume-1"), ("volume-2", "claim-2", "unrelated")]
    {
        all.push(("/api/v1/persistentvolumes".into(), volume(name, claimed, secret)));
        all.push(("/api/v1/namespaces/alpha/persistentvolumeclaims".into(), claim(claimed, name)));
    }
    all.push(("/api/v1/namespaces/alpha/persistentvolumeclaims".into(), claim("p1-scratch", "volume-3")));
    all.push(("/api/v1/namespaces/alpha/persistentvolumeclaims".into(), claim("unused", "volume-4")));
    for name in ["device-1", "device-2"] {
        let requests = json!([{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}]);
        all.push((
            "/apis/resource.k8s.io/v1/namespaces/alpha/resourceclaims".into(),
            json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}),
        ));
    }
    for node in ["n1", "n2"] {
        all.extend(of_nodes(node));
    }
    all.extend(workloads());
    all.extend(pods());
    all
}

/// Returns whether the path is that of a subresource.
pub fn is_part(path: &str) -> bool {
    path.ends_with("/status") || path.ends_with("/ephemeralcontainers")
}

/// Returns the paths of all objects that are created.
pub fn objects() -> Vec<String> {
    let created = steps().into_iter().filter(|(path, _)| !is_part(path));
    let created =
        created.map(|(path, object)| format!("{path}/{}", object["metadata"]["name"].as_str().unwrap()));
    created.chain(["/apis/example.com/v1/namespaces/alpha/widgets/one".to_owned()]).collect()
}
