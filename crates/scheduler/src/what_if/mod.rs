//! Answers what the scheduler would do: runs the real plugins and cycles on a copy of a cluster, and binds nothing.

mod bounds;
mod gangs;
mod objects;
pub mod report;
mod workloads;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use knarr_api::kind::{Kind, ObjectKey};
use serde_json::Value;
use thiserror::Error;

use crate::cache::Cache;
use crate::config::{ConfigError, Configuration};
use crate::explain::explain;
use crate::framework::points::NodeView;
use crate::framework::rooms::make_room;
use crate::framework::work::Work;
use crate::framework::{Attempt, Catalog, PodInfo, Profile, Profiles, Room};
use crate::groups::Groups;
use crate::health::Health;
use crate::health_watch::CONDITION as PODS_FAIL_TO_START;
use crate::schedule_one::{Cycles, Outcome};
use crate::snapshot::{NodeIdx, Snapshot};
use gangs::Unit;
use report::{Change, Explanation, NodeReport, Objection, Placement, PluginScore, Simulation, Victim};

pub use bounds::Bounds;
use bounds::Budget;
pub use objects::{READ, read};

/// The scheduler chooses at random among equal nodes; a simulation always makes the same choice.
const SEED: u64 = 1;

/// Why a question cannot be answered.
#[derive(Debug, Error)]
pub enum WhatIfError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("object {at} ({kind}): {why}")]
    Object { at: usize, kind: String, why: String },
    #[error("pods \"{0}\" not found")]
    NoPod(String),
    #[error("no profile for scheduler name {0:?}: that pod is another scheduler's")]
    NoProfile(String),
    #[error(
        "{kind} \"{name}\" makes no pods: simulate pods, deployments, replicasets, replicationcontrollers, statefulsets, daemonsets, jobs and cronjobs"
    )]
    NoPods { kind: String, name: String },
    #[error("{kind} \"{name}\" would make {pods} pods; {most} at most in one simulation")]
    TooMany { kind: String, name: String, pods: usize, most: usize },
    #[error("the pods of {kind} \"{name}\" are too large for one simulation, with those before them")]
    TooLarge { kind: String, name: String },
    #[error("the simulation took too long: place fewer pods at a time")]
    OutOfTime,
}

/// A copy of a cluster for questions about scheduling.
pub struct WhatIf {
    profiles: Profiles,
    cache: Cache,
    groups: Arc<Groups>,
    cycles: Cycles,
    nodes: BTreeMap<String, Arc<Node>>,
    pods: BTreeMap<ObjectKey, Arc<Pod>>,
    classes: Vec<PriorityClass>,
    simulated: usize,
    /// Whether a running scheduler's node failure awareness is part of the copy.
    health_known: bool,
}

impl WhatIf {
    /// Creates the copy from the objects of a cluster, as in a `List`. Kinds that scheduling does not read are skipped.
    pub fn new(configuration: &Configuration, objects: &[Value]) -> Result<Self, WhatIfError> {
        Self::with_health(configuration, objects, None)
    }

    /// Like `new`, with the running scheduler's state about nodes and workloads, which the objects do not contain.
    pub fn with_health(
        configuration: &Configuration,
        objects: &[Value],
        health: Option<Arc<Health>>,
    ) -> Result<Self, WhatIfError> {
        let catalog = Arc::new(Catalog::default());
        let health_known = health.is_some();
        if let Some(health) = health {
            catalog.share(health);
        }
        // Pods name a group only while the feature is on, so for other pods the gate makes no difference.
        let configuration = Configuration { generic_workload: true, ..configuration.clone() };
        let groups = catalog.shared::<Groups>();
        let mut own = Self {
            profiles: configuration.profiles(&catalog)?,
            cache: Cache::with_groups(Arc::clone(&groups)),
            groups,
            cycles: Cycles::new(SEED),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            classes: Vec::new(),
            simulated: 0,
            health_known,
        };
        for (at, object) in objects.iter().enumerate() {
            own.take(&catalog, object).map_err(|why| WhatIfError::Object {
                at,
                kind: object["kind"].as_str().unwrap_or("no kind").to_owned(),
                why,
            })?;
        }
        Ok(own)
    }

    /// The nodes of the copy.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    /// Explains a pod of the copy: why it is on its node, or on none.
    pub fn explain_pod(&mut self, namespace: &str, name: &str) -> Result<Explanation, WhatIfError> {
        let key = ObjectKey::new(namespace, name);
        let pod = self.pods.get(&key).cloned().ok_or_else(|| WhatIfError::NoPod(name.to_owned()))?;
        // The pod's own requests and terms must not count against it.
        self.cache.take_off(pod.uid());
        let bound = node_of(&pod);
        let explained = self
            .explain(&if_placed_now(&pod), bound)
            .map(|explanation| with_remedy(explanation, &pod, false));
        if pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) {
            self.cache.set_pod(&pod);
        }
        explained
    }

    /// Explains the pod of a manifest that does not exist in the cluster, or the first pod of a workload; `None` for
    /// manifests without pods.
    pub fn explain_manifest(
        &self,
        namespace: &str,
        object: &Value,
    ) -> Result<Option<Explanation>, WhatIfError> {
        let first = workloads::pods(self, namespace, object, Some(1), &mut Budget::new(&Bounds::default()))?;
        let explain = |pod| Ok(with_remedy(self.explain(pod, node_of(pod))?, pod, true));
        first.first().map(explain).transpose()
    }

    /// Explains a pod; `bound` is the node it is on.
    fn explain(&self, pod: &Pod, bound: Option<String>) -> Result<Explanation, WhatIfError> {
        let info = PodInfo::new(pod);
        let (_, profile) = self.profile(&info)?;
        let snapshot = self.cache.snapshot();
        let mut explanation = Explanation::about(&info, bound, snapshot.len());
        explanation.node_is_missing =
            explanation.node.as_ref().is_some_and(|name| !self.nodes.contains_key(name));
        if !self.health_known {
            explanation.unknown = self.unknown(&info);
        }
        for plugin in &profile.points.pre_enqueue {
            let status = plugin.pre_enqueue(&info);
            if !status.is_success() {
                explanation.held_back.push(Objection::of(plugin.name(), &status));
            }
        }
        let plain = explain(profile, snapshot, &info);
        if let Some(status) = &plain.rejected {
            explanation.message = format!("0/{} nodes are available: {}.", snapshot.len(), status.message());
            explanation.rejected = Some(status.message());
            return Ok(explanation);
        }
        let work = Work::prepare(profile, snapshot, &info.shape);
        for (place, at) in plain.feasible.iter().enumerate() {
            let mut node = NodeReport::of(snapshot.row(*at).name());
            node.fits = true;
            node.score = plain.totals.get(place).copied().unwrap_or_default();
            node.scores = plain.scores.iter().map(|s| PluginScore::of(s, place)).collect();
            explanation.nodes.push(node);
        }
        for (at, plugin, status) in &plain.unfit {
            let mut node = NodeReport::of(snapshot.row(*at).name());
            node.objections = objections(&work, snapshot, &info, *at);
            if node.objections.is_empty() {
                node.objections.push(Objection::of(plugin, status));
            }
            explanation.nodes.push(node);
        }
        for node in &mut explanation.nodes {
            node.current = explanation.node.as_ref() == Some(&node.name);
        }
        explanation.nodes.sort_by(|a, b| {
            (b.fits, b.score, a.objections.len(), &a.name).cmp(&(
                a.fits,
                a.score,
                b.objections.len(),
                &b.name,
            ))
        });
        explanation.fits = plain.feasible.len();
        self.conclude(&mut explanation, profile, &info, &work);
        Ok(explanation)
    }

    /// Returns the parts of the running scheduler's state that are unknown here and may change the result: whether the
    /// pod is held back, and whether nodes are avoided. The conditions of the pod and the nodes hint at them.
    fn unknown(&self, info: &PodInfo) -> Vec<String> {
        let mut unknown = Vec::new();
        if let Some(said) = info.said.as_deref().filter(|said| said.1.contains(": held back: ")) {
            unknown.push(format!("whether the pod is still held back: the scheduler last said {:?}", said.1));
        }
        let avoided = |node: &&Arc<Node>| {
            let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.any(|c| c.type_ == PODS_FAIL_TO_START && c.status == "True")
        };
        let avoided: Vec<&str> = self.nodes.values().filter(avoided).map(|n| n.name()).collect();
        if !avoided.is_empty() {
            let names = avoided.join(", ");
            unknown.push(format!(
                "whether nodes are still avoided that have the condition {PODS_FAIL_TO_START}: {names}"
            ));
        }
        unknown
    }

    /// Adds the chosen node, or the preemption that would take place, and the changes that would make more nodes fit.
    fn conclude(&self, explanation: &mut Explanation, profile: &Profile, info: &PodInfo, work: &Work) {
        explanation.changes = Change::of(&explanation.nodes);
        if explanation.fits > 0 {
            explanation.best = explanation
                .nodes
                .iter()
                .take_while(|n| n.fits && n.score == explanation.nodes[0].score)
                .map(|n| n.name.clone())
                .collect();
            explanation.message = format!("{}/{} nodes are available", explanation.fits, explanation.of);
            return;
        }
        let mut cycles = Cycles::new(SEED);
        let Outcome::NoFit(mut diagnosis) = cycles.schedule(0, profile, self.cache.snapshot(), info) else {
            return;
        };
        let attempt = Attempt { cluster: self.cache.snapshot(), pod: info, work, diagnosis: &diagnosis };
        match make_room(profile, &attempt) {
            Ok((_, rooms)) => explanation.preemption = rooms.first().map(|room| self.preemption(room)),
            Err(none) => diagnosis.post_filter = none.map(|n| n.words).filter(|w| !w.is_empty()),
        }
        explanation.message = diagnosis.message();
    }

    fn preemption(&self, room: &Room) -> report::Preemption {
        report::Preemption {
            node: self.cache.snapshot().row(room.node).name().to_owned(),
            victims: room.victims.iter().map(|v| Victim::of(v)).collect(),
        }
    }

    /// Places the pods of these manifests one after the other, counting each before the next. The pods of a group are
    /// placed together.
    pub fn simulate(&mut self, namespace: &str, manifests: &[Value]) -> Result<Simulation, WhatIfError> {
        self.simulate_within(namespace, manifests, &Bounds::default())
    }

    /// Like [`WhatIf::simulate`], with limits. After an error the copy contains the pods that were placed until then.
    pub fn simulate_within(
        &mut self,
        namespace: &str,
        manifests: &[Value],
        bounds: &Bounds<'_>,
    ) -> Result<Simulation, WhatIfError> {
        let mut simulation = Simulation::default();
        let mut budget = Budget::new(bounds);
        let mut pods = Vec::new();
        for manifest in manifests {
            if gangs::is_group(manifest) {
                self.take_group(namespace, manifest)?;
            } else {
                pods.extend(workloads::pods(self, namespace, manifest, None, &mut budget)?);
            }
            if (bounds.stop)() {
                return Err(WhatIfError::OutOfTime);
            }
        }
        for unit in gangs::units(&self.groups, pods) {
            if (bounds.stop)() {
                return Err(WhatIfError::OutOfTime);
            }
            match unit {
                Unit::Pod(pod) => simulation.add(self.place(*pod)?),
                Unit::Gang(group, pods) => {
                    self.place_gang(&group, pods, bounds.stop)?.into_iter().for_each(|p| simulation.add(p));
                }
            }
        }
        Ok(simulation)
    }

    /// Returns the pod with a new uid.
    fn as_new(&mut self, mut pod: Pod) -> Pod {
        self.simulated += 1;
        pod.metadata.uid = Some(format!("simulated-{}", self.simulated));
        pod
    }

    fn place(&mut self, pod: Pod) -> Result<Placement, WhatIfError> {
        let pod = self.as_new(pod);
        let info = PodInfo::new(&pod);
        let mut placement = Placement::of(&info);
        let at = self.profile(&info)?.0;
        let Some(profile) = self.profiles.iter().nth(at) else { return Ok(placement) };
        for plugin in &profile.points.pre_enqueue {
            let status = plugin.pre_enqueue(&info);
            if !status.is_success() {
                placement.message = status.message();
                return Ok(placement);
            }
        }
        match self.cycles.schedule(at, profile, self.cache.snapshot(), &info) {
            Outcome::Placed(node) => placement.node = Some(self.cache.snapshot().row(node).name().to_owned()),
            Outcome::Failed(why) => placement.message = why,
            Outcome::NoFit(mut diagnosis) => {
                let work = Work::prepare(profile, self.cache.snapshot(), &info.shape);
                let attempt = Attempt {
                    cluster: self.cache.snapshot(),
                    pod: &info,
                    work: &work,
                    diagnosis: &diagnosis,
                };
                match make_room(profile, &attempt) {
                    Ok((_, rooms)) => {
                        if let Some(room) = rooms.first() {
                            placement.node = Some(self.cache.snapshot().row(room.node).name().to_owned());
                            placement.preempts = room.victims.iter().map(|v| Victim::of(v)).collect();
                            room.victims.iter().for_each(|victim| self.cache.remove_pod(&victim.uid));
                        }
                    }
                    Err(none) => diagnosis.post_filter = none.map(|n| n.words).filter(|w| !w.is_empty()),
                }
                if placement.node.is_none() {
                    placement.message = diagnosis.message();
                }
            }
        }
        if let Some(node) = &placement.node {
            self.cache.assume(&info, node);
        }
        Ok(placement)
    }

    fn profile(&self, info: &PodInfo) -> Result<(usize, &Profile), WhatIfError> {
        let name = info.scheduler_name();
        self.profiles.find(name).ok_or_else(|| WhatIfError::NoProfile(name.to_owned()))
    }
}

fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref().and_then(|s| s.node_name.clone()).filter(|n| !n.is_empty())
}

/// Adds the remedy for a pod that names a node that does not exist; `is_written` means that the pod is from a manifest.
fn with_remedy(explanation: Explanation, pod: &Pod, is_written: bool) -> Explanation {
    let Some(node) = explanation.node.as_deref().filter(|_| explanation.node_is_missing) else {
        return explanation;
    };
    let instead = if is_written {
        "take spec.nodeName out of the manifest"
    } else if names_its_node(pod) {
        "delete the pod and create it without spec.nodeName"
    } else if pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true)) {
        "delete the pod, for its controller to make another one"
    } else {
        "delete the pod and create it anew"
    };
    let remedy = format!("there is no node {node:?}: start one of that name, or {instead}");
    Explanation { remedy: Some(remedy), ..explanation }
}

/// Returns the pod as the scheduler first saw it: without the node name that a binding wrote into it.
fn if_placed_now(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if !names_its_node(&pod)
        && let Some(spec) = &mut pod.spec
    {
        spec.node_name = None;
    }
    pod
}

/// Returns whether the author of the pod chose the node: requests leave a mark in `managedFields`, bindings do not.
fn names_its_node(pod: &Pod) -> bool {
    let mut owners = pod.metadata.managed_fields.iter().flatten();
    owners.any(|entry| {
        let fields = entry.fields_v1.as_ref().map(|f| &f.0["f:spec"]["f:nodeName"]);
        entry.subresource.as_deref().unwrap_or("").is_empty() && fields.is_some_and(|f| !f.is_null())
    })
}

/// Returns the verdicts of all filters against the node, not only the first one.
fn objections(work: &Work, cluster: &Snapshot, pod: &PodInfo, at: NodeIdx) -> Vec<Objection> {
    let node = NodeView { cluster, at, row: cluster.row(at) };
    let verdicts = work.filters.iter().map(|f| (f, f.filter.check(&node)));
    let against = verdicts.filter(|(_, status)| !status.is_success());
    against.map(|(f, status)| Objection::of(f.plugin, &status).with(f.filter.remedies(pod, &node))).collect()
}

#[cfg(test)]
mod tests;
