//! The next step of a simulated pod: decided from the pod and the time.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;
use serde_json::{Value, json};

use super::{EXIT_CODE_ANNOTATION, RUN_SECONDS_ANNOTATION};

/// What to do with a pod now.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Nothing,
    Start,
    /// The pod was marked as not ready when its node was lost: set it to Ready again.
    Reassure,
    /// Decide again after this time.
    Later(Duration),
    Finish {
        exit_code: i32,
    },
    /// The pod's containers have ended: remove the object.
    Remove,
}

pub fn decide(pod: &Pod, now: Timestamp) -> Action {
    if pod.metadata.deletion_timestamp.is_some() {
        // With a grace period of 0 the API server removes the object, once its finalizers are gone.
        return match pod.metadata.deletion_grace_period_seconds {
            Some(0) => Action::Nothing,
            _ => Action::Remove,
        };
    }
    match pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending") {
        "Pending" | "Unknown" | "" => Action::Start,
        "Running" if is_said_unready(pod) => Action::Reassure,
        "Running" => match run_time(pod) {
            None => Action::Nothing,
            Some(time) => {
                let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(now, |t| t.0);
                let age = Duration::try_from(now.duration_since(started)).unwrap_or_default();
                match time.checked_sub(age).filter(|left| !left.is_zero()) {
                    Some(left) => Action::Later(left),
                    None => Action::Finish { exit_code: exit_code(pod) },
                }
            }
        },
        _ => Action::Nothing,
    }
}

fn is_said_unready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && c.status == "False")
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Returns how long the pod's containers run, if they end at all.
pub fn run_time(pod: &Pod) -> Option<Duration> {
    let policy = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always");
    let seconds = annotation(pod, RUN_SECONDS_ANNOTATION)?.parse::<f64>().ok()?;
    (policy != "Always").then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

fn exit_code(pod: &Pod) -> i32 {
    annotation(pod, EXIT_CODE_ANNOTATION).and_then(|code| code.parse().ok()).unwrap_or(0)
}

pub fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// Returns the time in whole seconds, as the API stores times.
fn time(now: Timestamp) -> Value {
    serde_json::to_value(Time(now)).unwrap_or_default()
}

fn condition(
    old: Option<&PodStatus>,
    type_: &str,
    status: &str,
    reason: Option<&str>,
    now: Timestamp,
) -> Value {
    let is_same = |c: &&PodCondition| c.type_ == type_ && c.status == status;
    let kept = old.and_then(|s| s.conditions.as_ref()).and_then(|list| list.iter().find(is_same));
    let since = kept.and_then(|c| c.last_transition_time.clone()).map_or(now, |t| t.0);
    json!({"type": type_, "status": status, "lastProbeTime": null, "lastTransitionTime": time(since), "reason": reason})
}

fn conditions(pod: &Pod, ready: bool, running: bool, now: Timestamp) -> Value {
    let old = pod.status.as_ref();
    let word = |value: bool| if value { "True" } else { "False" };
    let done = (!running).then_some("PodCompleted");
    json!([
        condition(old, "PodReadyToStartContainers", word(running), None, now),
        condition(old, "Initialized", "True", done, now),
        condition(old, "Ready", word(ready), done, now),
        condition(old, "ContainersReady", word(ready), done, now),
        condition(old, "PodScheduled", "True", None, now),
    ])
}

fn container_id(pod: &Pod, container: &Container) -> String {
    format!("knarr-simulated://{}.{}", pod.uid(), container.name)
}

fn container_status(pod: &Pod, container: &Container, running: bool, state: Value) -> Value {
    let image = container.image.as_deref().unwrap_or("");
    json!({
        "name": container.name, "image": image, "imageID": image, "containerID": container_id(pod, container),
        "ready": running, "started": running, "restartCount": 0, "state": state, "lastState": {}
    })
}

fn running(pod: &Pod, container: &Container, now: Timestamp) -> Value {
    container_status(pod, container, true, json!({"running": {"startedAt": time(now)}}))
}

fn ended(pod: &Pod, container: &Container, exit_code: i32, from: Timestamp, now: Timestamp) -> Value {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    let mut status = container_status(
        pod,
        container,
        false,
        json!({"terminated": {
            "exitCode": exit_code, "reason": reason, "startedAt": time(from), "finishedAt": time(now),
            "containerID": container_id(pod, container)
        }}),
    );
    // An init container that has succeeded counts as ready.
    status["ready"] = json!(false);
    status
}

fn init_statuses(pod: &Pod, over: bool, now: Timestamp) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    let status = |c: &Container| match (c.restart_policy.as_deref() == Some("Always"), over) {
        (true, false) => running(pod, c, now),
        (true, true) => ended(pod, c, 0, now, now),
        (false, _) => {
            let mut status = ended(pod, c, 0, now, now);
            status["ready"] = json!(true);
            status
        }
    };
    containers.map(status).collect()
}

fn patch(pod: &Pod, mut status: Value, init: Vec<Value>) -> Value {
    if !init.is_empty() {
        status["initContainerStatuses"] = Value::Array(init);
    }
    json!({"metadata": {"uid": pod.uid()}, "status": status})
}

/// Returns the strategic merge patch of the status that sets the pod to Running and Ready.
pub fn started(pod: &Pod, host_ip: Ipv4Addr, pod_ip: Ipv4Addr, now: Timestamp) -> Value {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let statuses: Vec<Value> = containers.map(|c| running(pod, c, now)).collect();
    let status = json!({
        "phase": "Running",
        "conditions": conditions(pod, true, true, now),
        "hostIP": host_ip, "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip, "podIPs": [{"ip": pod_ip}],
        "startTime": time(now),
        "containerStatuses": statuses,
    });
    patch(pod, status, init_statuses(pod, false, now))
}

/// Returns the strategic merge patch of the status that sets a running pod to Ready again.
pub fn reassured(pod: &Pod, now: Timestamp) -> Value {
    patch(pod, json!({"conditions": conditions(pod, true, true, now)}), Vec::new())
}

/// Returns the strategic merge patch of the status that ends the pod.
pub fn finished(pod: &Pod, exit_code: i32, now: Timestamp) -> Value {
    let from = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(now, |t| t.0);
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let statuses: Vec<Value> = containers.map(|c| ended(pod, c, exit_code, from, now)).collect();
    let status = json!({
        "phase": if exit_code == 0 { "Succeeded" } else { "Failed" },
        "conditions": conditions(pod, false, false, now),
        "containerStatuses": statuses,
    });
    patch(pod, status, init_statuses(pod, true, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_to_do() {
        let started = "1970-01-01T00:01:40Z";
        let job = |seconds: &str, policy: &str| {
            json!({"metadata": {"annotations": {RUN_SECONDS_ANNOTATION: seconds, EXIT_CODE_ANNOTATION: "3"}},
                "spec": {"restartPolicy": policy, "containers": []},
                "status": {"phase": "Running", "startTime": started}})
        };
        let deleted = |grace: i64| json!({"metadata": {"deletionTimestamp": started, "deletionGracePeriodSeconds": grace}});
        let said = |ready: &str| json!({"metadata": {}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
        let table = [
            (json!({"metadata": {}}), Action::Start),
            (json!({"metadata": {}, "status": {"phase": "Pending"}}), Action::Start),
            (json!({"metadata": {}, "status": {"phase": "Running"}}), Action::Nothing),
            (json!({"metadata": {}, "status": {"phase": "Failed"}}), Action::Nothing),
            (said("True"), Action::Nothing),
            (said("False"), Action::Reassure),
            (deleted(30), Action::Remove),
            (deleted(0), Action::Nothing),
            (job("10", "Never"), Action::Later(Duration::from_secs(5))),
            (job("5", "OnFailure"), Action::Finish { exit_code: 3 }),
            (job("5", "Always"), Action::Nothing),
            (job("-1", "Never"), Action::Nothing),
        ];
        for (value, want) in table {
            assert_eq!(decide(&pod(value.clone()), at(105)), want, "{value}");
        }
    }

    #[test]
    fn statuses() {
        let pod = pod(json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "init", "image": "j"},
                {"name": "side", "image": "k", "restartPolicy": "Always"}]},
            "status": {"conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:01Z"}]}
        }));
        let patch = started(&pod, [1, 1, 1, 1].into(), [2, 2, 2, 2].into(), at(9));
        let status = &patch["status"];
        assert_eq!((&status["phase"], &status["podIP"]), (&json!("Running"), &json!("2.2.2.2")));
        assert_eq!(status["conditions"][4]["lastTransitionTime"], "1970-01-01T00:00:01Z");
        assert_eq!(status["containerStatuses"][0]["containerID"], "knarr-simulated://u.c");
        assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
        assert_eq!(status["initContainerStatuses"][1]["ready"], true);
        let patch = finished(&pod, 2, at(20));
        assert_eq!(patch["status"]["phase"], "Failed");
        assert_eq!(patch["status"]["conditions"][2]["reason"], "PodCompleted");
        assert_eq!(patch["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 2);
    }
}
