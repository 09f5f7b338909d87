//! The objects that the simulated cluster begins with.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, ResourceQuota};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "ns";
pub const LEASES: &str = "kube-node-lease";
/// A namespace that is deleted during the run, and one with a quota of this many pods.
pub const DOOMED: &str = "doomed";
pub const BOUNDED: &str = "bounded";
pub const QUOTA: i32 = 4;
/// The Deployment that is autoscaled, its bounds, and the target CPU of one pod, in millicores.
pub const SCALED: &str = "scaled";
pub const SCALES: (i32, i32) = (2, 6);
pub const TARGET: i64 = 100;
/// How long pods of the Deployment `web` tolerate an unresponsive machine, in seconds.
pub const PATIENCE: i64 = 20;
pub const NODES: [&str; 3] = ["n1", "n2", "n3"];
pub const COMPLETIONS: i32 = 8;
pub const PARALLELISM: i32 = 3;
/// The rollout bounds of the Deployment: pods above and below the wanted number.
pub const SURGE: i32 = 1;
pub const UNAVAILABLE: i32 = 1;
/// The pods of the guarded ReplicaSet, and how many of them its budget keeps.
pub const GUARDED: usize = 3;
pub const KEPT: usize = 2;
/// The failures that the limited Job allows, and the exit code that ends it at once.
pub const BACKOFF_LIMIT: i32 = 2;
pub const FATAL: i32 = 42;

fn add<K: Kind>(api: &FakeApi, value: &Value) {
    let object = K::decode(value.to_string().as_bytes()).expect("the objects of the test are well-formed");
    api.add(&object);
}

fn metadata(name: &str) -> Value {
    let namespace = match name {
        "lost" | "left" => DOOMED,
        BOUNDED => BOUNDED,
        _ => NAMESPACE,
    };
    json!({"name": name, "namespace": namespace, "generation": 1})
}

fn template(app: &str, restart: &str) -> Value {
    let tolerate = |key: &str| {
        json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists",
        "effect": "NoExecute", "tolerationSeconds": PATIENCE})
    };
    let tolerations =
        if app == "web" { json!([tolerate("not-ready"), tolerate("unreachable")]) } else { Value::Null };
    json!({"metadata": {"labels": {"app": app}}, "spec": {"tolerations": tolerations, "restartPolicy": restart, "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "c", "image": "image:1", "resources": {"requests": {"cpu": "10m"}}}]}})
}

fn selector(app: &str) -> Value {
    json!({"matchLabels": {"app": app}})
}

fn deployment(name: &str) -> Value {
    json!({"metadata": metadata(name), "spec": {
        "replicas": 4, "selector": selector(name), "template": template(name, "Always"),
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": SURGE, "maxUnavailable": UNAVAILABLE}},
        "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600, "minReadySeconds": 0}})
}

fn stateful_set(name: &str, policy: &str, scaled: &str) -> Value {
    json!({"metadata": metadata(name), "spec": {
        "replicas": 3, "serviceName": name, "selector": selector(name), "template": template(name, "Always"),
        "podManagementPolicy": policy, "revisionHistoryLimit": 10,
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": "Retain"},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}})
}

fn daemon_set(name: &str, unavailable: i32, surge: i32) -> Value {
    json!({"metadata": metadata(name), "spec": {
        "selector": selector(name), "template": template(name, "Always"), "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}}})
}

fn job(name: &str, mode: &str, limit: i32, policy: &Value) -> Value {
    json!({"metadata": metadata(name), "spec": {
        "completions": COMPLETIONS, "parallelism": PARALLELISM, "backoffLimit": limit, "completionMode": mode,
        "suspend": false, "manualSelector": true, "podReplacementPolicy": "TerminatingOrFailed",
        "podFailurePolicy": policy, "selector": selector(name), "template": template(name, "Never")}})
}

/// Adds a machine, with the lease that it renews.
pub fn add_node(api: &FakeApi, name: &str) {
    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
    let allocatable = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
    let status = json!({"conditions": ready, "capacity": allocatable, "allocatable": allocatable});
    let labels = json!({"kubernetes.io/hostname": name});
    add::<Node>(api, &json!({"metadata": {"name": name, "labels": labels}, "status": status}));
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 40});
    add::<Lease>(api, &json!({"metadata": {"name": name, "namespace": LEASES}, "spec": spec}));
}

pub fn create(api: &FakeApi) {
    for name in [NAMESPACE, LEASES, DOOMED, BOUNDED] {
        let spec = json!({"finalizers": ["kubernetes"]});
        add::<Namespace>(
            api,
            &json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Active"}}),
        );
    }
    NODES.iter().for_each(|name| add_node(api, name));
    for name in ["web", "gone", "kept", "lost", SCALED] {
        add::<Deployment>(api, &deployment(name));
    }
    add::<StatefulSet>(api, &stateful_set("db", "OrderedReady", "Retain"));
    add::<StatefulSet>(api, &stateful_set("cache", "Parallel", "Delete"));
    add::<StatefulSet>(api, &stateful_set("left", "OrderedReady", "Retain"));
    add::<DaemonSet>(api, &daemon_set("agent", 1, 0));
    add::<DaemonSet>(api, &daemon_set("relay", 0, 1));
    add::<Job>(api, &job("batch", "NonIndexed", 1000, &Value::Null));
    add::<Job>(api, &job("indexed", "Indexed", 1000, &Value::Null));
    let policy = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [FATAL]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]});
    add::<Job>(api, &job("limited", "NonIndexed", BACKOFF_LIMIT, &policy));
    let run = json!({"spec": {"backoffLimit": 1000, "completions": 1, "parallelism": 1, "completionMode": "NonIndexed",
        "suspend": false, "podReplacementPolicy": "TerminatingOrFailed", "template": template("cron", "Never"),
        "manualSelector": true, "selector": selector("cron")}});
    add::<CronJob>(
        api,
        &json!({"metadata": metadata("cron"), "spec": {"schedule": "* * * * *", "concurrencyPolicy": "Forbid",
            "suspend": false, "successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 1, "jobTemplate": run}}),
    );
    add::<ReplicaSet>(
        api,
        &json!({"metadata": metadata("guarded"), "spec": {"replicas": GUARDED, "minReadySeconds": 0,
            "selector": selector("guarded"), "template": template("guarded", "Always")}}),
    );
    bounded(api);
    let metric = json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "AverageValue", "averageValue": format!("{TARGET}m")}}});
    add::<HorizontalPodAutoscaler>(
        api,
        &json!({"metadata": metadata(SCALED), "spec": {"minReplicas": SCALES.0, "maxReplicas": SCALES.1,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": SCALED}, "metrics": [metric],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 20, "selectPolicy": "Max",
                "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}}}}),
    );
    add::<PodDisruptionBudget>(
        api,
        &json!({"metadata": metadata("guarded"), "spec": {"minAvailable": KEPT, "selector": selector("guarded")}}),
    );
}

/// Adds a ReplicaSet that may ask for more pods than its quota allows.
fn bounded(api: &FakeApi) {
    let hard = json!({"pods": QUOTA.to_string()});
    add::<ResourceQuota>(api, &json!({"metadata": metadata(BOUNDED), "spec": {"hard": hard}}));
    add::<ReplicaSet>(
        api,
        &json!({"metadata": metadata(BOUNDED), "spec": {"replicas": 2, "minReadySeconds": 0,
            "selector": selector(BOUNDED), "template": template(BOUNDED, "Always")}}),
    );
}
