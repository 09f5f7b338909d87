//! Questions about small clusters, and their answers.

use serde_json::{Value, json};

use super::*;

fn node(name: &str, cpu: &str) -> Value {
    let room = json!({"cpu": cpu, "memory": "8Gi", "pods": "110"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
           "status": {"allocatable": room, "capacity": room}})
}

fn tainted(mut node: Value) -> Value {
    node["spec"] = json!({"taints": [{"key": "dedicated", "effect": "NoSchedule"}]});
    node
}

fn template(cpu: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}},
           "spec": {"containers": [{"name": "c", "image": "web", "resources": {"requests": {"cpu": cpu}}}]}})
}

fn pod(name: &str, cpu: &str, node: Option<&str>, priority: i32) -> Value {
    let mut pod = template(cpu);
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["namespace"] = json!("default");
    pod["spec"]["priority"] = json!(priority);
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn deployment(replicas: u32, cpu: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
           "spec": {"replicas": replicas, "template": template(cpu)}})
}

fn cluster(objects: &[Value]) -> WhatIf {
    WhatIf::new(&Configuration::default(), objects).unwrap()
}

#[test]
fn a_pending_pod_learns_everything_against_every_node() {
    let mut cluster = cluster(&[
        node("small", "1"),
        tainted(node("reserved", "1")),
        node("full", "4"),
        pod("there", "3", Some("full"), 0),
        pod("waits", "2", None, 0),
    ]);
    let said = cluster.explain_pod("default", "waits").unwrap();
    assert_eq!((said.fits, said.of), (0, 3));
    assert_eq!(
        said.message,
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: 0/3 nodes are \
         available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    );
    let reserved = said.nodes.iter().find(|n| n.name == "reserved").unwrap();
    let plugins: Vec<&str> = reserved.objections.iter().map(|o| o.plugin.as_str()).collect();
    assert_eq!(plugins, ["TaintToleration", "NodeResourcesFit"], "the second objection is reported, too");
    let alone: Vec<(&str, bool)> = (said.changes.iter().filter(|c| c.objections.len() == 1))
        .map(|c| (c.nodes[0].as_str(), c.objections[0].preemption_may_help))
        .collect();
    assert_eq!(alone, [("small", false), ("full", true)], "these have one objection");
    assert_eq!(said.changes[0].objections[0].words(), "NodeResourcesFit: Insufficient cpu");
}

#[test]
fn a_node_that_does_not_exist_is_told() {
    let objects = [node("a", "4"), pod("lost", "1", Some("gone"), 0), pod("fine", "1", Some("a"), 0)];
    let mut cluster = cluster(&objects);
    let said = cluster.explain_pod("default", "lost").unwrap();
    assert!(said.node_is_missing);
    let remedy = "there is no node \"gone\": start one of that name, or delete the pod and create it anew";
    assert_eq!(said.remedy.as_deref(), Some(remedy));
    let said = cluster.explain_pod("default", "fine").unwrap();
    assert_eq!((said.node_is_missing, said.remedy), (false, None));

    let remedy = |pod: Value| {
        let mut cluster = super::tests::cluster(&[node("a", "4"), pod]);
        let remedy = cluster.explain_pod("default", "lost").unwrap().remedy.unwrap();
        remedy.split_once(", or ").unwrap().1.to_owned()
    };
    let with = |field: &str, value: Value| {
        let mut pod = pod("lost", "1", Some("gone"), 0);
        pod["metadata"][field] = value;
        pod
    };
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]);
    let fields = json!([{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:nodeName": {}}}}]);
    assert_eq!(
        remedy(with("ownerReferences", owner)),
        "delete the pod, for its controller to make another one"
    );
    assert_eq!(remedy(with("managedFields", fields)), "delete the pod and create it without spec.nodeName");
    let written = pod("new", "1", Some("gone"), 0);
    let said = cluster.explain_manifest("default", &written).unwrap().unwrap();
    assert!(said.remedy.unwrap().ends_with("or take spec.nodeName out of the manifest"));
}

#[test]
fn nodes_that_need_different_things_are_told_apart() {
    let with_taint = |name: &str, key: &str| {
        let mut node = node(name, "4");
        node["spec"] = json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        node
    };
    let of = |taints: &[(&str, &str)]| {
        let mut objects: Vec<Value> = taints.iter().map(|(name, key)| with_taint(name, key)).collect();
        objects.push(pod("waits", "1", None, 0));
        let said = cluster(&objects).explain_pod("default", "waits").unwrap();
        let [change] = &said.changes[..] else { panic!("{:?}", said.changes) };
        assert_eq!(change.nodes.len(), taints.len());
        let way = |way: &report::Way| format!("{}: {}", way.nodes.join(" "), way.remedies.join("; "));
        (change.ways.iter().map(way).collect::<Vec<_>>(), change.more_ways)
    };
    assert_eq!(
        of(&[("a", "x"), ("b", "y"), ("c", "x")]),
        (
            vec![
                "a c: a toleration for x:NoSchedule".to_owned(),
                "b: a toleration for y:NoSchedule".to_owned()
            ],
            0
        )
    );
    let (ways, more) =
        of(&[("a", "x"), ("b", "y"), ("c", "z"), ("d", "u"), ("e", "v"), ("f", "x"), ("g", "u")]);
    assert_eq!((ways.len(), more), (3, 2));
    assert_eq!(ways[0], "a f: a toleration for x:NoSchedule");
}

/// The changes that would be needed, on the nearest node first.
fn remedies(objects: &[Value]) -> Vec<(String, Vec<String>)> {
    let said = cluster(objects).explain_pod("default", "waits").unwrap();
    assert_eq!(said.fits, 0);
    let texts = |c: report::Change| c.objections.into_iter().flat_map(|o| o.remedies).collect();
    said.changes.into_iter().map(|c| (c.nodes[0].clone(), texts(c))).collect()
}

#[test]
fn what_would_have_to_change_is_told_to_the_point() {
    let waits = |spec: Value| {
        let mut pod = pod("waits", "500m", None, 0);
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod
    };
    let with_label = |name: &str, key: &str, value: &str| {
        let mut node = node(name, "4");
        node["metadata"]["labels"][key] = json!(value);
        node
    };
    let mut cordoned = node("a", "4");
    cordoned["spec"]["unschedulable"] = json!(true);
    let mut there = pod("there", "100m", Some("a"), 0);
    there["metadata"]["labels"] = json!({"app": "web"});
    there["spec"]["containers"][0]["ports"] = json!([{"hostPort": 80, "containerPort": 80}]);
    let port = json!([{"name": "c", "image": "i", "ports": [{"hostPort": 80, "containerPort": 80}]}]);
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let away = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}});
    let near = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}]}});
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let fast = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "nvme"]},
            {"key": "gpu", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}}});
    let table: [(Vec<Value>, &str); 8] = [
        (vec![tainted(node("a", "4")), waits(json!({}))], "a toleration for dedicated:NoSchedule"),
        (vec![cordoned, waits(json!({}))], "kubectl uncordon a"),
        (
            vec![with_label("a", "disk", "hdd"), waits(json!({"nodeSelector": {"disk": "ssd"}}))],
            "the label disk=ssd; it has disk=hdd",
        ),
        (vec![node("a", "4"), waits(json!({"affinity": fast}))], "disk In [ssd]; it has no label disk"),
        (
            vec![node("a", "4"), there.clone(), waits(json!({"containers": port}))],
            "another hostPort than TCP/80, which pod default/there has",
        ),
        (
            vec![with_label("a", "zone", "z1"), there.clone(), waits(json!({"affinity": away}))],
            "no pod with app=web in zone=z1",
        ),
        (
            vec![with_label("a", "zone", "z1"), waits(json!({"affinity": near}))],
            "a pod with app=db in zone=z1",
        ),
        (
            vec![
                with_label("a", "zone", "z1"),
                tainted(with_label("b", "zone", "z2")),
                there,
                waits(json!({"topologySpreadConstraints": spread})),
            ],
            "1 fewer in zone=z1: it has 1, the least has 0, maxSkew is 1",
        ),
    ];
    for (objects, want) in table {
        let said = remedies(&objects);
        assert!(
            said.iter().any(|(node, texts)| node == "a" && texts.as_slice() == [want]),
            "{said:?}\n{want}"
        );
    }
    let short =
        [node("a", "1"), node("b", "4"), pod("there", "3", Some("b"), 0), pod("waits", "1500m", None, 0)];
    let said = remedies(&short);
    assert_eq!(said[0], ("a".to_owned(), vec!["cpu: 500m more; 1500m asked for, 1 of 1 free".to_owned()]));
    assert_eq!(said[1].1, ["cpu: 500m more; 1500m asked for, 1 of 4 free"]);
    let alike = remedies(&[node("a", "1"), node("c", "2"), pod("waits", "3", None, 0)]);
    assert_eq!(alike, [("c".to_owned(), vec!["cpu: 1 more; 3 asked for, 2 of 2 free".to_owned()])]);
}

#[test]
fn a_bound_pod_is_not_in_its_own_way() {
    let mut cluster = cluster(&[node("a", "2"), node("b", "1"), pod("there", "2", Some("a"), 0)]);
    let said = cluster.explain_pod("default", "there").unwrap();
    assert_eq!(
        (said.node.as_deref(), said.fits, said.best.as_slice()),
        (Some("a"), 1, &["a".to_owned()][..])
    );
    assert!(said.nodes[0].scores.iter().any(|s| s.plugin == "NodeResourcesFit"));
    let weighted: i64 = said.nodes[0].scores.iter().map(|s| s.weight * s.normalized).sum();
    assert_eq!(said.nodes[0].score, weighted);
    assert!(matches!(cluster.explain_pod("default", "nobody"), Err(WhatIfError::NoPod(_))));
}

#[test]
fn room_that_would_be_made_is_named() {
    let mut cluster =
        cluster(&[node("a", "2"), pod("cheap", "2", Some("a"), 0), pod("dear", "1", None, 1000)]);
    let said = cluster.explain_pod("default", "dear").unwrap();
    let preemption = said.preemption.unwrap();
    assert_eq!((preemption.node.as_str(), preemption.victims[0].name.as_str()), ("a", "cheap"));
}

#[test]
fn manifests_are_placed_one_after_the_other() {
    let mut cluster = cluster(&[node("a", "2"), node("b", "2")]);
    let simulation = cluster.simulate("default", &[deployment(5, "1")]).unwrap();
    assert_eq!((simulation.placed, simulation.unschedulable, simulation.preempted), (4, 1, 0));
    assert_eq!(simulation.pods[4].node, None);
    assert!(simulation.pods[4].message.starts_with("0/2 nodes are available: 2 Insufficient cpu."));
    let again = cluster.simulate("default", &[deployment(1, "1")]).unwrap();
    assert_eq!(again.placed, 0, "what was placed is counted");
}

#[test]
fn simulated_preemption_takes_the_victims_away() {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
        "value": 100});
    let mut cluster = cluster(&[node("a", "2"), pod("cheap", "2", Some("a"), 0), class]);
    let mut urgent = deployment(2, "1");
    urgent["spec"]["template"]["spec"]["priorityClassName"] = json!("high");
    let simulation = cluster.simulate("default", &[urgent.clone()]).unwrap();
    assert_eq!((simulation.placed, simulation.preempted), (2, 1));
    assert_eq!(simulation.pods[0].preempts[0].name, "cheap");
    assert!(simulation.pods[1].preempts.is_empty(), "there is room now");
    urgent["spec"]["template"]["spec"]["priorityClassName"] = json!("none");
    let error = cluster.simulate("default", &[urgent]).unwrap_err().to_string();
    assert!(error.contains("no PriorityClass with name none was found"), "{error}");
}

#[test]
fn daemon_sets_have_a_pod_on_each_node_they_are_for() {
    let mut cluster = cluster(&[node("a", "2"), tainted(node("b", "2")), node("c", "2")]);
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "log"},
                     "spec": {"template": template("1")}});
    let nodes =
        |s: &Simulation| s.pods.iter().map(|p| p.node.clone().unwrap_or_default()).collect::<Vec<_>>();
    let simulation = cluster.simulate("default", &[set]).unwrap();
    assert_eq!(nodes(&simulation), ["a", "c"]);
    assert_eq!(simulation.pods[0].pod, "log-a");
}

#[test]
fn a_cron_job_comes_to_the_pods_of_one_run() {
    let cron = |containers: Value| {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
        json!({"kind": "CronJob", "metadata": {"name": "nightly"}, "spec": {"schedule": "0 3 * * *",
            "jobTemplate": {"spec": {"parallelism": 2, "template": template}}}})
    };
    let mut cluster = cluster(&[node("a", "2")]);
    let nightly = cron(json!([{"name": "c", "image": "i"}]));
    let said = cluster.explain_manifest("here", &nightly).unwrap().unwrap();
    assert_eq!(
        (said.namespace.as_str(), said.pod.as_str()),
        ("here", "nightly-0"),
        "the first one is explained"
    );
    let placed = cluster.simulate("here", &[nightly]).unwrap();
    let names: Vec<_> = placed.pods.iter().map(|p| p.pod.as_str()).collect();
    assert_eq!(names, ["nightly-0", "nightly-1"]);
    let error = cluster.explain_manifest("here", &cron(json!("none"))).unwrap_err().to_string();
    assert!(
        error.contains("(CronJob): spec.jobTemplate.spec.template.spec.containers: invalid type"),
        "{error}"
    );
}

#[test]
fn a_simulation_has_bounds_over_all_its_manifests() {
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "log"},
                     "spec": {"template": template("10m")}});
    let within = |bounds: Bounds<'_>, manifests: &[Value]| {
        let mut cluster = cluster(&[node("a", "2"), node("b", "2")]);
        cluster.simulate_within("default", manifests, &bounds)
    };
    let pods = |pods| Bounds { pods, ..Bounds::default() };
    let both = [deployment(2, "10m"), set.clone(), deployment(1, "10m")];
    assert_eq!(within(pods(5), &both).unwrap().placed, 5);
    for most in [1, 3, 4] {
        let error = within(pods(most), &both).unwrap_err();
        assert!(matches!(error, WhatIfError::TooMany { most: said, .. } if said == most), "{error}");
    }
    let long = template("10m").to_string().len();
    let bytes = |bytes| Bounds { bytes, ..Bounds::default() };
    assert_eq!(within(bytes(5 * long), &both).unwrap().placed, 5);
    let error = within(bytes(5 * long - 1), &both).unwrap_err();
    assert!(matches!(error, WhatIfError::TooLarge { .. }), "{error}");
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 4
    };
    let error = within(Bounds { stop: &stop, ..Bounds::default() }, &both).unwrap_err();
    assert!(matches!(error, WhatIfError::OutOfTime), "{error}");
    assert_eq!(asked.get(), 5, "no further pods are placed");
    let huge = cluster(&[node("a", "2")]).explain_manifest("default", &deployment(4_000_000_000, "1"));
    assert_eq!(huge.unwrap().unwrap().pod, "web-0");
}

#[test]
fn what_cannot_be_answered_is_said() {
    let mut cluster = cluster(&[node("a", "2")]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}});
    assert!(
        cluster
            .simulate("default", &[service])
            .unwrap_err()
            .to_string()
            .contains("Service \"s\" makes no pods")
    );
    let error = cluster.simulate("default", &[deployment(4_000_000_000, "1")]).unwrap_err();
    assert!(matches!(error, WhatIfError::TooMany { .. }));
    let mut other = deployment(1, "1");
    other["spec"]["template"]["spec"]["schedulerName"] = json!("mine");
    assert!(matches!(cluster.simulate("default", &[other]), Err(WhatIfError::NoProfile(_))));
    let broken = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": 1}});
    assert!(matches!(WhatIf::new(&Configuration::default(), &[broken]), Err(WhatIfError::Object { .. })));
}

#[test]
fn files_may_hold_lists_and_several_documents() {
    let yaml = "apiVersion: v1\nkind: List\nitems:\n- {kind: A}\n- {kind: B}\n---\nkind: C\n---\n";
    let kinds = |text: &str| read(text).unwrap().iter().map(|o| o["kind"].clone()).collect::<Vec<_>>();
    assert_eq!(kinds(yaml), ["A", "B", "C"]);
    assert_eq!(kinds(r#"{"kind":"List","items":[{"kind":"A"}]}"#), ["A"]);
    assert!(read("a: [").is_err());
}

#[test]
fn a_gang_that_waits_says_for_what() {
    let group = json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}});
    let member = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [], "schedulingGroup": {"podGroupName": "g"}}})
    };
    let said = |objects: &[Value]| {
        let mut picture = WhatIf::new(&Configuration::default(), objects).unwrap();
        let first = picture.explain_pod("default", "a").unwrap().held_back;
        let again = picture.explain_pod("default", "a").unwrap().held_back;
        assert_eq!(first.len(), again.len());
        serde_json::to_string(&first).unwrap()
    };
    let waits = said(&[member("a")]);
    assert!(waits.contains("pod group") && waits.contains("to appear in scheduling queue"), "{waits}");
    let waits = said(&[group.clone(), member("a")]);
    assert!(waits.contains("waiting for minCount pods from a gang to appear in scheduling queue"), "{waits}");
    assert_eq!(said(&[group, member("a"), member("b")]), "[]");
}

#[test]
fn gangs_are_placed_as_a_whole_or_not_at_all() {
    let gang = |name: &str, min_count: u32| {
        json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}})
    };
    let job = |name: &str, pods: u32, cpu: &str| {
        let mut template = template(cpu);
        template["spec"]["schedulingGroup"] = json!({"podGroupName": name});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"parallelism": pods, "completions": pods, "template": template}})
    };
    let nodes = || vec![node("a", "2"), node("b", "2")];
    let counts = |s: &Simulation| (s.placed, s.unschedulable);

    let mut whole = cluster(&nodes());
    let said = whole.simulate("default", &[job("g", 4, "1"), gang("g", 4)]).unwrap();
    assert_eq!(counts(&said), (4, 0), "{said:?}");

    let mut short = cluster(&nodes());
    let said = short.simulate("default", &[gang("g", 5), job("g", 5, "1"), deployment(4, "1")]).unwrap();
    assert_eq!(counts(&said), (4, 5), "the gang holds nothing back from who comes after it: {said:?}");
    let first = &said.pods[0].message;
    assert!(
        first.starts_with("pod group is unschedulable, minCount (5) cannot be satisfied: 4 scheduled"),
        "{first}"
    );
    let last = &said.pods[4].message;
    assert!(last.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{last}");

    let mut part = cluster(&nodes());
    let said = part.simulate("default", &[gang("g", 3), job("g", 5, "1")]).unwrap();
    assert_eq!(counts(&said), (4, 1), "as many as find a place, where enough do");

    let mut few = cluster(&nodes());
    let said = few.simulate("default", &[gang("g", 3), job("g", 2, "1")]).unwrap();
    assert_eq!(said.pods[1].message, "waiting for minCount pods from a gang to appear in scheduling queue");
    let said = few.simulate("default", &[job("nowhere", 1, "1")]).unwrap();
    assert!(said.pods[0].message.contains("to appear in scheduling queue"), "{:?}", said.pods);
}

#[test]
fn a_bound_pod_is_judged_as_if_it_were_to_be_placed_now() {
    let objects = |managed: Value| {
        let mut own = pod("own", "3", Some("b"), 0);
        own["metadata"]["managedFields"] = managed;
        [node("a", "8"), node("b", "4"), node("small", "1"), own]
    };
    let mut bound = cluster(&objects(json!([])));
    let said = bound.explain_pod("default", "own").unwrap();
    assert_eq!((said.fits, said.of, said.node.as_deref()), (2, 3, Some("b")), "its own usage does not count");
    let here: Vec<_> = said.nodes.iter().filter(|n| n.current).map(|n| (n.name.as_str(), n.fits)).collect();
    assert_eq!(here, [("b", true)]);
    assert!(said.nodes.iter().filter(|n| n.fits).all(|n| !n.scores.is_empty()), "each node has its scores");
    assert_eq!(said.nodes[2].objections[0].words(), "NodeResourcesFit: Insufficient cpu");
    let managed = json!([{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1",
                          "fieldsV1": {"f:spec": {"f:nodeName": {}}}}]);
    let said = cluster(&objects(managed)).explain_pod("default", "own").unwrap();
    assert_eq!(said.fits, 1, "whoever wrote it asked for that node");
    assert_eq!(said.nodes[1].objections[0].plugin, "NodeName");
}

#[test]
fn a_held_workload_is_explained_as_the_scheduler_sees_it() {
    let mut held = pod("held", "1", None, 0);
    held["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: held back: nodes x, y, z stopped being ready"}]});
    let by = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "bomb", "uid": "j", "controller": true});
    held["metadata"]["ownerReferences"] = json!([by]);
    let mut bad = node("a", "8");
    bad["status"]["conditions"] = json!([{"type": "PodsFailToStart", "status": "True"}]);
    let objects = [bad, held.clone()];

    let said = cluster(&objects).explain_pod("default", "held").unwrap();
    assert_eq!(said.unknown.len(), 2, "what the objects only hint at: {:?}", said.unknown);

    let health = Arc::new(Health::default());
    health.configure(&crate::health::Awareness::default());
    let at = std::time::Duration::from_secs;
    let held: Pod = serde_json::from_value(held).unwrap();
    let owner = crate::health::observe::owner(&held);
    for (node, came, fell) in [("x", 0, 100), ("y", 150, 200), ("z", 250, 300)] {
        health.node_fell(node, &[(owner.clone(), at(came))], at(fell));
    }
    assert_eq!(health.count_held(), 1);
    let configuration = Configuration::default();
    let mut live = WhatIf::with_health(&configuration, &objects, Some(Arc::clone(&health))).unwrap();
    let said = live.explain_pod("default", "held").unwrap();
    assert!(
        said.message.starts_with("0/1 nodes are available: held back: nodes x, y, z"),
        "{}",
        said.message
    );
    assert!(said.unknown.is_empty());
    health.release(&owner);
    assert_eq!(live.explain_pod("default", "held").unwrap().fits, 1, "it is the scheduler's own state");
}
