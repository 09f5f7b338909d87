//! Tests of the usage of objects and of the decisions of quotas.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn shown(amounts: &Amounts) -> String {
    amounts::shown(amounts)
}

fn pod(requests: Value, limits: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "resources": {"requests": requests, "limits": limits}}]}})
}

#[test]
fn what_objects_use() {
    let mut init = pod(json!({"cpu": "100m"}), json!({}));
    init["spec"]["initContainers"] = json!([
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}},
        {"name": "init", "resources": {"requests": {"cpu": "200m", "example.com/gpu": "1"}}}]);
    init["spec"]["overhead"] = json!({"cpu": "1m"});
    let mut done = pod(json!({"cpu": "1"}), json!({}));
    done["status"] = json!({"phase": "Succeeded"});
    let mut hung = pod(json!({"cpu": "1"}), json!({}));
    hung["metadata"] = json!({"deletionTimestamp": "2025-12-31T23:59:00Z", "deletionGracePeriodSeconds": 30});
    let mut resized = pod(json!({"cpu": "1"}), json!({}));
    resized["status"] = json!({"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]});
    let mut whole = pod(json!({"cpu": "1"}), json!({}));
    whole["spec"]["resources"] = json!({"requests": {"cpu": "3"}, "limits": {"memory": "1Gi"}});
    let balancer = |allocate: bool| {
        json!({"spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": allocate,
            "ports": [{"port": 1, "nodePort": 30000}, {"port": 2}]}})
    };
    let claim = json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1.5"}}},
        "status": {"allocatedResources": {"storage": "1"}}});
    let devices = json!({"spec": {"devices": {"requests": [
        {"exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
        {"firstAvailable": [
            {"deviceClassName": "gpu", "allocationMode": "All"},
            {"deviceClassName": "nic", "allocationMode": "ExactCount", "count": 1}]}]}}});
    for (group, plural, object, expected) in [
        (
            "",
            "pods",
            pod(json!({"cpu": "100m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}), json!({"cpu": "1"})),
            "count/pods=1,cpu=100m,hugepages-2Mi=4Mi,limits.cpu=1,memory=1Gi,pods=1,requests.cpu=100m,requests.hugepages-2Mi=4Mi,requests.memory=1Gi",
        ),
        ("", "pods", init, "count/pods=1,cpu=251m,pods=1,requests.cpu=251m,requests.example.com/gpu=1"),
        ("", "pods", done, "count/pods=1"),
        ("", "pods", hung, "count/pods=1"),
        ("", "pods", resized, "count/pods=1,cpu=2,pods=1,requests.cpu=2"),
        ("", "pods", whole, "count/pods=1,cpu=3,limits.memory=1Gi,pods=1,requests.cpu=3"),
        ("", "pods", json!("nonsense"), "count/pods=1,pods=1"),
        (
            "",
            "services",
            json!({"spec": {"type": "NodePort", "ports": [{"port": 1}]}}),
            "count/services=1,services=1,services.loadbalancers=0,services.nodeports=1",
        ),
        (
            "",
            "services",
            balancer(true),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=2",
        ),
        (
            "",
            "services",
            balancer(false),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=1",
        ),
        (
            "",
            "persistentvolumeclaims",
            claim,
            "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=2,persistentvolumeclaims=1,requests.storage=2",
        ),
        (
            "resource.k8s.io",
            "resourceclaims",
            devices,
            "count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.resource.k8s.io/devices=34,nic.deviceclass.resource.k8s.io/devices=1",
        ),
        ("", "secrets", json!({}), "count/secrets=1,secrets=1"),
        ("apps", "deployments", json!({}), "count/deployments.apps=1"),
    ] {
        let usage = Evaluator::of(group, plural).unwrap().usage(&object, now());
        assert_eq!(shown(&usage), expected, "{object}");
        for name in usage.keys().filter(|n| *n != "hugepages-2Mi") {
            let of = Evaluator::resource_of(name);
            assert_eq!(of, Some((group.to_owned(), plural.to_owned())), "{name}");
        }
    }
    assert_eq!(Evaluator::of("", "events"), None);
}

fn quota(name: &str, hard: Value, used: Value, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec, "status": {"hard": hard, "used": used}})
}

fn outcome(
    quotas: &[Value],
    plural: &str,
    new: &Value,
    old: Option<&Value>,
    limited: &[Limited],
) -> Result<BTreeMap<usize, String>, Refusal> {
    let quotas: Vec<&Value> = quotas.iter().collect();
    let evaluator = Evaluator::of("", plural).unwrap();
    let charge = Charge {
        evaluator: &evaluator,
        group: "",
        resource: plural,
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        subresource: "",
        new,
        old,
        now: now(),
    };
    Ok(check(&quotas, &charge, limited)?.iter().map(|(i, a)| (*i, shown(a))).collect())
}

#[test]
fn what_quotas_allow() {
    let small = pod(json!({"cpu": "500m", "memory": "1Gi"}), json!({}));
    let cpu = |used: &str| quota("q", json!({"cpu": "1"}), json!({"cpu": used}), json!({}));
    let best = quota("b", json!({"pods": "1"}), json!({"pods": "0"}), json!({"scopes": ["BestEffort"]}));
    let none = pod(json!({}), json!({}));
    let forbidden = |why: &str| Err(Refusal::Forbidden(why.to_owned()));
    for (quotas, pod, expected) in [
        (vec![cpu("0"), best.clone()], &small, Ok(BTreeMap::from([(0, "cpu=500m".to_owned())]))),
        (
            vec![cpu("600m")],
            &small,
            forbidden("exceeded quota: q, requested: cpu=500m, used: cpu=600m, limited: cpu=1"),
        ),
        (vec![cpu("0")], &none, forbidden("failed quota: q: must specify cpu for: c")),
        (
            vec![quota("q", json!({"cpu": "1"}), json!({}), json!({}))],
            &small,
            forbidden("status unknown for quota: q, resources: cpu"),
        ),
        (vec![best.clone()], &none, Ok(BTreeMap::from([(0, "pods=1".to_owned())]))),
        (vec![best], &small, Ok(BTreeMap::new())),
        (
            vec![quota("q", json!({"secrets": "0"}), json!({"secrets": "0"}), json!({}))],
            &small,
            Ok(BTreeMap::new()),
        ),
        (vec![], &small, Ok(BTreeMap::new())),
    ] {
        assert_eq!(outcome(&quotas, "pods", pod, None, &[]), expected, "{quotas:?}");
    }
}

#[test]
fn updates_pay_the_difference() {
    let service = |kind: &str| json!({"metadata": {"resourceVersion": "1"}, "spec": {"type": kind, "ports": [{"port": 1}]}});
    let quotas = [quota(
        "q",
        json!({"services": "1", "services.nodeports": "1"}),
        json!({"services": "1", "services.nodeports": "0"}),
        json!({}),
    )];
    let (plain, port) = (service("ClusterIP"), service("NodePort"));
    for (new, old, expected) in [
        (&port, &plain, BTreeMap::from([(0, "services=1,services.nodeports=1".to_owned())])),
        (&plain, &plain, BTreeMap::new()),
        (&plain, &port, BTreeMap::new()),
    ] {
        assert_eq!(outcome(&quotas, "services", new, Some(old), &[]), Ok(expected));
    }
}

#[test]
fn scopes() {
    let class = |operator: &str, values: &[&str]| {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
    };
    let mut high = pod(json!({}), json!({}));
    high["spec"]["priorityClassName"] = "high".into();
    let mut short = pod(json!({}), json!({}));
    short["spec"]["activeDeadlineSeconds"] = 5.into();
    let plain = pod(json!({}), json!({}));
    let mut crossing = plain.clone();
    crossing["spec"]["affinity"] = json!({"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"namespaceSelector": {}}]}});
    for (spec, object, expected) in [
        (class("In", &["high"]), &high, true),
        (class("In", &["low"]), &high, false),
        (class("NotIn", &["low"]), &plain, true),
        (class("Exists", &[]), &plain, false),
        (class("DoesNotExist", &[]), &plain, true),
        (json!({"scopes": ["Terminating"]}), &short, true),
        (json!({"scopes": ["NotTerminating"]}), &short, false),
        (json!({"scopes": ["NotBestEffort"]}), &plain, false),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), &crossing, true),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), &plain, false),
        (json!({"scopes": ["Terminating", "BestEffort"]}), &short, true),
    ] {
        let quotas = [quota("q", json!({"pods": "9"}), json!({"pods": "0"}), spec.clone())];
        let changed = outcome(&quotas, "pods", object, None, &[]).unwrap();
        assert_eq!(!changed.is_empty(), expected, "{spec} {object}");
        let used = used(
            &Evaluator::Pods,
            &json!({"spec": {"hard": {"pods": "9"}, "scopes": spec["scopes"],
            "scopeSelector": spec["scopeSelector"]}}),
            [object],
            now(),
        );
        assert_eq!(shown(&used), format!("pods={}", u8::from(expected)), "{spec} {object}");
    }
}

#[test]
fn what_is_limited_needs_a_quota() {
    let class =
        Requirement { scope: "PriorityClass".into(), operator: "In".into(), values: vec!["high".into()] };
    let scoped = Limited { resource: "pods".into(), match_scopes: vec![class], ..Limited::default() };
    let cpu = Limited { resource: "pods".into(), match_contains: vec!["cpu".into()], ..Limited::default() };
    let mut high = pod(json!({"cpu": "1"}), json!({}));
    high["spec"]["priorityClassName"] = "high".into();
    let plain = pod(json!({"cpu": "1"}), json!({}));
    let covering = quota(
        "q",
        json!({"pods": "9", "cpu": "9", "requests.cpu": "9"}),
        json!({"pods": "0", "cpu": "0", "requests.cpu": "0"}),
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}),
    );
    let refused = "insufficient quota to match these scopes: [{PriorityClass In [high]}]";
    assert_eq!(
        outcome(&[], "pods", &high, None, std::slice::from_ref(&scoped)),
        Err(Refusal::Other(refused.into()))
    );
    assert_eq!(outcome(&[], "pods", &plain, None, std::slice::from_ref(&scoped)), Ok(BTreeMap::new()));
    let both = [scoped, cpu.clone()];
    assert!(outcome(&[covering], "pods", &high, None, &both).is_ok_and(|c| c.len() == 1));
    let refused = "insufficient quota to consume: cpu,requests.cpu";
    assert_eq!(outcome(&[], "pods", &plain, None, &[cpu]), Err(Refusal::Forbidden(refused.into())));
}
