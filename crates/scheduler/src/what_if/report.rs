//! What questions about scheduling are answered with, as JSON has it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::explain::Scores;
use crate::framework::{Code, PodInfo, Remedy, Status};
use crate::snapshot::PlacedPod;

/// A plugin's words against a node or a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objection {
    pub plugin: String,
    pub reasons: Vec<String>,
    /// Whether other pods' leaving could help.
    pub preemption_may_help: bool,
    /// What exactly would have to be different there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<String>,
    /// How much is missing, in thousandths of what is asked for.
    #[serde(skip)]
    pub missing: u64,
}

impl Objection {
    pub fn of(plugin: &str, status: &Status) -> Self {
        Self {
            plugin: plugin.to_owned(),
            reasons: status.reasons.iter().map(|r| r.to_string()).collect(),
            preemption_may_help: status.code == Code::Unschedulable,
            remedies: Vec::new(),
            missing: 0,
        }
    }

    pub fn with(mut self, remedies: Vec<Remedy>) -> Self {
        self.missing = remedies.iter().map(|remedy| remedy.missing).sum();
        self.remedies = remedies.into_iter().map(|remedy| remedy.text).collect();
        self
    }

    /// `NodeResourcesFit: Insufficient cpu, Insufficient memory`.
    pub fn words(&self) -> String {
        format!("{}: {}", self.plugin, self.reasons.join(", "))
    }
}

/// What one plugin gives one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginScore {
    pub plugin: String,
    pub weight: i64,
    /// As the plugin counts.
    pub raw: i64,
    /// 0 to 100; times the weight it is in the node's score.
    pub normalized: i64,
}

impl PluginScore {
    /// The score of the node at this place among the feasible ones.
    pub fn of(scores: &Scores, place: usize) -> Self {
        let at = |list: &[i64]| list.get(place).copied().unwrap_or_default();
        Self {
            plugin: scores.plugin.to_owned(),
            weight: scores.weight,
            raw: at(&scores.raw),
            normalized: at(&scores.normalized),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    pub name: String,
    /// The pod is on it already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub current: bool,
    pub fits: bool,
    /// The weighted sum of the plugins' scores.
    pub score: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<PluginScore>,
    /// Everything against the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objections: Vec<Objection>,
}

impl NodeReport {
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

/// Nodes that all the same is against, and nothing else: were that different, they would fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// With the remedies of the first of the nodes.
    pub objections: Vec<Objection>,
    /// The one that lacks least is the first.
    pub nodes: Vec<String>,
    /// What exactly would have to be different: not the same on all of them. A few of the ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
    /// How many ways there are besides these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_ways: usize,
}

/// Nodes on which the same would have to be different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// All of it.
    pub remedies: Vec<String>,
    /// The one that lacks least is the first.
    pub nodes: Vec<String>,
}

/// Ways that are named of one change.
const WAYS: usize = 3;

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Way {
    /// The first few different ones, in the order of the nodes, and how many more there are.
    fn of(nodes: &[&NodeReport]) -> (Vec<Self>, usize) {
        let mut places: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
        let mut ways: Vec<Self> = Vec::new();
        for node in nodes {
            let remedies = node.objections.iter().flat_map(|o| &o.remedies).map(String::as_str);
            let remedies: Vec<&str> = remedies.collect();
            if remedies.is_empty() {
                continue;
            }
            let owned = || remedies.iter().map(|text| (*text).to_owned()).collect();
            let next = places.len();
            let place = *places.entry(remedies.clone()).or_insert(next);
            match ways.get_mut(place) {
                Some(way) => way.nodes.push(node.name.clone()),
                None if place < WAYS => {
                    ways.push(Self { remedies: owned(), nodes: vec![node.name.clone()] });
                }
                None => {}
            }
        }
        (ways, places.len().saturating_sub(WAYS))
    }
}

/// What makes an objection the same as another one's.
type Against<'a> = (&'a str, &'a [String], bool);

impl Change {
    /// The smallest changes first, then those that help most nodes.
    pub fn of(nodes: &[NodeReport]) -> Vec<Self> {
        let mut by: BTreeMap<Vec<Against>, Vec<&NodeReport>> = BTreeMap::new();
        for node in nodes.iter().filter(|n| !n.fits) {
            let against = node.objections.iter();
            let against = against.map(|o| (o.plugin.as_str(), o.reasons.as_slice(), o.preemption_may_help));
            by.entry(against.collect()).or_default().push(node);
        }
        let made = by.into_values().map(|mut nodes| {
            nodes.sort_by_key(|node| node.objections.iter().map(|o| o.missing).sum::<u64>());
            let objections = nodes.first().map(|node| node.objections.clone()).unwrap_or_default();
            let (ways, more_ways) = Way::of(&nodes);
            let nodes = nodes.into_iter().map(|node| node.name.clone()).collect();
            Self { objections, nodes, ways, more_ways }
        });
        let mut all: Vec<Self> = made.collect();
        all.sort_by_key(|c| (c.objections.len(), std::cmp::Reverse(c.nodes.len())));
        all
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    pub namespace: String,
    pub name: String,
    pub priority: i32,
}

impl Victim {
    pub fn of(pod: &PlacedPod) -> Self {
        Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name.to_string(),
            priority: pod.footprint.priority,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preemption {
    pub node: String,
    pub victims: Vec<Victim>,
}

/// Why a pod would go where it would go, or nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    pub namespace: String,
    pub pod: String,
    pub scheduler_name: String,
    pub priority: i32,
    /// The node it is on already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The pod names a node, and there is none of that name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_is_missing: bool,
    /// What to do about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Nodes that fit, of so many.
    pub fits: usize,
    pub of: usize,
    /// As events and conditions say it.
    pub message: String,
    /// What only the running scheduler knows, and this answer does not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// What keeps the pod out of the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<Objection>,
    /// Set when a plugin turned the pod down on every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
    /// The nodes with the highest score; chance decides between several.
    pub best: Vec<String>,
    /// The room that would be made for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// Those that fit first, the best first.
    pub nodes: Vec<NodeReport>,
    pub changes: Vec<Change>,
}

impl Explanation {
    pub fn about(pod: &PodInfo, node: Option<String>, of: usize) -> Self {
        Self {
            namespace: pod.namespace().to_owned(),
            pod: pod.name.to_string(),
            scheduler_name: pod.scheduler_name().to_owned(),
            priority: pod.priority(),
            node,
            node_is_missing: false,
            remedy: None,
            fits: 0,
            of,
            message: String::new(),
            unknown: Vec::new(),
            held_back: Vec::new(),
            rejected: None,
            best: Vec::new(),
            preemption: None,
            nodes: Vec::new(),
            changes: Vec::new(),
        }
    }
}

/// Where one pod would go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    pub namespace: String,
    pub pod: String,
    /// `None`: nowhere, for the reason in `message`.
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preempts: Vec<Victim>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Placement {
    pub fn of(pod: &PodInfo) -> Self {
        Self {
            namespace: pod.namespace().to_owned(),
            pod: pod.name.to_string(),
            node: None,
            preempts: Vec::new(),
            message: String::new(),
        }
    }
}

/// What would become of a set of manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Simulation {
    pub placed: usize,
    pub unschedulable: usize,
    pub preempted: usize,
    /// In the order in which they would be scheduled.
    pub pods: Vec<Placement>,
}

impl Simulation {
    pub fn add(&mut self, placement: Placement) {
        match placement.node {
            Some(_) => self.placed += 1,
            None => self.unschedulable += 1,
        }
        self.preempted += placement.preempts.len();
        self.pods.push(placement);
    }
}
