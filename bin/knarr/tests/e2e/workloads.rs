//! The controllers besides Deployment: ReplicationController, DaemonSet, StatefulSet, Job, CronJob,
//! PodDisruptionBudget, service account tokens.

use serde_json::{Value, json};

use crate::cluster::shared;
use crate::kubectl::Kubectl;
use crate::objects::{SLEEP, container, web};

fn template(name: &str, script: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container(script)]},
    })
}

fn workload(kind: &str, name: &str, extra: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, SLEEP)});
    spec.as_object_mut().expect("a map").extend(extra.as_object().expect("a map").clone());
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn job(name: &str, script: &str, extra: Value) -> Value {
    let mut template = template(name, script);
    template["spec"]["restartPolicy"] = json!("Never");
    let mut spec = json!({"template": template});
    spec.as_object_mut().expect("a map").extend(extra.as_object().expect("a map").clone());
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
}

fn names(kubectl: &Kubectl, label: &str) -> Vec<String> {
    let text = kubectl.path(&format!("pods -l {label}"), "{.items[*].metadata.name}");
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn c1_a_replication_controller_keeps_the_count() {
    let kubectl = shared().namespace("c1-rc");
    let rc = json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"},
        "spec": {"replicas": 2, "selector": {"app": "rc"}, "template": template("rc", SLEEP)}});
    kubectl.apply(&rc);
    kubectl.until("rc rc", "{.status.readyReplicas}", "2");
    let before = names(&kubectl, "app=rc");
    kubectl.run(&format!("delete pod {} --wait=false", before[0]));
    kubectl.eventually("get pods -l app=rc --field-selector=status.phase=Running -o name", |out| {
        out.lines().count() == 2 && !out.contains(&before[0])
    });
    // A pod whose label is removed is replaced, and then left alone.
    kubectl.run(&format!("label pod {} app=free --overwrite", before[1]));
    kubectl.eventually("get pods -l app=rc -o name", |out| {
        out.lines().count() == 2 && !out.contains(&before[1])
    });
    assert_eq!(kubectl.path(&format!("pod {}", before[1]), "{.metadata.ownerReferences}"), "");
    kubectl.run("scale rc rc --replicas=0");
    kubectl.eventually("get pods -l app=rc -o name", str::is_empty);
}

#[test]
fn c4_a_daemon_set_runs_on_the_node_rolls_and_goes_back() {
    let kubectl = shared().namespace("c4-daemon");
    kubectl.apply(&workload("DaemonSet", "d", json!({})));
    kubectl.run("rollout status daemonset/d --timeout=90s");
    let first = kubectl.run("get daemonset d --no-headers");
    assert_eq!(first.split_whitespace().take(6).collect::<Vec<_>>(), ["d", "1", "1", "1", "1", "1"]);
    kubectl.run("set env daemonset/d ROUND=2");
    kubectl.run("rollout status daemonset/d --timeout=90s");
    let history = kubectl.run("rollout history daemonset/d");
    assert_eq!(history.lines().filter(|l| l.starts_with(['1', '2'])).count(), 2, "{history}");
    kubectl.run("rollout undo daemonset/d");
    kubectl.run("rollout status daemonset/d --timeout=90s");
    assert_eq!(kubectl.path("daemonset d", "{.spec.template.spec.containers[0].env}"), "");
    let history = kubectl.run("rollout history daemonset/d");
    assert!(history.contains("\n3 ") && !history.contains("\n1 "), "{history}");
    // A node selector that matches no node removes the pods.
    kubectl.run([
        "patch",
        "daemonset",
        "d",
        "-p",
        r#"{"spec":{"template":{"spec":{"nodeSelector":{"no":"where"}}}}}"#,
    ]);
    kubectl.until("daemonset d", "{.status.desiredNumberScheduled}", "0");
    kubectl.eventually("get pods -l app=d -o name", str::is_empty);
}

#[test]
fn c5_jobs_count_index_suspend_and_fail() {
    let kubectl = shared().namespace("c5-jobs");
    kubectl.apply(&job("three", "exit 0", json!({"completions": 3, "parallelism": 2})));
    kubectl.run("wait --for=condition=complete job/three --timeout=90s");
    assert_eq!(kubectl.path("job three", "{.status.succeeded}"), "3");
    kubectl.event("three", "Completed");

    let script = "echo index $JOB_COMPLETION_INDEX";
    kubectl.apply(&job(
        "indexed",
        script,
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"}),
    ));
    kubectl.run("wait --for=condition=complete job/indexed --timeout=90s");
    assert_eq!(kubectl.path("job indexed", "{.status.completedIndexes}"), "0-2");
    let logs = kubectl.run("logs -l job-name=indexed --tail=-1");
    let mut lines: Vec<&str> = logs.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["index 0", "index 1", "index 2"]);

    kubectl.apply(&job("broken", "exit 3", json!({"backoffLimit": 0})));
    kubectl.run("wait --for=condition=failed job/broken --timeout=90s");
    assert_eq!(
        kubectl.path("job broken", r#"{.status.conditions[?(@.type=="Failed")].reason}"#),
        "BackoffLimitExceeded"
    );

    kubectl.apply(&job("held", "exit 0", json!({"suspend": true})));
    kubectl.until("job held", r#"{.status.conditions[?(@.type=="Suspended")].status}"#, "True");
    assert_eq!(names(&kubectl, "job-name=held"), [""; 0]);
    kubectl.run(["patch", "job", "held", "-p", r#"{"spec":{"suspend":false}}"#]);
    kubectl.run("wait --for=condition=complete job/held --timeout=90s");

    kubectl.apply(&job("brief", "exit 0", json!({"ttlSecondsAfterFinished": 1})));
    kubectl.run("wait --for=delete job/brief --timeout=90s");
    kubectl.eventually("get pods -l job-name=brief -o name", str::is_empty);
}

#[test]
fn c6_a_cron_job_starts_jobs_and_is_suspended() {
    let kubectl = shared().namespace("c6-cron");
    let mut template = template("tick", "exit 0");
    template["spec"]["restartPolicy"] = json!("OnFailure");
    kubectl.apply(&json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}}));
    let made = kubectl.run("create job by-hand --from=cronjob/tick");
    assert_eq!(made, "job.batch/by-hand created\n");
    kubectl.run("wait --for=condition=complete job/by-hand --timeout=90s");
    let listed = kubectl.eventually("get jobs -o name", |out| out.lines().any(|l| l.contains("/tick-")));
    let started = listed.lines().find(|l| l.contains("/tick-")).unwrap_or_default();
    kubectl.run(&format!("wait --for=condition=complete {started} --timeout=90s"));
    kubectl.event("tick", "SawCompletedJob");
    kubectl.run(["patch", "cronjob", "tick", "-p", r#"{"spec":{"suspend":true}}"#]);
    assert_eq!(kubectl.path("cronjob tick", "{.spec.suspend}"), "true");
    assert_ne!(kubectl.path("cronjob tick", "{.status.lastScheduleTime}"), "");
    let old =
        json!({"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": "old"}, "spec": {}});
    let error = kubectl.with_fails("apply -f -", &old.to_string());
    assert!(error.contains(r#"no matches for kind "CronJob" in version "batch/v1beta1""#), "{error}");
}

#[test]
fn c7_a_stateful_set_has_ordered_pods_with_names_that_stay() {
    let kubectl = shared().namespace("c7-stateful");
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"clusterIP": "None", "selector": {"app": "s"}, "ports": [{"port": 80}]}}));
    kubectl.apply(&workload("StatefulSet", "s", json!({"serviceName": "s", "replicas": 2})));
    kubectl.run("rollout status statefulset/s --timeout=90s");
    assert_eq!(names(&kubectl, "app=s"), ["s-0", "s-1"]);
    let created = |pod: &str| kubectl.path(&format!("pod {pod}"), "{.status.startTime}");
    assert!(created("s-0") <= created("s-1"));
    assert_eq!(kubectl.run("exec s-1 -- hostname"), "s-1\n");
    let domain = format!("s.{}.svc.cluster.local", kubectl.namespace());
    kubectl.eventually(["exec", "s-0", "--", "nslookup", &format!("s-1.{domain}")], |out| {
        out.contains(&kubectl.path("pod s-1", "{.status.podIP}"))
    });
    let uid = kubectl.path("pod s-0", "{.metadata.uid}");
    kubectl.run("delete pod s-0");
    kubectl.eventually("get pod s-0 -o jsonpath={.metadata.uid}", |out| !out.is_empty() && out != uid);
    kubectl.run("rollout status statefulset/s --timeout=90s");
    kubectl.run("set env statefulset/s ROUND=2");
    kubectl.run("rollout status statefulset/s --timeout=90s");
    kubectl.run("rollout undo statefulset/s");
    kubectl.run("rollout status statefulset/s --timeout=90s");
    kubectl.run("scale statefulset s --replicas=1");
    kubectl.eventually("get pods -l app=s -o name", |out| out == "pod/s-0\n");
    kubectl.run("delete statefulset s --cascade=orphan");
    assert_eq!(names(&kubectl, "app=s"), ["s-0"]);
}

#[test]
fn e5_a_budget_holds_back_evictions() {
    let kubectl = shared().namespace("e5-budget");
    kubectl.apply(&web("web", 2));
    kubectl
        .apply(&json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}}));
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.until("pdb b", "{.status.currentHealthy}", "2");
    assert_eq!(kubectl.path("pdb b", "{.status.disruptionsAllowed}"), "0");
    let pod = names(&kubectl, "app=web").remove(0);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod, "namespace": kubectl.namespace()}});
    let path = format!("create --raw /api/v1/namespaces/{}/pods/{pod}/eviction -f -", kubectl.namespace());
    let error = kubectl.with_fails(&path, &eviction.to_string());
    assert!(error.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{error}");
    kubectl.run(["patch", "pdb", "b", "-p", r#"{"spec":{"minAvailable":"50%"}}"#]);
    kubectl.until("pdb b", "{.status.disruptionsAllowed}", "1");
    kubectl.with(&path, &eviction.to_string());
    kubectl.eventually("get pods -l app=web -o name", |out| !out.contains(&pod));
    kubectl.until("pdb b", "{.status.disruptionsAllowed}", "1");
}

#[test]
fn a1_a_secret_gets_the_token_of_its_service_account() {
    let cluster = shared();
    let kubectl = cluster.namespace("a1-token");
    kubectl.run("create serviceaccount robot");
    kubectl
        .apply(&json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "robot", "annotations": {"kubernetes.io/service-account.name": "robot"}}}));
    kubectl.eventually("get secret robot -o jsonpath={.data.token}", |out| !out.is_empty());
    assert_ne!(kubectl.path("secret robot", r"{.data.ca\.crt}"), "");
    assert!(kubectl.run("describe secret robot").contains("token:"));
    kubectl.run("delete serviceaccount robot");
    kubectl.run("wait --for=delete secret/robot --timeout=90s");
}
