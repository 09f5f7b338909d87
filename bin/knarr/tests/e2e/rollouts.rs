//! Deployments from revision to revision.

use serde_json::json;

use crate::cluster::shared;
use crate::kubectl::Kubectl;
use crate::objects::web;

fn history(kubectl: &Kubectl) -> Vec<(String, String)> {
    let text = kubectl.run("rollout history deployment/web");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("deployment.apps/web "), "{text}");
    let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["REVISION", "CHANGE-CAUSE"], "{text}");
    let rows = lines.filter_map(|l| l.split_once(char::is_whitespace));
    rows.map(|(revision, cause)| (revision.to_owned(), cause.trim().to_owned())).collect()
}

fn image(kubectl: &Kubectl) -> String {
    kubectl.path("deployment web", "{.spec.template.spec.containers[0].image}")
}

#[test]
fn c3_history_undo_and_renumbering() {
    let kubectl = shared().namespace("c3-history");
    let done = || kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.apply(&web("web", 2));
    done();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(history(&kubectl), [pair("1", "<none>")]);

    assert_eq!(
        kubectl.run("set image deployment/web web=knarr.local/web:v2"),
        "deployment.apps/web image updated\n"
    );
    kubectl.run(["annotate", "deployment", "web", "kubernetes.io/change-cause=second release"]);
    done();
    kubectl.eventually("rollout history deployment/web", |out| out.contains("second release"));
    assert_eq!(history(&kubectl), [pair("1", "<none>"), pair("2", "second release")]);
    let detail = kubectl.run("rollout history deployment/web --revision=2");
    assert!(detail.contains("deployment.apps/web with revision #2"), "{detail}");
    assert!(detail.contains("Image:\tknarr.local/web:v2"), "{detail}");

    assert_eq!(kubectl.run("rollout undo deployment/web"), "deployment.apps/web rolled back\n");
    done();
    assert_eq!(image(&kubectl), "knarr.local/web:v1");
    let now: Vec<String> = history(&kubectl).into_iter().map(|(revision, _)| revision).collect();
    assert_eq!(now, ["2", "3"], "the revision that is gone back to gets the newest number");
    assert_eq!(
        kubectl.path("deployment web", r"{.metadata.annotations.deployment\.kubernetes\.io/revision}"),
        "3"
    );

    kubectl.run("rollout undo deployment/web --to-revision=2");
    done();
    assert_eq!(image(&kubectl), "knarr.local/web:v2");
    let now: Vec<String> = history(&kubectl).into_iter().map(|(revision, _)| revision).collect();
    assert_eq!(now, ["3", "4"]);
    assert!(
        kubectl
            .fails("rollout undo deployment/web --to-revision=9")
            .contains("unable to find specified revision 9 in history")
    );
}

#[test]
fn c2_rolling_update_keeps_serving() {
    let cluster = shared();
    let kubectl = cluster.namespace("c2-rolling");
    let mut deployment = web("web", 3);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    kubectl.apply(&deployment);
    kubectl.run("rollout status deployment/web --timeout=90s");
    let watch = kubectl.background(
        "get deployment web -w --no-headers -o custom-columns=R:.status.replicas,A:.status.availableReplicas",
    );
    kubectl.run("set image deployment/web web=knarr.local/web:v2");
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.eventually("get pods -l app=web -o name", |out| out.lines().count() == 3);
    let seen = watch.until(|out| out.lines().count() > 3);
    for line in seen.lines() {
        let counts: Vec<u32> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        // Each ReplicaSet reports its own number of pods: the old one may not have reported yet that one of
        // them is terminating.
        assert!(
            counts.len() == 2 && counts[0] <= 5 && counts[1] >= 3,
            "more than one too many, or too few:\n{seen}"
        );
    }
    for ip in kubectl.path("pods -l app=web", "{.items[*].status.podIP}").split(' ') {
        assert!(cluster.http(ip).ends_with(" v2\n"));
    }
    let sets = kubectl.path("replicasets --sort-by=.metadata.creationTimestamp", "{.items[*].spec.replicas}");
    assert_eq!(sets, "0 3");
}

#[test]
fn c2_recreate_stops_the_old_pods_first() {
    let kubectl = shared().namespace("c2-recreate");
    let mut deployment = web("web", 2);
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    kubectl.apply(&deployment);
    kubectl.run("rollout status deployment/web --timeout=90s");
    let watch = kubectl.background("get deployment web -w --no-headers -o custom-columns=R:.status.replicas");
    kubectl.run("set image deployment/web web=knarr.local/web:v2");
    kubectl.run("rollout status deployment/web --timeout=90s");
    let seen = watch.until(|out| out.lines().filter(|l| l.trim() == "2").count() > 1);
    let counts: Vec<u32> = seen.lines().filter_map(|l| l.trim().parse().ok()).collect();
    assert!(counts.iter().all(|c| *c <= 2), "old and new side by side:\n{seen}");
}

#[test]
fn c3_pause_and_resume() {
    let kubectl = shared().namespace("c3-pause");
    let mut deployment = web("web", 4);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    kubectl.apply(&deployment);
    kubectl.run("rollout status deployment/web --timeout=90s");
    assert_eq!(kubectl.run("rollout pause deployment/web"), "deployment.apps/web paused\n");
    kubectl.run("set image deployment/web web=knarr.local/web:v2");
    kubectl.eventually("get deployment web -o json", |out| {
        let object: serde_json::Value = serde_json::from_str(out).unwrap_or_default();
        object["status"]["observedGeneration"] == object["metadata"]["generation"]
            && object["metadata"]["generation"].is_number()
    });
    assert_eq!(
        kubectl.run("get replicasets -o name").lines().count(),
        1,
        "nothing is rolled out while paused"
    );
    assert!(
        kubectl
            .fails("rollout undo deployment/web --to-revision=1")
            .contains("you cannot rollback a paused deployment")
    );
    assert_eq!(kubectl.run("rollout resume deployment/web"), "deployment.apps/web resumed\n");
    kubectl.run("rollout status deployment/web --timeout=90s");
    assert_eq!(kubectl.path("deployment web", "{.status.updatedReplicas}"), "4");
    assert_eq!(kubectl.run("rollout restart deployment/web"), "deployment.apps/web restarted\n");
    kubectl.run("rollout status deployment/web --timeout=90s");
    assert_eq!(kubectl.run("get replicasets -o name").lines().count(), 3);
}

#[test]
fn c3_failed_rollout_keeps_the_old_release() {
    let kubectl = shared().namespace("c3-failed");
    let mut deployment = web("web", 2);
    deployment["spec"]["progressDeadlineSeconds"] = json!(3);
    deployment["spec"]["revisionHistoryLimit"] = json!(1);
    kubectl.apply(&deployment);
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.run("set image deployment/web web=knarr.local/web:missing");
    let error = kubectl.fails("rollout status deployment/web --timeout=60s");
    assert!(error.contains("deployment \"web\" exceeded its progress deadline"), "{error}");
    let condition = kubectl.path("deployment web", "{.status.conditions[?(@.type=='Progressing')].reason}");
    assert_eq!(condition, "ProgressDeadlineExceeded");
    assert_eq!(kubectl.path("deployment web", "{.status.availableReplicas}"), "2");
    kubectl.run("rollout undo deployment/web");
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.run("set image deployment/web web=knarr.local/web:v2");
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.eventually("get replicasets -o name", |out| out.lines().count() == 2);
}

#[test]
fn c1_replica_set_keeps_the_count() {
    let kubectl = shared().namespace("c1");
    kubectl.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "set"},
        "spec": {
            "replicas": 2,
            "selector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]},
            "template": {"metadata": {"labels": {"tier": "a"}}, "spec": web("x", 1)["spec"]["template"]["spec"]},
        },
    }));
    kubectl.until("replicaset set", "{.status.readyReplicas}", "2");
    let victim = kubectl.path("pods", "{.items[0].metadata.name}");
    kubectl.run(&format!("delete pod {victim}"));
    kubectl.until("replicaset set", "{.status.readyReplicas}", "2");
    assert!(kubectl.fails(&format!("get pod {victim}")).contains("NotFound"));
    let released = kubectl.path("pods", "{.items[0].metadata.name}");
    kubectl.run(&format!("label pod {released} tier=other --overwrite"));
    kubectl.eventually("get pods -l tier=a -o name", |out| out.lines().count() == 2);
    assert_eq!(kubectl.path(&format!("pod {released}"), "{.metadata.ownerReferences}"), "");
    kubectl.run(&format!("label pod {released} tier=b --overwrite"));
    kubectl.eventually("get pods -o name", |out| out.lines().count() == 2);
}
