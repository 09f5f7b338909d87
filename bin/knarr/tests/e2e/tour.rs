//! A tour of what controllers do, for a control plane with simulated nodes; it works with any controller
//! manager and any API server.

use serde_json::{Value, json};

use crate::kubectl::Kubectl;

/// The annotation that makes a simulated pod end after some seconds.
const RUNS: &str = "knarr.dev/run-seconds";

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "example/main", "ports": [{"containerPort": 80}]}]}})
}

fn ending(seconds: &str) -> Value {
    json!({"metadata": {"annotations": {RUNS: seconds}}, "spec": {
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "example/main"}]}})
}

fn workload(kind: &str, name: &str, replicas: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name)}})
}

/// Creates a namespace of the cluster that `admin` administers; returns kubectl for it.
fn namespace<'a>(admin: &Kubectl<'a>, name: &str) -> Kubectl<'a> {
    admin.run(["create", "namespace", name]);
    let kubectl = admin.in_namespace(name);
    kubectl.eventually("get serviceaccount default -o name", |out| out.contains("default"));
    kubectl
}

fn count(kubectl: &Kubectl, what: &str, n: usize) {
    kubectl.eventually(&format!("get {what} -o name"), |out| out.lines().count() == n);
}

/// Runs all parts in turn. The cluster has simulated nodes, a scheduler and all controllers.
pub fn all(admin: &Kubectl) {
    accounts(admin);
    rollout(admin);
    jobs(admin);
    stateful_set(admin);
    daemon_set(admin);
    quota_and_limits(admin);
    endpoints(admin);
    garbage(admin);
    budget(admin);
    autoscaler(admin);
    taints(admin);
    aggregated_roles(admin);
    namespace_deletion(admin);
}

/// Checks root certificates, default accounts, and tokens in Secrets.
fn accounts(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-accounts");
    kubectl
        .eventually("get configmap kube-root-ca.crt -o jsonpath={.data}", |out| out.contains("CERTIFICATE"));
    kubectl.run("delete configmap kube-root-ca.crt");
    kubectl
        .eventually("get configmap kube-root-ca.crt -o jsonpath={.data}", |out| out.contains("CERTIFICATE"));
    kubectl.run("create serviceaccount robot");
    kubectl
        .apply(&json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "robot", "annotations": {"kubernetes.io/service-account.name": "robot"}}}));
    let token = kubectl.eventually("get secret robot -o jsonpath={.data.token}", |out| !out.is_empty());
    assert!(token.starts_with("ZXlK"), "a JWT: {token}");
    kubectl.run("delete serviceaccount robot");
    kubectl.run("wait --for=delete secret/robot --timeout=60s");
}

fn rollout(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-rollout");
    kubectl.apply(&workload("Deployment", "web", 3));
    kubectl.run("rollout status deployment/web --timeout=60s");
    kubectl.run("set image deployment/web main=example/main:v2");
    kubectl.run("rollout status deployment/web --timeout=60s");
    kubectl.run("rollout undo deployment/web");
    kubectl.run("rollout status deployment/web --timeout=60s");
    let history = kubectl.run("rollout history deployment/web");
    assert!(history.contains("\n3 ") && !history.contains("\n1 "), "{history}");
    kubectl.run("scale deployment web --replicas=5");
    kubectl.until("deployment web", "{.status.readyReplicas}", "5");
    kubectl.run("scale deployment web --replicas=1");
    count(&kubectl, "pods -l app=web", 1);
    kubectl.event("web", "ScalingReplicaSet");
    let managers =
        kubectl.path("deployment web --show-managed-fields", "{.metadata.managedFields[*].manager}");
    assert!(managers.contains("kube-controller-manager"), "{managers}");
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "old"},
        "spec": {"replicas": 2, "selector": {"app": "old"}, "template": template("old")}}));
    kubectl.until("rc old", "{.status.readyReplicas}", "2");
}

fn jobs(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-jobs");
    kubectl.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "three"},
        "spec": {"completions": 3, "parallelism": 2, "template": ending("0.1")}}));
    kubectl.run("wait --for=condition=complete job/three --timeout=60s");
    kubectl.event("three", "Completed");
    kubectl.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "brief"},
        "spec": {"ttlSecondsAfterFinished": 0, "template": ending("0.1")}}));
    kubectl.run("wait --for=delete job/brief --timeout=60s");
    kubectl.apply(&json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": ending("0.1")}}}}));
    kubectl.run("create job by-hand --from=cronjob/tick");
    kubectl.run("wait --for=condition=complete job/by-hand --timeout=60s");
    kubectl.eventually("get jobs -o name", |out| out.contains("/tick-"));
    kubectl.event("tick", "SawCompletedJob");
    kubectl.run("delete cronjob tick");
}

fn stateful_set(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-stateful");
    for n in 0..2 {
        kubectl.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": format!("tour-{n}")}, "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "tour",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp/tour"}}}));
    }
    let mut set = workload("StatefulSet", "db", 2);
    set["spec"]["serviceName"] = json!("db");
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete"});
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "tour",
        "resources": {"requests": {"storage": "1Gi"}}}}]);
    kubectl.apply(&set);
    kubectl.run("rollout status statefulset/db --timeout=60s");
    assert_eq!(kubectl.path("pvc", "{.items[*].metadata.name}"), "data-db-0 data-db-1");
    assert_eq!(kubectl.path("pvc", "{.items[*].status.phase}"), "Bound Bound");
    kubectl.run("set image statefulset/db main=example/main:v2");
    kubectl.run("rollout status statefulset/db --timeout=60s");
    kubectl.run("scale statefulset db --replicas=1");
    count(&kubectl, "pods -l app=db", 1);
    kubectl.run("delete statefulset db");
    count(&kubectl, "pvc", 0);
    kubectl.until("pv tour-0", "{.status.phase}", "Released");
    kubectl.run("delete pv tour-0 tour-1");
}

fn daemon_set(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-daemons");
    let mut set = workload("DaemonSet", "agent", 1);
    set["spec"].as_object_mut().expect("a map").remove("replicas");
    kubectl.apply(&set);
    kubectl.run("rollout status daemonset/agent --timeout=60s");
    kubectl.run("set image daemonset/agent main=example/main:v2");
    kubectl.run("rollout status daemonset/agent --timeout=60s");
}

fn quota_and_limits(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-quota");
    kubectl
        .apply(&json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": {
        "limits": [{"type": "Container", "default": {"cpu": "200m"}, "defaultRequest": {"cpu": "100m"}}]}}));
    kubectl.run("create quota two --hard=pods=2,requests.cpu=1,configmaps=10");
    kubectl.until("quota two", "{.status.used.configmaps}", "1");
    kubectl.apply(&workload("Deployment", "many", 3));
    kubectl.until("quota two", "{.status.used.pods}", "2");
    kubectl.until("quota two", r"{.status.used.requests\.cpu}", "200m");
    let set = kubectl.path("replicasets", "{.items[0].metadata.name}");
    assert!(kubectl.event(&set, "FailedCreate").contains("exceeded quota: two"));
    kubectl.run("delete deployment many");
    kubectl.until("quota two", "{.status.used.pods}", "0");
}

fn endpoints(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-endpoints");
    kubectl.apply(&workload("Deployment", "web", 2));
    kubectl.run("expose deployment web --port=80");
    let slices = "get endpointslices -l kubernetes.io/service-name=web -o jsonpath={.items[*].endpoints[*].addresses[0]}";
    kubectl.eventually(slices, |out| out.split_whitespace().count() == 2);
    kubectl.eventually("get endpoints web -o jsonpath={.subsets[*].addresses[*].ip}", |out| {
        out.split_whitespace().count() == 2
    });
    kubectl.run("scale deployment web --replicas=0");
    kubectl.eventually(slices, |out| out.trim().is_empty());
    kubectl.run("delete service web");
    count(&kubectl, "endpointslices", 0);
    // Endpoints that a user writes are mirrored.
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"},
        "spec": {"ports": [{"port": 80}]}}));
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "far"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]}));
    kubectl.eventually("get endpointslices -o jsonpath={.items[*].endpoints[*].addresses[0]}", |out| {
        out == "192.0.2.1"
    });
}

fn garbage(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-garbage");
    for name in ["foreground", "background", "orphan"] {
        kubectl.apply(&workload("Deployment", name, 1));
        kubectl.until(&format!("deployment {name}"), "{.status.readyReplicas}", "1");
        kubectl.run(&format!("delete deployment {name} --cascade={name}"));
        let left = usize::from(name == "orphan");
        count(&kubectl, &format!("replicasets -l app={name}"), left);
        count(&kubectl, &format!("pods -l app={name}"), left);
    }
    assert_eq!(kubectl.path("replicasets -l app=orphan", "{.items[0].metadata.ownerReferences}"), "");
}

fn budget(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-budget");
    kubectl.apply(&workload("Deployment", "web", 2));
    kubectl.run("create pdb web --selector=app=web --min-available=2");
    kubectl.until("pdb web", "{.status.currentHealthy}", "2");
    let pod = kubectl.path("pods -l app=web", "{.items[0].metadata.name}");
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}).to_string();
    let evict = format!("create --raw /api/v1/namespaces/tour-budget/pods/{pod}/eviction -f -");
    let why = kubectl.with_fails(&evict, &eviction);
    assert!(why.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{why}");
    kubectl.run(["patch", "pdb", "web", "-p", r#"{"spec":{"minAvailable":1}}"#]);
    kubectl.until("pdb web", "{.status.disruptionsAllowed}", "1");
    kubectl.with(&evict, &eviction);
    kubectl.eventually("get pods -l app=web -o name", |out| !out.contains(&pod) && out.lines().count() == 2);
}

fn autoscaler(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-autoscaler");
    kubectl.apply(&workload("Deployment", "web", 1));
    kubectl.apply(&json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"}, "spec": {"minReplicas": 2, "maxReplicas": 4,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}}));
    // Below its minimum it scales without any metrics.
    kubectl.until("deployment web", "{.spec.replicas}", "2");
    kubectl.until("hpa web", r#"{.status.conditions[?(@.type=="AbleToScale")].status}"#, "True");
    kubectl.until(
        "hpa web",
        r#"{.status.conditions[?(@.type=="ScalingActive")].reason}"#,
        "FailedGetResourceMetric",
    );
}

/// Pods leave a node that is tainted, and a node that is deleted.
fn taints(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-taints");
    kubectl.apply(&workload("Deployment", "web", 2));
    kubectl.run("rollout status deployment/web --timeout=60s");
    let node = kubectl.path("pods -l app=web", "{.items[0].spec.nodeName}");
    kubectl.run(&format!("taint node {node} tour=out:NoExecute"));
    let places =
        "get pods -l app=web --field-selector=status.phase=Running -o jsonpath={.items[*].spec.nodeName}";
    kubectl.eventually(places, |out| out.split_whitespace().count() == 2 && !out.contains(&node));
    kubectl.run(&format!("taint node {node} tour-"));
}

fn aggregated_roles(admin: &Kubectl) {
    admin.apply(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "tour-part", "labels": {"tour": "part"}},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}));
    admin.apply(&json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "tour-whole"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"tour": "part"}}]}}));
    admin.until("clusterrole tour-whole", "{.rules[0].resources[0]}", "pods");
    let who =
        "get clusterrole tour-whole --show-managed-fields -o jsonpath={.metadata.managedFields[*].manager}";
    assert!(admin.run(who).contains("clusterrole-aggregation-controller"));
}

fn namespace_deletion(admin: &Kubectl) {
    let kubectl = namespace(admin, "tour-deleted");
    kubectl.apply(&workload("Deployment", "web", 2));
    kubectl.run("create configmap some --from-literal=a=b");
    admin.run("delete namespace tour-deleted --timeout=60s");
    assert!(admin.fails("get namespace tour-deleted").contains("NotFound"));
}
