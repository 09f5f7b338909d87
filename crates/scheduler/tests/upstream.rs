//! Compares upstream's results for random clusters (`upstream/facts.jsonl`, made by `upstream/facts.go`) with ours:
//! which nodes fit, which plugin rejected the others with which message, and every plugin's score.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_scheduler::cache::Cache;
use knarr_scheduler::explain::{Explained, explain};
use knarr_scheduler::framework::{Catalog, Code, PodInfo};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fact {
    namespaces: Option<Vec<Namespace>>,
    services: Option<Vec<Service>>,
    claims: Option<Vec<PersistentVolumeClaim>>,
    volumes: Option<Vec<PersistentVolume>>,
    classes: Option<Vec<StorageClass>>,
    csi_nodes: Option<Vec<CSINode>>,
    csi_drivers: Option<Vec<CSIDriver>>,
    capacities: Option<Vec<CSIStorageCapacity>>,
    attachments: Option<Vec<VolumeAttachment>>,
    nodes: Vec<Node>,
    pods: Option<Vec<Pod>>,
    pod: Pod,
    #[serde(default)]
    rejected: Vec<String>,
    unfit: BTreeMap<String, Verdict>,
    /// Weighted scores, by plugin and node.
    scores: BTreeMap<String, BTreeMap<String, i64>>,
    totals: BTreeMap<String, i64>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Verdict {
    plugin: String,
    code: String,
    reasons: Vec<String>,
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Unschedulable => "Unschedulable",
        Code::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
        _ => "other",
    }
}

/// Our result for the same cluster, with the nodes by name.
fn ours(fact: &Fact) -> (Explained, Vec<String>) {
    let catalog = Arc::new(Catalog::default());
    macro_rules! put {
        ($($kind:ident),*) => { $(fact.$kind.iter().flatten().for_each(|o| catalog.put(o.clone()));)* };
    }
    put!(services, claims, volumes, classes, csi_nodes, csi_drivers, capacities, attachments);
    let profile = knarr_scheduler::plugins::default_profile("default-scheduler", &catalog).unwrap();
    let mut cache = Cache::default();
    for ns in fact.namespaces.iter().flatten() {
        let labels = ns.metadata.labels.clone().unwrap_or_default();
        cache.set_namespace(ns.metadata.name.as_deref().unwrap(), Some(labels));
    }
    fact.nodes.iter().for_each(|node| cache.set_node(Arc::new(node.clone())));
    fact.pods.iter().flatten().for_each(|pod| cache.set_pod(pod));
    let cluster = cache.snapshot();
    let names = cluster.live().iter().map(|at| cluster.row(at).name().to_owned()).collect();
    (explain(&profile, cluster, &PodInfo::new(&fact.pod)), names)
}

fn compare(number: usize, fact: &Fact) -> Vec<String> {
    let (ours, names) = ours(fact);
    let name = |at: u32| names[at as usize].clone();
    let mut wrong = Vec::new();
    let mut check = |what: &str, upstream: String, ours: String| {
        if upstream != ours {
            wrong.push(format!("case {}: {what}\n  upstream {upstream}\n  ours     {ours}", number + 1));
        }
    };
    let rejected =
        ours.rejected.as_ref().map(|s| s.reasons.iter().map(|r| r.to_string()).collect::<Vec<_>>());
    check("rejected", format!("{:?}", fact.rejected), format!("{:?}", rejected.unwrap_or_default()));
    let unfit = ours.unfit.iter().map(|(at, plugin, status)| {
        let reasons = status.reasons.iter().map(|r| r.to_string()).collect();
        (name(*at), Verdict { plugin: (*plugin).to_owned(), code: code(status.code).to_owned(), reasons })
    });
    // Upstream lists no nodes that no filter was run for.
    let unfit: BTreeMap<_, _> = unfit.filter(|(n, _)| fact.unfit.contains_key(n)).collect();
    check("unfit", format!("{:?}", fact.unfit), format!("{unfit:?}"));
    let totals: BTreeMap<_, _> = ours.feasible.iter().map(|at| name(*at)).zip(ours.totals.clone()).collect();
    check("totals", format!("{:?}", fact.totals), format!("{totals:?}"));
    let mut scores: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for score in &ours.scores {
        let weighted = score.normalized.iter().map(|n| n * score.weight);
        scores.insert(
            score.plugin.to_owned(),
            ours.feasible.iter().map(|at| name(*at)).zip(weighted).collect(),
        );
    }
    // A plugin without a preference returns no scores, or only zeros.
    let telling = |all: &BTreeMap<String, BTreeMap<String, i64>>| {
        let mut all = all.clone();
        all.retain(|_, nodes| nodes.values().any(|score| *score != 0));
        format!("{all:?}")
    };
    check("scores", telling(&fact.scores), telling(&scores));
    wrong
}

#[test]
fn plugins_answer_as_upstreams_do() {
    let facts = include_str!("upstream/facts.jsonl");
    let facts: Vec<Fact> = facts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(facts.len() > 200, "the facts were read");
    let wrong: Vec<String> = facts.iter().enumerate().flat_map(|(n, fact)| compare(n, fact)).collect();
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong[..wrong.len().min(12)].join("\n"));
}
