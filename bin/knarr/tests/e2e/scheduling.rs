//! Where pods are scheduled, and the messages when no node fits.

use serde_json::{Value, json};

use std::time::Duration;

use crate::cluster::{Cluster, knarr, shared};
use crate::kubectl::Kubectl;
use crate::objects::{sleeper, web};
use crate::sandbox::{succeeded, wait_for};

fn with(name: &str, field: &str, value: Value) -> Value {
    let mut object = sleeper(name);
    object["spec"][field] = value;
    object
}

#[test]
fn d2_reasons_are_told() {
    let kubectl = shared().namespace("d2");
    let mut big = sleeper("too-big");
    big["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1k", "memory": "10Ti", "example.com/widgets": "1"}, "limits": {"example.com/widgets": "1"}});
    kubectl.apply(&big);
    kubectl.apply(&with("nowhere", "nodeSelector", json!({"disk": "ssd"})));
    let mut port = sleeper("port-1");
    port["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 18099}]);
    kubectl.apply(&port);
    kubectl.ready("port-1");
    port["metadata"]["name"] = json!("port-2");
    kubectl.apply(&port);
    for (name, reason) in [
        (
            "too-big",
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/widgets, 1 Insufficient memory.",
        ),
        ("nowhere", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        ("port-2", "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."),
    ] {
        let message = kubectl.event(name, "FailedScheduling");
        assert!(message.starts_with(reason), "{name}: {message}");
        let condition = kubectl.json(&format!("pod {name}"));
        let conditions = condition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let scheduled = conditions.iter().find(|c| c["type"] == "PodScheduled").cloned().unwrap_or_default();
        assert_eq!((&scheduled["status"], &scheduled["reason"]), (&json!("False"), &json!("Unschedulable")));
    }
    kubectl.run("delete pod port-1 --wait=false");
    kubectl.ready("port-2");
}

#[test]
fn d4_node_name_bypasses_and_selector_terms_are_anded() {
    let kubectl = shared().namespace("d4");
    kubectl.apply(&with("direct", "nodeName", json!("knarr-test")));
    kubectl.ready("direct");
    let events =
        kubectl.run("get events --field-selector involvedObject.name=direct -o custom-columns=R:.reason");
    assert!(!events.contains("Scheduled"), "{events}");
    kubectl.apply(&with(
        "both",
        "nodeSelector",
        json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": "knarr-test"}),
    ));
    kubectl.ready("both");
    kubectl.apply(&with(
        "one-of-two",
        "nodeSelector",
        json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": "other"}),
    ));
    kubectl.event("one-of-two", "FailedScheduling");
}

#[test]
fn d5_node_affinity_operators() {
    let kubectl = shared().namespace("d5");
    let affinity = |name: &str, expression: Value| {
        with(
            name,
            "affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}),
        )
    };
    let os = "kubernetes.io/os";
    for (name, expression) in [
        ("in", json!({"key": os, "operator": "In", "values": ["linux", "plan9"]})),
        ("not-in", json!({"key": os, "operator": "NotIn", "values": ["plan9"]})),
        ("exists", json!({"key": os, "operator": "Exists"})),
        ("does-not-exist", json!({"key": "none", "operator": "DoesNotExist"})),
    ] {
        kubectl.apply(&affinity(name, expression));
        kubectl.ready(name);
    }
    kubectl.apply(&affinity("greater", json!({"key": "cores", "operator": "Gt", "values": ["4"]})));
    kubectl.event("greater", "FailedScheduling");
    let error = kubectl.with_fails(
        "create -f -",
        &affinity("bad", json!({"key": "cores", "operator": "Near", "values": ["4"]})).to_string(),
    );
    assert!(
        error
            .contains("matchExpressions[0].operator: Invalid value: \"Near\": not a valid selector operator"),
        "{error}"
    );
}

#[test]
fn d11_another_schedulers_pods_are_left_alone() {
    let kubectl = shared().namespace("d11");
    kubectl.apply(&with("theirs", "schedulerName", json!("other")));
    kubectl.apply(&sleeper("ours"));
    kubectl.ready("ours");
    assert_eq!(kubectl.path("pod theirs", "{.spec.nodeName}"), "");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "theirs"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "knarr-test"},
    });
    let path = "/api/v1/namespaces/d11/pods/theirs/binding";
    kubectl.with(&format!("create --raw {path} -f -"), &binding.to_string());
    kubectl.ready("theirs");
    let error = kubectl.with_fails(&format!("create --raw {path} -f -"), &binding.to_string());
    assert!(error.contains("pod theirs is already assigned to node \"knarr-test\""), "{error}");
}

#[test]
fn d11_a_scheduler_of_pythons_client_works_beside_ours() {
    let cluster = shared();
    let kubectl = cluster.namespace("d11-python");
    for name in ["one", "two"] {
        kubectl.apply(&with(name, "schedulerName", json!("python")));
    }
    kubectl.apply(&sleeper("ours"));
    let said = cluster.python("scheduler.py", &[kubectl.namespace(), "python", "2"]);
    assert_eq!(said, "ok\n");
    ["one", "two", "ours"].into_iter().for_each(|pod| kubectl.ready(pod));
    let events =
        kubectl.run("get events --field-selector reason=Scheduled -o custom-columns=:.involvedObject.name");
    assert_eq!(events.trim(), "ours", "ours tells of its own alone");
}

#[test]
fn d9_priority_classes_resolve() {
    let kubectl = shared().namespace("d9");
    kubectl.apply(&with("system", "priorityClassName", json!("system-node-critical")));
    assert_eq!(kubectl.path("pod system", "{.spec.priority}"), "2000001000");
    let error = kubectl
        .with_fails("create -f -", &with("none", "priorityClassName", json!("unheard-of")).to_string());
    assert!(error.contains("no PriorityClass with name unheard-of was found"), "{error}");
}

#[test]
fn d2_scheduling_is_explained_and_tried_out() {
    let cluster = shared();
    let kubectl = cluster.namespace("explained");
    kubectl.apply(&with("nowhere", "nodeSelector", json!({"disk": "ssd"})));
    kubectl.event("nowhere", "FailedScheduling");
    kubectl.apply(&sleeper("here"));
    kubectl.ready("here");
    let ask = |words: &[&str]| {
        let mut command = cluster.sandbox.command(knarr());
        command.args(words).args(["--namespace", "explained", "--kubeconfig"]).arg(cluster.kubeconfig());
        succeeded(&format!("knarr {}", words.join(" ")), &command.output().expect("nsenter(1) of util-linux"))
    };
    let table = ask(&["explain", "pod", "nowhere"]);
    assert!(
        table.contains("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        "{table}"
    );
    let (_, changes) = table.split_once("What would have to change:\n").unwrap_or_default();
    assert!(changes.contains("\n    knarr-test: the label disk=ssd; it has no label disk\n"), "{table}");
    let said: Value = serde_json::from_str(&ask(&["explain", "pod", "here", "-o", "json"])).expect("JSON");
    assert_eq!((&said["node"], &said["fits"]), (&json!("knarr-test"), &json!(1)));

    let file = cluster.sandbox.path("explained.json");
    let two = json!({"apiVersion": "v1", "kind": "List", "items": [web("web", 2), sleeper("one")]});
    std::fs::write(&file, two.to_string()).expect("file");
    let file = file.to_string_lossy();
    let simulated = ask(&["simulate", "-f", &file, "-o", "json"]);
    let simulated: Value = serde_json::from_str(&simulated).expect("JSON");
    assert_eq!((&simulated["placed"], &simulated["pods"][0]["node"]), (&json!(3), &json!("knarr-test")));
    assert_eq!(kubectl.run("get deployments"), "", "nothing was made");

    // The same answers from a saved cluster, without a server.
    let saved = cluster.sandbox.path("saved.json");
    std::fs::write(&saved, kubectl.run("get nodes,pods,namespaces --all-namespaces -o json")).expect("file");
    let table = ask(&["simulate", "-f", &file, "--snapshot", &saved.to_string_lossy()]);
    assert!(table.contains("3 placed, 0 without a node, 0 preempted"), "{table}");
    let all = cluster.sandbox.path("all.json");
    let all = all.to_string_lossy();
    assert_eq!(ask(&["simulate", "--save", &all]), "");
    let later: Value =
        serde_json::from_str(&ask(&["simulate", "-f", &file, "--snapshot", &all, "-o", "json"]))
            .expect("JSON");
    assert_eq!(later, simulated);
    let later = ask(&["explain", "pod", "nowhere", "--snapshot", &all]);
    assert!(later.contains("knarr-test: the label disk=ssd"), "{later}");
    let written = ask(&["explain", "pod", "-f", &file]);
    assert_eq!(
        written.matches("not bound, priority 0, of scheduler default-scheduler").count(),
        2,
        "{written}"
    );
}

/// Asks for explanations and simulations through the API, as a user with the right to do so.
#[test]
fn d2_scheduling_is_asked_about_through_the_api() {
    let kubectl = shared().namespace("asked");
    kubectl.apply(&with("nowhere", "nodeSelector", json!({"disk": "ssd"})));
    let of = |kind: &str, spec: Value| {
        json!({"apiVersion": "scheduling.knarr.io/v1alpha1", "kind": kind, "metadata": {}, "spec": spec})
            .to_string()
    };
    let answer = |question: &str| -> Value {
        serde_json::from_str(&kubectl.with("create -o json -f -", question)).expect("JSON")
    };
    let pending = answer(&of("PodExplanation", json!({"podName": "nowhere"})));
    let words = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    assert!(pending["status"]["message"].as_str().unwrap_or_default().starts_with(words), "{pending}");
    assert_eq!(pending["spec"], json!({"podName": "nowhere"}), "the question comes back");
    let objection = &pending["status"]["changes"][0]["objections"][0];
    assert_eq!(objection["plugin"], "NodeAffinity");
    assert_eq!(objection["remedies"], json!(["the label disk=ssd; it has no label disk"]));
    let written = answer(&of("PodExplanation", json!({"manifest": sleeper("written")})));
    assert_eq!((&written["status"]["fits"], &written["status"]["node"]), (&json!(1), &json!(null)));
    let placed = answer(&of("Simulation", json!({"manifests": [web("web", 2), sleeper("one")]})));
    assert_eq!(
        (&placed["status"]["placed"], &placed["status"]["pods"][0]["node"]),
        (&json!(3), &json!("knarr-test"))
    );
    assert_eq!(kubectl.run("get deployments"), "", "nothing was made");

    let error = kubectl.with_fails("create -f -", &of("PodExplanation", json!({"podName": "nobody"})));
    assert!(error.contains("pods \"nobody\" not found"), "{error}");
    let error = kubectl.with_fails("create -f -", &of("Simulation", json!({"manifests": "all"})));
    assert!(error.contains("spec.manifests: Required value"), "{error}");
    let mut wrong = sleeper("wrong");
    wrong["spec"]["containers"] = json!("none");
    let error = kubectl.with_fails("create -f -", &of("PodExplanation", json!({"manifest": wrong})));
    assert!(error.contains("spec.containers: invalid type: string \"none\""), "{error}");
    // The API is authorized like any other.
    kubectl.run("create serviceaccount asker");
    let name = format!("system:serviceaccount:{}:asker", kubectl.namespace());
    let question = of("PodExplanation", json!({"podName": "nowhere"}));
    let ask = format!("create -o jsonpath={{.status.message}} --as={name} -f -");
    let refused = kubectl.with_fails(&ask, &question);
    assert!(refused.contains("cannot create resource \"podexplanations\" in API group"), "{refused}");
    kubectl.run("create role asker --verb=create --resource=podexplanations.scheduling.knarr.io");
    kubectl.run(&format!(
        "create rolebinding asker --role=asker --serviceaccount={}:asker",
        kubectl.namespace()
    ));
    let can = format!("auth can-i create podexplanations.scheduling.knarr.io --as={name}");
    kubectl.eventually(&can, |out| out.starts_with("yes"));
    // The answer reveals the whole cluster, so a right in one namespace is not enough.
    let refused = kubectl.with_fails(&ask, &question);
    assert!(refused.contains("at the cluster scope"), "{refused}");
    let role = format!("asker-{}", kubectl.namespace());
    kubectl.run(&format!(
        "create clusterrole {role} --verb=create --resource=podexplanations.scheduling.knarr.io"
    ));
    kubectl.run(&format!(
        "create clusterrolebinding {role} --clusterrole={role} --serviceaccount={}:asker",
        kubectl.namespace()
    ));
    kubectl.eventually(&format!("{can} --all-namespaces"), |out| out.starts_with("yes"));
    assert!(kubectl.with(&ask, &question).starts_with(words));
    kubectl.run(&format!("delete clusterrolebinding,clusterrole {role}"));
}

fn labelled(name: &str, app: &str, affinity: Value) -> Value {
    let mut pod = with(name, "affinity", affinity);
    pod["metadata"]["labels"] = json!({"app": app});
    pod
}

#[test]
fn d6_pods_near_to_and_away_from_others() {
    let kubectl = shared().namespace("d6");
    let term = |app: &str| {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"app": app}}}]})
    };
    kubectl.apply(&labelled("lonely", "x", json!({"podAffinity": term("store")})));
    let message = kubectl.event("lonely", "FailedScheduling");
    assert!(
        message.starts_with("0/1 nodes are available: 1 node(s) didn't match pod affinity rules."),
        "{message}"
    );
    kubectl.apply(&labelled("store-1", "store", json!({"podAntiAffinity": term("store")})));
    kubectl.ready("store-1");
    kubectl.ready("lonely");
    kubectl.apply(&labelled("store-2", "store", json!({"podAntiAffinity": term("store")})));
    let message = kubectl.event("store-2", "FailedScheduling");
    assert!(
        message.starts_with("0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."),
        "{message}"
    );
    kubectl.run("delete pod store-1 --wait=false");
    kubectl.ready("store-2");
}

#[test]
fn d9_a_pod_of_higher_priority_takes_the_place_of_a_lower_one() {
    let kubectl = shared().namespace("d9-room");
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "d9-urgent"}, "value": 1000});
    kubectl.apply(&class);
    let holds = |name: &str| {
        let mut pod = sleeper(name);
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 18100}]);
        pod
    };
    kubectl.apply(&holds("low"));
    kubectl.ready("low");
    let mut urgent = holds("urgent");
    urgent["spec"]["priorityClassName"] = json!("d9-urgent");
    kubectl.apply(&urgent);
    kubectl.ready("urgent");
    let message = kubectl.event("low", "Preempted");
    assert!(message.starts_with("Preempted by pod ") && message.contains(" on node knarr-test"), "{message}");
    let message = kubectl.event("urgent", "FailedScheduling");
    assert!(
        message.contains("preemption: found a potential placement for pod on node knarr-test"),
        "{message}"
    );
}

fn gang(name: &str, min_count: u32) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}})
}

#[test]
fn d12_gangs_start_as_a_whole_or_not_at_all() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&[
        "--feature-gates=GenericWorkload=true",
        "--runtime-config=scheduling.k8s.io/v1beta1=true",
    ]);
    let kubectl = cluster.namespace("gangs");
    let cpus: u64 = {
        let text = kubectl.path("node knarr-test", "{.status.allocatable.cpu}");
        text.strip_suffix('m').map_or_else(|| text.parse::<u64>().unwrap() * 1000, |m| m.parse().unwrap())
    };
    // Four pods take most of the node; a fifth would fit.
    let cpu = format!("{}m", cpus * 19 / 100);
    let member = |name: &str, group: &str| {
        let mut pod = with(name, "schedulingGroup", json!({"podGroupName": group}));
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
        pod["metadata"]["labels"] = json!({"gang": group});
        pod
    };
    let bound = |group: &str| {
        let nodes = kubectl.run(&format!("get pods -l gang={group} -o jsonpath={{.items[*].spec.nodeName}}"));
        nodes.split_whitespace().count()
    };
    let condition = |group: &str| {
        let path = "{.status.conditions[?(@.type=='PodGroupInitiallyScheduled')].status}";
        kubectl.path(&format!("podgroup {group}"), path)
    };
    for n in 0..4 {
        kubectl.apply(&member(&format!("red-{n}"), "red"));
        kubectl.apply(&member(&format!("blue-{n}"), "blue"));
    }
    assert_eq!((bound("red"), bound("blue")), (0, 0), "there are no groups yet");
    let mut explain = cluster.sandbox.command(knarr());
    explain
        .args(["explain", "pod", "red-0", "--namespace", "gangs", "--kubeconfig"])
        .arg(cluster.kubeconfig());
    let said = succeeded("knarr explain", &explain.output().unwrap());
    assert!(said.contains("waiting for pods's pod group \"red\" to appear in scheduling queue"), "{said}");
    kubectl.apply(&gang("red", 4));
    kubectl.apply(&gang("blue", 4));
    let winner = wait_for("one of the gangs", Duration::from_secs(30), || {
        let done = ["red", "blue"].into_iter().find(|group| condition(group) == "True");
        assert!(bound("red") == 0 || bound("blue") == 0, "part of each");
        done
    });
    let loser = if winner == "red" { "blue" } else { "red" };
    wait_for("the other one's condition", Duration::from_secs(30), || {
        (condition(loser) == "False").then_some(())
    });
    let why = kubectl.path(&format!("podgroup {loser}"), "{.status.conditions[0].message}");
    assert!(why.starts_with("minCount (4) cannot be satisfied: 1 scheduled, "), "{why}");
    (0..4).for_each(|n| kubectl.ready(&format!("{winner}-{n}")));
    assert_eq!((bound(winner), bound(loser)), (4, 0));
    let message = kubectl.event(&format!("{loser}-0"), "FailedScheduling");
    assert!(message.starts_with("pod group is unschedulable, minCount (4) cannot be satisfied"), "{message}");
    kubectl.run(&format!("delete podgroup {winner} --wait=false"));
    assert_ne!(kubectl.path(&format!("podgroup {winner}"), "{.metadata.deletionTimestamp}"), "");
    kubectl.run(&format!("delete pods -l gang={winner} --wait=false"));
    (0..4).for_each(|n| kubectl.ready(&format!("{loser}-{n}")));
    assert_eq!(condition(loser), "True");
    kubectl.run(&format!("wait --for=delete podgroup/{winner} --timeout=30s"));

    // With the gate off again, updates of a pod keep its group, and a new pod gets none.
    let (kept, late) = (format!("{loser}-0"), member("late", loser));
    std::mem::forget(kubectl);
    cluster.interrupt_server();
    cluster.start_server();
    let kubectl = Kubectl::new(&cluster, Some("gangs".to_owned()), cluster.kubeconfig());
    let group_of = |pod: &str| kubectl.path(&format!("pod {pod}"), "{.spec.schedulingGroup.podGroupName}");
    kubectl.run(&format!("label pod {kept} still=here"));
    assert_eq!(group_of(&kept), loser);
    kubectl.apply(&late);
    assert_eq!(group_of("late"), "");
}
