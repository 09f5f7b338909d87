//! The output of `kubectl get` and related commands.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cluster::shared;
use crate::kubectl::Kubectl;
use crate::objects::{config_map, sleeper, web};

fn header(table: &str) -> Vec<&str> {
    table.lines().next().unwrap_or_default().split_whitespace().collect()
}

fn web_pods(kubectl: &Kubectl) {
    kubectl.apply(&web("web", 2));
    kubectl.run("rollout status deployment/web --timeout=90s");
}

#[test]
fn c8_tables_have_upstreams_columns() {
    let kubectl = shared().namespace("c8-tables");
    web_pods(&kubectl);
    for (what, columns) in [
        ("pods", "NAME READY STATUS RESTARTS AGE"),
        ("pods -o wide", "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"),
        ("deployments", "NAME READY UP-TO-DATE AVAILABLE AGE"),
        ("deployments -o wide", "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR"),
        ("replicasets", "NAME DESIRED CURRENT READY AGE"),
        ("replicasets -o wide", "NAME DESIRED CURRENT READY AGE CONTAINERS IMAGES SELECTOR"),
        ("services -n default", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("services -n default -o wide", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE SELECTOR"),
        ("endpointslices -n default", "NAME ADDRESSTYPE PORTS ENDPOINTS AGE"),
        ("events", "LAST SEEN TYPE REASON OBJECT MESSAGE"),
        ("events -o wide", "LAST SEEN TYPE REASON OBJECT SUBOBJECT SOURCE MESSAGE FIRST SEEN COUNT NAME"),
        ("configmaps", "NAME DATA AGE"),
        ("serviceaccounts", "NAME AGE"),
        ("namespaces", "NAME STATUS AGE"),
        ("nodes", "NAME STATUS ROLES AGE VERSION"),
        ("leases -n kube-node-lease", "NAME HOLDER AGE"),
        ("clusterroles", "NAME CREATED AT"),
        ("clusterrolebindings", "NAME ROLE AGE"),
    ] {
        let table = kubectl.run(&format!("get {what}"));
        assert_eq!(header(&table).join(" "), columns, "get {what}");
        assert!(table.lines().count() > 1, "get {what} shows nothing");
    }
    let pods = kubectl.run("get pods");
    for line in pods.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1..4], ["1/1", "Running", "0"], "{pods}");
    }
    let all = kubectl.run("get deploy,rs,pods,events");
    for kind in ["deployment.apps/web ", "replicaset.apps/web-", "pod/web-", " deployment/web  "] {
        assert!(all.contains(kind), "no {kind}:\n{all}");
    }
    assert_eq!(
        kubectl.run("get pods -A --no-headers").lines().filter(|l| l.starts_with("c8-tables ")).count(),
        2
    );
    let none = kubectl.attempt("get pods -l app=nothing");
    assert_eq!(String::from_utf8_lossy(&none.stderr), "No resources found in c8-tables namespace.\n");
}

#[test]
fn c8_output_formats() {
    let kubectl = shared().namespace("c8-formats");
    web_pods(&kubectl);
    let list = kubectl.json("pods");
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    let deployment = kubectl.json("deployment web");
    assert_eq!(deployment["apiVersion"], "apps/v1");
    assert_eq!(deployment["spec"]["progressDeadlineSeconds"], 600, "defaults are filled in");
    assert_eq!(deployment["spec"]["revisionHistoryLimit"], 10);
    assert_eq!(
        deployment["spec"]["strategy"]["rollingUpdate"],
        json!({"maxSurge": "25%", "maxUnavailable": "25%"})
    );
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(deployment["metadata"].get("managedFields"), None, "hidden unless asked for");
    let yaml = kubectl.run("get deployment web -o yaml");
    assert!(yaml.starts_with("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n"), "{yaml}");
    assert!(!yaml.contains("managedFields"));
    assert!(kubectl.run("get deployment web -o yaml --show-managed-fields").contains("managedFields"));

    let names = kubectl.run("get pods -o name");
    assert!(names.lines().all(|n| n.starts_with("pod/web-")), "{names}");
    let ready = kubectl.path("pods", "{.items[*].status.containerStatuses[0].ready}");
    assert_eq!(ready, "true true");
    let typed = kubectl.path("pods", r"{.items[0].status.conditions[?(@.type=='Ready')].status}");
    assert_eq!(typed, "True");
    let custom = kubectl
        .run("get pods -o custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,QOS:.status.qosClass");
    assert_eq!(header(&custom), ["NAME", "NODE", "QOS"]);
    assert!(custom.lines().nth(1).is_some_and(|l| l.ends_with("BestEffort")), "{custom}");
    let template = kubectl.run(["get", "deployment", "web", "-o", "go-template={{.status.readyReplicas}}"]);
    assert_eq!(template, "2");
    let sorted = kubectl.run("get pods --sort-by=.metadata.name -o name");
    let lines: Vec<&str> = sorted.lines().collect();
    assert!(lines.is_sorted(), "{sorted}");
}

#[test]
fn c8_selectors() {
    let kubectl = shared().namespace("c8-selectors");
    for (name, tier) in [("a", "front"), ("b", "front"), ("c", "back")] {
        let mut object = config_map(name, json!({}));
        object["metadata"]["labels"] = json!({"tier": tier, "name": name});
        kubectl.apply(&object);
    }
    let select = |selector: &str| -> BTreeSet<String> {
        let out = kubectl.run(["get", "configmaps", "-o", "name", "-l", selector]);
        out.lines().map(|l| l.trim_start_matches("configmap/").to_owned()).collect()
    };
    let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(select("tier=front"), set(&["a", "b"]));
    assert_eq!(select("tier!=front,name"), set(&["c"]));
    assert_eq!(select("name in (a,c)"), set(&["a", "c"]));
    assert_eq!(select("name notin (a,c),tier"), set(&["b"]));
    assert_eq!(select("!tier"), set(&["kube-root-ca.crt"]));
    let table = kubectl.run("get configmaps -L tier -l name");
    assert_eq!(header(&table), ["NAME", "DATA", "AGE", "TIER"]);
    assert!(table.lines().nth(3).is_some_and(|l| l.starts_with("c ") && l.ends_with("back")), "{table}");
    assert!(kubectl.run("get configmap a --show-labels").contains("name=a,tier=front"));
    assert_eq!(kubectl.run("get configmaps -o name --field-selector metadata.name=b"), "configmap/b\n");
    let error = kubectl.fails("get configmaps --field-selector data.x=b");
    assert!(
        error.contains(
            "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ),
        "{error}"
    );
    let error = kubectl.fails(["get", "configmaps", "-l", "a in b"]);
    assert!(error.contains("unable to parse requirement"), "{error}");
}

#[test]
fn c8_watch_shows_a_pods_way() {
    let kubectl = shared().namespace("c8-watch");
    let watch = kubectl.background("get pods -w");
    kubectl.apply(&sleeper("watched"));
    watch.until(|out| out.lines().any(|l| l.starts_with("watched") && l.contains("1/1     Running")));
    kubectl.run("delete pod watched");
    let seen = watch.until(|out| out.contains("Terminating"));
    let states: Vec<&str> = seen.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    let at = |state: &str| states.iter().position(|s| *s == state);
    assert!(at("Pending") < at("ContainerCreating"), "{seen}");
    assert!(at("ContainerCreating") < at("Running") && at("Running") < at("Terminating"), "{seen}");
    let one = kubectl.background("wait --for=create configmap/later --timeout=60s");
    kubectl.apply(&config_map("later", json!({})));
    assert_eq!(one.end(), (true, "configmap/later condition met\n".to_owned()));
}

#[test]
fn c8_describe() {
    let kubectl = shared().namespace("c8-describe");
    kubectl.apply(&sleeper("described"));
    kubectl.ready("described");
    let text = kubectl.run("describe pod described");
    for line in [
        "Name:             described",
        "Node:             knarr-test/10.99.0.2",
        "Status:           Running",
        "QoS Class:                   BestEffort",
        "node.kubernetes.io/not-ready:NoExecute op=Exists for 300s",
        "node.kubernetes.io/unreachable:NoExecute op=Exists for 300s",
        "/var/run/secrets/kubernetes.io/serviceaccount from kube-api-access-",
    ] {
        assert!(text.contains(line), "no `{line}`:\n{text}");
    }
    let node = kubectl.run("describe node knarr-test");
    for line in [
        "kubernetes.io/hostname=knarr-test",
        "KubeletReady",
        "Allocatable:",
        "described",
        "Container Runtime Version:",
        "PodCIDR:",
    ] {
        assert!(node.contains(line), "no `{line}`:\n{node}");
    }
    let service = kubectl.run("describe service kubernetes -n default");
    assert!(service.contains("Endpoints:                10.99.0.2:6443"), "{service}");
}

#[test]
fn a1_discovery_and_explain() {
    let kubectl = shared().admin();
    let resources = kubectl.run("api-resources");
    for (name, short, group, kind) in [
        ("pods", "po", "v1", "Pod"),
        ("deployments", "deploy", "apps/v1", "Deployment"),
        ("endpointslices", "", "discovery.k8s.io/v1", "EndpointSlice"),
        ("clusterroles", "", "rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("leases", "", "coordination.k8s.io/v1", "Lease"),
    ] {
        let row = resources.lines().find(|l| l.split_whitespace().next() == Some(name) && l.contains(group));
        let row = row.unwrap_or_else(|| panic!("no {name}:\n{resources}"));
        assert!(row.contains(short) && row.trim_end().ends_with(kind), "{row}");
    }
    let wide = kubectl.run("api-resources --api-group=apps -o wide --no-headers");
    assert!(wide.contains("create,delete,deletecollection,get,list,patch,update,watch"), "{wide}");
    let versions = kubectl.run("api-versions");
    assert!(versions.lines().any(|l| l == "apps/v1") && versions.lines().any(|l| l == "v1"), "{versions}");
    let text = kubectl.run("explain pod.spec.restartPolicy");
    assert!(text.starts_with("KIND:       Pod\nVERSION:    v1\n\nFIELD: restartPolicy <string>\n"), "{text}");
    assert!(text.contains("Restart policy for all containers within the pod."), "{text}");
    let text = kubectl.run("explain deployment.spec");
    assert!(text.contains("GROUP:      apps\nKIND:       Deployment\nVERSION:    v1\n"), "{text}");
    assert!(text.contains("  replicas\t<integer>"), "{text}");
    assert!(kubectl.run("explain service --recursive").contains("clusterIP"));
    let version: Value = serde_json::from_str(&kubectl.run("version -o json")).expect("JSON");
    assert_eq!(version["serverVersion"]["major"], "1");
    assert!(
        version["serverVersion"]["gitVersion"].as_str().is_some_and(|v| v.starts_with("v1.37.")),
        "{version}"
    );
    assert!(kubectl.run("cluster-info").contains("https://"));
    assert_eq!(kubectl.run("get --raw /healthz"), "ok");
    assert!(kubectl.run("get --raw /readyz?verbose").contains("readyz check passed"));
}

#[test]
fn a1_pages() {
    let kubectl = shared().namespace("a1-pages");
    for number in 0..7 {
        kubectl.run(&format!("create configmap page-{number}"));
    }
    assert_eq!(kubectl.run("get configmaps --chunk-size=3 -o name").lines().count(), 8);
    let page = |query: &str| -> Value {
        let path = format!("/api/v1/namespaces/a1-pages/configmaps?limit=3{query}");
        serde_json::from_str(&kubectl.run(["get", "--raw", &path])).expect("JSON")
    };
    let first = page("");
    assert_eq!(first["metadata"]["remainingItemCount"], 5);
    let token = first["metadata"]["continue"].as_str().expect("a token").to_owned();
    kubectl.run("create configmap a-page-made-meanwhile");
    let second = page(&format!("&continue={token}"));
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"], "one snapshot");
    let third = page(&format!("&continue={}", second["metadata"]["continue"].as_str().expect("a token")));
    assert_eq!(third["metadata"].get("continue"), None);
    let names: Vec<String> = [&first, &second, &third]
        .iter()
        .flat_map(|p| p["items"].as_array().expect("items"))
        .map(|i| i["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(names.len(), 8);
    assert!(names.is_sorted(), "{names:?}");
}
