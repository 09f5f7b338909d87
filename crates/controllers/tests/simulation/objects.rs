//! What the cluster is given.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "ns";
pub const NODES: [&str; 3] = ["n1", "n2", "n3"];
pub const COMPLETIONS: i32 = 8;
pub const PARALLELISM: i32 = 3;
/// Of the Deployment: pods above and below the wanted number during a rollout.
pub const SURGE: i32 = 1;
pub const UNAVAILABLE: i32 = 1;
/// Pods of the guarded ReplicaSet that its budget keeps.
pub const KEPT: usize = 2;

fn add<K: Kind>(api: &FakeApi, value: Value) {
    let object = K::decode(value.to_string().as_bytes()).expect("the objects of the test are well-formed");
    api.add(&object);
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE, "generation": 1})
}

fn template(app: &str, restart: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"restartPolicy": restart, "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "c", "image": "image:1"}]}})
}

pub fn deployment(name: &str) -> Value {
    json!({"metadata": metadata(name), "spec": {
        "replicas": 4, "selector": {"matchLabels": {"app": name}}, "template": template(name, "Always"),
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE}},
        "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600, "minReadySeconds": 0}})
}

pub fn create(api: &FakeApi) {
    for name in NODES {
        add::<Node>(
            api,
            json!({"metadata": {"name": name}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}}),
        );
    }
    add::<Deployment>(api, deployment("web"));
    add::<Deployment>(api, deployment("gone"));
    add::<StatefulSet>(
        api,
        json!({"metadata": metadata("db"), "spec": {
        "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": template("db", "Always"), "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}}),
    );
    add::<DaemonSet>(
        api,
        json!({"metadata": metadata("agent"), "spec": {
        "selector": {"matchLabels": {"app": "agent"}}, "template": template("agent", "Always"),
        "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}}),
    );
    add::<Job>(
        api,
        json!({"metadata": metadata("batch"), "spec": {
        "completions": COMPLETIONS, "parallelism": PARALLELISM, "backoffLimit": 1000, "completionMode": "NonIndexed",
        "suspend": false, "manualSelector": true, "podReplacementPolicy": "TerminatingOrFailed",
        "selector": {"matchLabels": {"app": "batch"}}, "template": template("batch", "Never")}}),
    );
    add::<ReplicaSet>(
        api,
        json!({"metadata": metadata("guarded"), "spec": {
        "replicas": 3, "minReadySeconds": 0, "selector": {"matchLabels": {"app": "guarded"}},
        "template": template("guarded", "Always")}}),
    );
    add::<PodDisruptionBudget>(
        api,
        json!({"metadata": metadata("guarded"), "spec": {
        "minAvailable": KEPT, "selector": {"matchLabels": {"app": "guarded"}}}}),
    );
}
