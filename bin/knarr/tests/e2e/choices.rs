//! Which of several nodes a pod is scheduled to: a scheduler alone, with Node objects that no kubelet serves.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::kubectl::Kubectl;
use crate::objects::sleeper;

/// No kubelet and no controller run: nodes and bound pods stay as they were written.
const ALONE: [&str; 4] = [
    "--disable-node",
    "--disable-controller-manager",
    "--disable-admission-plugins",
    "ServiceAccount,TaintNodesByCondition",
];

/// The cluster of these tests; each test has its own nodes, labelled `for: TEST`.
fn cluster() -> &'static Cluster {
    static ALL: OnceLock<Cluster> = OnceLock::new();
    ALL.get_or_init(|| start(&[]))
}

fn start(more: &[&str]) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&[&ALONE[..], more].concat());
    cluster
}

fn namespace<'a>(cluster: &'a Cluster, name: &str) -> Kubectl<'a> {
    let admin = cluster.admin();
    admin.run(["create", "namespace", name]);
    admin.in_namespace(name)
}

/// Builds a node with 4 CPUs, 8Gi and room for 110 pods, labelled `for: TEST`.
fn node(test: &str, name: &str) -> Value {
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"for": test, "kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Builds a pod that only fits the test's nodes.
fn pod(test: &str, name: &str) -> Value {
    let mut pod = sleeper(name);
    pod["spec"]["nodeSelector"] = json!({"for": test});
    pod
}

fn asking(mut pod: Value, cpu: &str) -> Value {
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Waits until a pod is bound; returns its node.
fn bound(kubectl: &Kubectl, pod: &str) -> String {
    let path = "-o=jsonpath={.spec.nodeName}";
    kubectl.eventually(["get", "pod", pod, path], |node| !node.is_empty())
}

#[test]
fn d1_pods_are_bound_by_priority_and_alike_nodes_share_them() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&[&ALONE[..], &["--disable-scheduler"]].concat());
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"});
    let kubectl = cluster.admin();
    kubectl.apply(&list(&[
        class,
        node("d1", "only"),
        node("alike", "a"),
        node("alike", "b"),
        node("alike", "c"),
    ]));
    let mut pods: Vec<Value> = (0..4).map(|n| asking(pod("d1", &format!("low-{n}")), "2")).collect();
    for name in ["urgent-0", "urgent-1"] {
        let mut urgent = asking(pod("d1", name), "2");
        urgent["spec"]["priorityClassName"] = json!("urgent");
        pods.push(urgent);
    }
    pods.extend((0..12).map(|n| pod("alike", &format!("alike-{n}"))));
    kubectl.apply(&list(&pods));
    assert_eq!(kubectl.path("pods", "{.items[*].spec.nodeName}"), "", "nobody schedules");
    drop(kubectl);
    assert!(cluster.interrupt_server());
    cluster.start_server_with(&ALONE);

    let kubectl = cluster.admin();
    for name in ["urgent-0", "urgent-1"] {
        assert_eq!(bound(&kubectl, name), "only");
    }
    let told = kubectl.event("low-0", "FailedScheduling");
    assert!(told.contains("1 Insufficient cpu"), "{told}");
    let nodes: BTreeSet<String> = (0..12).map(|n| bound(&kubectl, &format!("alike-{n}"))).collect();
    assert_eq!(nodes, ["a", "b", "c"].map(str::to_owned).into());
    let told = kubectl.event("urgent-0", "Scheduled");
    assert_eq!(told.trim(), "Successfully assigned default/urgent-0 to only");
    let source = kubectl.path(
        "events --field-selector reason=Scheduled,involvedObject.name=urgent-0",
        "{.items[0].reportingComponent}",
    );
    assert_eq!(source, "default-scheduler");
    kubectl.until("pod urgent-0", "{.status.conditions[?(@.type=='PodScheduled')].status}", "True");
}

#[test]
fn d3_the_emptier_the_preferred_and_the_untainted_node_wins() {
    let kubectl = namespace(cluster(), "d3");
    let mut avoided = node("d3-taint", "d3-avoided");
    avoided["spec"]["taints"] = json!([{"key": "old", "effect": "PreferNoSchedule"}]);
    let mut fast = node("d3-prefer", "d3-fast");
    fast["metadata"]["labels"]["disk"] = json!("ssd");
    let mut with_image = node("d3-image", "d3-with-image");
    with_image["status"]["images"] = json!([{"names": ["example.com/large:v1"], "sizeBytes": 900_000_000}]);
    kubectl.apply(&list(&[
        avoided,
        node("d3-taint", "d3-plain"),
        fast,
        node("d3-prefer", "d3-slow"),
        with_image,
        node("d3-image", "d3-without-image"),
        node("d3-room", "d3-fuller"),
        node("d3-room", "d3-emptier"),
        node("d3-near", "d3-near-1"),
        node("d3-near", "d3-near-2"),
    ]));

    kubectl.apply(&pod("d3-taint", "no-taint"));
    assert_eq!(bound(&kubectl, "no-taint"), "d3-plain");

    let mut prefers = pod("d3-prefer", "prefers");
    let term = |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
    prefers["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"weight": 50, "preference": term("disk", "ssd")}]);
    kubectl.apply(&prefers);
    assert_eq!(bound(&kubectl, "prefers"), "d3-fast");

    let mut large = pod("d3-image", "large");
    large["spec"]["containers"][0]["image"] = json!("example.com/large:v1");
    kubectl.apply(&large);
    assert_eq!(bound(&kubectl, "large"), "d3-with-image");

    let mut there = asking(pod("d3-room", "there"), "3");
    there["spec"]["nodeName"] = json!("d3-fuller");
    kubectl.apply(&there);
    kubectl.apply(&asking(pod("d3-room", "least"), "500m"));
    assert_eq!(bound(&kubectl, "least"), "d3-emptier");

    let mut store = pod("d3-near", "store");
    store["spec"]["nodeName"] = json!("d3-near-2");
    kubectl.apply(&store);
    let near = json!([{"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "store"}}}}]);
    for (name, kind, node) in
        [("company", "podAffinity", "d3-near-2"), ("distance", "podAntiAffinity", "d3-near-1")]
    {
        let mut pod = pod("d3-near", name);
        pod["spec"]["affinity"][kind]["preferredDuringSchedulingIgnoredDuringExecution"] = near.clone();
        kubectl.apply(&pod);
        assert_eq!(bound(&kubectl, name), node, "{name}");
    }
}

#[test]
fn d3_a_profile_packs_where_the_default_one_spreads() {
    let mut cluster = Cluster::new();
    let settings = cluster.sandbox.path("profiles.yaml");
    let shape = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
    let fit = |scheduler: &str, strategy: Value| {
        json!({"schedulerName": scheduler, "pluginConfig": [{"name": "NodeResourcesFit",
            "args": {"scoringStrategy": strategy}}],
            "plugins": {"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}}})
    };
    let cpu = json!([{"name": "cpu", "weight": 1}]);
    let configuration = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler"},
            fit("packer", json!({"type": "MostAllocated", "resources": cpu})),
            fit("ratio", json!({"type": "RequestedToCapacityRatio", "resources": cpu,
                "requestedToCapacityRatio": {"shape": shape}}))]});
    std::fs::write(&settings, configuration.to_string()).expect("the scheduler's configuration");
    cluster.start_server_with(&[&ALONE[..], &["--scheduler-config", &settings.to_string_lossy()]].concat());
    let kubectl = namespace(&cluster, "d3");
    let mut there = asking(pod("x", "there"), "2");
    there["spec"]["nodeName"] = json!("fuller");
    kubectl.apply(&list(&[node("x", "fuller"), node("x", "emptier"), there]));
    for (scheduler, want) in [("default-scheduler", "emptier"), ("packer", "fuller"), ("ratio", "fuller")] {
        let mut pod = asking(pod("x", scheduler), "500m");
        pod["spec"]["schedulerName"] = json!(scheduler);
        kubectl.apply(&pod);
        assert_eq!(bound(&kubectl, scheduler), want, "{scheduler}");
        let path = "{.items[0].reportingComponent}";
        let events = format!("events --field-selector reason=Scheduled,involvedObject.name={scheduler}");
        kubectl.until(&events, path, scheduler);
    }
}

#[test]
fn d7_taints_keep_away_who_does_not_tolerate_them() {
    let kubectl = namespace(cluster(), "d7");
    kubectl.apply(&node("d7", "d7-gpu"));
    kubectl.run("taint node d7-gpu gpu=a100:NoSchedule");
    let tolerating = |name: &str, toleration: Value| {
        let mut pod = pod("d7", name);
        pod["spec"]["tolerations"] = json!([toleration]);
        pod
    };
    for (name, toleration) in [
        ("equal", json!({"key": "gpu", "value": "a100", "effect": "NoSchedule"})),
        ("exists", json!({"key": "gpu", "operator": "Exists"})),
        ("any-key", json!({"operator": "Exists", "effect": "NoSchedule"})),
    ] {
        kubectl.apply(&tolerating(name, toleration));
        assert_eq!(bound(&kubectl, name), "d7-gpu", "{name}");
    }
    for (name, toleration) in [
        ("other-value", json!({"key": "gpu", "value": "h100", "effect": "NoSchedule"})),
        ("other-key", json!({"key": "cpu", "operator": "Exists"})),
        ("other-effect", json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"})),
    ] {
        kubectl.apply(&tolerating(name, toleration));
        let told = kubectl.event(name, "FailedScheduling");
        assert!(told.contains(" node(s) had untolerated taint(s)"), "{name}: {told}");
    }
    kubectl.run("taint node d7-gpu gpu-");
    for name in ["other-value", "other-key", "other-effect"] {
        assert_eq!(bound(&kubectl, name), "d7-gpu", "{name}");
    }
    let both = json!({"key": "gpu", "operator": "Exists", "value": "x"});
    let refused = kubectl.with_fails("apply -f -", &tolerating("wrong", both).to_string());
    assert!(refused.contains("value must be empty when `operator` is 'Exists'"), "{refused}");
}

#[test]
fn d8_the_largest_init_container_counts_and_sidecars_are_added() {
    let kubectl = namespace(cluster(), "d8");
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "d8-heavy"},
        "handler": "runc", "overhead": {"podFixed": {"cpu": "500m"}}});
    kubectl.apply(&class);
    let init = |name: &str, cpu: &str| json!({"name": name, "image": "busybox", "resources": {"requests": {"cpu": cpu}}});
    let sidecar = |name: &str, cpu: &str| {
        let mut container = init(name, cpu);
        container["restartPolicy"] = json!("Always");
        container
    };
    // What the pod needs on a node of 4 CPUs, of which its main container requests 1, and so what else fits
    // there.
    let mut heavy = asking(pod("d8-overhead", "overhead"), "1");
    heavy["spec"]["runtimeClassName"] = json!("d8-heavy");
    let with = |name: &str, containers: &[Value]| {
        let mut pod = asking(pod(&format!("d8-{name}"), name), "1");
        pod["spec"]["initContainers"] = json!(containers);
        pod
    };
    let table = [
        (with("largest", &[init("a", "2"), init("b", "3")]), "1", "1100m"),
        (with("smaller", &[init("a", "500m"), init("b", "500m")]), "3", "3100m"),
        (with("sidecar", &[sidecar("a", "1"), sidecar("b", "500m")]), "1500m", "1600m"),
        (with("before", &[sidecar("a", "1"), init("b", "2500m")]), "500m", "600m"),
        (heavy, "2500m", "2600m"),
    ];
    for (pod, fits, too_much) in table {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let test = format!("d8-{name}");
        kubectl.apply(&node(&test, &test));
        kubectl.apply(&pod);
        assert_eq!(bound(&kubectl, name), test);
        let more = format!("{name}-more");
        kubectl.apply(&asking(self::pod(&test, &more), too_much));
        let told = kubectl.event(&more, "FailedScheduling");
        assert!(told.contains(" Insufficient cpu"), "{name}: {told}");
        let rest = format!("{name}-rest");
        kubectl.apply(&asking(self::pod(&test, &rest), fits));
        assert_eq!(bound(&kubectl, &rest), test);
    }
}

#[test]
fn d10_of_many_nodes_some_are_looked_at_unless_all_are_asked_for() {
    const NODES: usize = 400;
    let preferring = |name: &str| {
        let mut pod = pod("d10", name);
        let ssd = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
        pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
            json!([{"weight": 100, "preference": ssd}]);
        pod
    };
    for (percentage, all) in [(0, false), (100, true)] {
        let mut cluster = Cluster::new();
        let settings = cluster.sandbox.path("percentage.yaml");
        let text = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "percentageOfNodesToScore": percentage});
        std::fs::write(&settings, text.to_string()).expect("the scheduler's configuration");
        cluster
            .start_server_with(&[&ALONE[..], &["--scheduler-config", &settings.to_string_lossy()]].concat());
        let kubectl = namespace(&cluster, "d10");
        let mut nodes: Vec<Value> = (0..NODES).map(|n| node("d10", &format!("n-{n:03}"))).collect();
        nodes[NODES / 2]["metadata"]["labels"]["disk"] = json!("ssd");
        kubectl.with("create -f -", &list(&nodes).to_string());
        // By default 46 % of 400 nodes are scored, starting at the next node each time: three pods do not all
        // see the same ones.
        let names = ["first", "second", "third"];
        let chosen: Vec<String> = names
            .iter()
            .map(|name| {
                kubectl.apply(&preferring(name));
                bound(&kubectl, name)
            })
            .collect();
        let preferred = chosen.iter().filter(|node| *node == "n-200").count();
        assert_eq!(preferred == names.len(), all, "{percentage} %: {chosen:?}");
    }
}

#[test]
fn d15_tenants_are_kept_apart_by_taints() {
    let kubectl = namespace(cluster(), "d15");
    let nodes = ["red", "blue"].map(|tenant| node(&format!("d15-{tenant}"), &format!("d15-{tenant}")));
    kubectl.apply(&list(&nodes));
    for tenant in ["red", "blue"] {
        kubectl.run(&format!("label node d15-{tenant} tenant={tenant} d15=yes"));
        kubectl.run(&format!("taint node d15-{tenant} tenant={tenant}:NoSchedule"));
    }
    let of = |name: &str, tenant: &str| {
        let mut pod = sleeper(name);
        pod["spec"]["nodeSelector"] = json!({"d15": "yes"});
        pod["spec"]["tolerations"] = json!([{"key": "tenant", "value": tenant}]);
        pod
    };
    for tenant in ["red", "blue"] {
        for n in 0..3 {
            let name = format!("{tenant}-{n}");
            kubectl.apply(&of(&name, tenant));
            assert_eq!(bound(&kubectl, &name), format!("d15-{tenant}"));
        }
    }
    let mut nobodys = of("nobodys", "green");
    nobodys["spec"]["tolerations"] = json!([]);
    kubectl.apply(&nobodys);
    let told = kubectl.event("nobodys", "FailedScheduling");
    assert!(told.contains(" node(s) had untolerated taint(s)"), "{told}");
}
