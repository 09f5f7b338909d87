//! The answers to questions about scheduling, in their JSON form.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::explain::Scores;
use crate::framework::{Code, PodInfo, Remedy, Status};
use crate::snapshot::PlacedPod;

/// A plugin's reasons against a node or a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objection {
    pub plugin: String,
    pub reasons: Vec<String>,
    /// Whether evicting other pods could help.
    pub preemption_may_help: bool,
    /// The changes that would remove the objection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<String>,
    /// How much is missing, in thousandths of the request.
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

    /// Sets the remedies.
    pub fn with(mut self, remedies: Vec<Remedy>) -> Self {
        self.missing = remedies.iter().map(|remedy| remedy.missing).sum();
        self.remedies = remedies.into_iter().map(|remedy| remedy.text).collect();
        self
    }

    /// The text, for example `NodeResourcesFit: Insufficient cpu, Insufficient memory`.
    pub fn words(&self) -> String {
        format!("{}: {}", self.plugin, self.reasons.join(", "))
    }
}

/// The score of one plugin for one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginScore {
    pub plugin: String,
    pub weight: i64,
    /// The score as the plugin returned it.
    pub raw: i64,
    /// The score from 0 to 100. Multiplied by the weight it is part of the node's total.
    pub normalized: i64,
}

impl PluginScore {
    /// Returns the score of the node with this index among the feasible ones.
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

/// The result for one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    pub name: String,
    /// Whether the pod is on this node already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub current: bool,
    pub fits: bool,
    /// The weighted sum of the plugins' scores.
    pub score: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<PluginScore>,
    /// All objections to the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objections: Vec<Objection>,
}

impl NodeReport {
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

/// Nodes with the same objections. They would fit if these were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The objections, with the remedies of the first node.
    pub objections: Vec<Objection>,
    /// The nodes; the one that misses least is first.
    pub nodes: Vec<String>,
    /// What exactly would have to change, which can differ between the nodes. Only the first few ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
    /// The number of further ways.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_ways: usize,
}

/// Nodes that need the same changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// The changes, all of which are needed.
    pub remedies: Vec<String>,
    /// The nodes; the one that misses least is first.
    pub nodes: Vec<String>,
}

/// The number of ways listed for one change.
const WAYS: usize = 3;

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Way {
    /// Returns the first few different ways in the order of the nodes, and the number of further ones.
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

/// The properties by which two objections count as the same.
type Against<'a> = (&'a str, &'a [String], bool);

impl Change {
    /// Groups the nodes by their objections: the fewest objections first, then the most nodes.
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

/// A pod that preemption would evict.
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

/// A preemption that would make the pod fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preemption {
    pub node: String,
    pub victims: Vec<Victim>,
}

/// Why a pod would be placed on its node, or on none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    pub namespace: String,
    pub pod: String,
    pub scheduler_name: String,
    pub priority: i32,
    /// The node that the pod is on already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the pod names a node that does not exist.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_is_missing: bool,
    /// What to do about the missing node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The number of nodes that fit, out of `of`.
    pub fits: usize,
    pub of: usize,
    /// The message, as in events and conditions.
    pub message: String,
    /// What only the running scheduler knows, and this answer therefore leaves open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// The plugins that keep the pod out of the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<Objection>,
    /// Set when a plugin rejected the pod for every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
    /// The nodes with the highest score. The scheduler chooses one of them at random.
    pub best: Vec<String>,
    /// The preemption that would make room for the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// All nodes: those that fit first, by descending score.
    pub nodes: Vec<NodeReport>,
    pub changes: Vec<Change>,
}

impl Explanation {
    /// Returns an explanation without results; `of` is the number of nodes.
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

/// The placement of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    pub namespace: String,
    pub pod: String,
    /// The node; `None` means that no node fits, for the reason in `message`.
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preempts: Vec<Victim>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Placement {
    /// Returns the placement of a pod that has no node yet.
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

/// The result of simulating a list of manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Simulation {
    pub placed: usize,
    pub unschedulable: usize,
    pub preempted: usize,
    /// The placements in scheduling order.
    pub pods: Vec<Placement>,
}

impl Simulation {
    /// Adds the placement of a pod and counts it.
    pub fn add(&mut self, placement: Placement) {
        match placement.node {
            Some(_) => self.placed += 1,
            None => self.unschedulable += 1,
        }
        self.preempted += placement.preempts.len();
        self.pods.push(placement);
    }
}
