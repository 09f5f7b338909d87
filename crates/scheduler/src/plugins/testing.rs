//! Builders of pods and nodes for tests of plugins, and functions that run a plugin on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerImage, ContainerPort, Node, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, PodSchedulingGroup, PodSpec,
    PreferredSchedulingTerm, Taint, Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::{Value, json};

use crate::framework::points::NodeView;
use crate::framework::profile::{Build, Descriptor};
use crate::framework::work::Work;
use crate::framework::{Catalog, PodInfo, Points, Profile, Status};
use crate::schedule_one::check_node;
use crate::snapshot::{NodeIdx, PlacedPod, Snapshot};

#[derive(Clone)]
pub struct PodBuilder(Pod);
#[derive(Clone)]
pub struct NodeBuilder(Node);

/// Returns a snapshot of these nodes, with pods on them by the index of the node.
pub fn cluster(nodes: Vec<NodeBuilder>, pods: Vec<(usize, PodBuilder)>) -> Snapshot {
    let mut cluster = Snapshot::default();
    nodes.into_iter().for_each(|n| {
        cluster.set_node(n.into());
    });
    for (n, (at, pod)) in pods.into_iter().enumerate() {
        let mut pod = pod.build();
        pod.metadata.uid = Some(format!("there-{n}"));
        cluster.add_pod(at as NodeIdx, Arc::new(PlacedPod::of(&pod)));
    }
    cluster
}

/// Returns a pod group in the default namespace: a gang with this minCount, or a basic group.
pub fn pod_group(name: &str, min_count: Option<i32>) -> PodGroup {
    let policy = match min_count {
        Some(count) => json!({"gang": {"minCount": count}}),
        None => json!({"basic": {}}),
    };
    let group = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulingPolicy": policy}});
    serde_json::from_value(group).unwrap()
}

/// Returns a profile with one plugin.
pub fn profile_of(descriptor: Descriptor, args: &Value) -> Profile {
    profile_with(descriptor, args, &Arc::default())
}

/// Returns a profile with one plugin that reads from this catalog.
pub fn profile_with(descriptor: Descriptor, args: &Value, catalog: &Arc<Catalog>) -> Profile {
    let mut points = Points::default();
    let parts = (descriptor.build)(&Build { args, catalog }).unwrap();
    points.add(parts, descriptor.weight);
    Profile::new("default-scheduler", points, 100)
}

/// Returns a plugin's status for every node.
pub fn verdicts(
    descriptor: Descriptor,
    pod: PodBuilder,
    nodes: Vec<NodeBuilder>,
    there: Vec<(usize, PodBuilder)>,
) -> Vec<Status> {
    verdicts_with(descriptor, &Value::Null, pod, nodes, there)
}

fn verdicts_with(
    descriptor: Descriptor,
    args: &Value,
    pod: PodBuilder,
    nodes: Vec<NodeBuilder>,
    there: Vec<(usize, PodBuilder)>,
) -> Vec<Status> {
    verdicts_in(&profile_of(descriptor, args), pod, cluster(nodes, there))
}

/// Returns a plugin's status for every node, with other objects in the catalog.
pub fn verdicts_of(
    descriptor: Descriptor,
    catalog: &Arc<Catalog>,
    pod: PodBuilder,
    nodes: Vec<NodeBuilder>,
    there: Vec<(usize, PodBuilder)>,
) -> Vec<Status> {
    verdicts_in(&profile_with(descriptor, &Value::Null, catalog), pod, cluster(nodes, there))
}

fn verdicts_in(profile: &Profile, pod: PodBuilder, cluster: Snapshot) -> Vec<Status> {
    let work = Work::prepare(profile, &cluster, &PodInfo::new(&pod.build()).shape);
    if let Some((_, status)) = work.rejected {
        return vec![status; cluster.len()];
    }
    let view = |at| NodeView { cluster: &cluster, at, row: cluster.row(at) };
    let verdict = |at| check_node(&work, &view(at)).map_or(Status::SUCCESS, |(_, status)| status);
    cluster.live().iter().map(verdict).collect()
}

/// Decodes an object from JSON.
pub fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns a plugin's status for one node.
pub fn verdict(descriptor: Descriptor, pod: PodBuilder, node: NodeBuilder, there: Vec<PodBuilder>) -> Status {
    verdict_with(descriptor, &Value::Null, pod, node, there)
}

pub fn verdict_with(
    descriptor: Descriptor,
    args: &Value,
    pod: PodBuilder,
    node: NodeBuilder,
    there: Vec<PodBuilder>,
) -> Status {
    let there = there.into_iter().map(|p| (0, p)).collect();
    verdicts_with(descriptor, args, pod, vec![node], there).remove(0)
}

/// Returns the normalized scores of a plugin for the nodes.
pub fn scores(
    descriptor: Descriptor,
    pod: PodBuilder,
    nodes: Vec<NodeBuilder>,
    there: Vec<(usize, PodBuilder)>,
) -> Vec<i64> {
    scores_with(descriptor, &Value::Null, pod, nodes, there)
}

pub fn scores_with(
    descriptor: Descriptor,
    args: &Value,
    pod: PodBuilder,
    nodes: Vec<NodeBuilder>,
    there: Vec<(usize, PodBuilder)>,
) -> Vec<i64> {
    let (profile, cluster) = (profile_of(descriptor, args), cluster(nodes, there));
    let mut work = Work::prepare(&profile, &cluster, &PodInfo::new(&pod.build()).shape);
    let nodes: Vec<NodeIdx> = cluster.live().iter().collect();
    let Some(active) = work.scores.first_mut() else { return vec![0; nodes.len()] };
    active.score.begin(&cluster, &nodes);
    let view = |at| NodeView { cluster: &cluster, at, row: cluster.row(at) };
    let mut scores: Vec<i64> = nodes.iter().map(|at| active.score.score(&view(*at))).collect();
    active.score.normalize(&cluster, &nodes, &mut scores);
    scores
}

pub fn labelled(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn selector(labels: &[(&str, &str)]) -> Option<LabelSelector> {
    Some(LabelSelector { match_labels: Some(labelled(labels)), match_expressions: None })
}

/// Returns a term that selects pods with these labels, in this topology.
pub fn term(labels: &[(&str, &str)], topology_key: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: selector(labels),
        topology_key: topology_key.into(),
        ..PodAffinityTerm::default()
    }
}

/// Returns a hard constraint for the pods with these labels.
pub fn spread(key: &str, max_skew: i32, labels: &[(&str, &str)]) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        topology_key: key.into(),
        max_skew,
        when_unsatisfiable: "DoNotSchedule".into(),
        label_selector: selector(labels),
        ..TopologySpreadConstraint::default()
    }
}

pub fn soft_spread(key: &str, max_skew: i32, labels: &[(&str, &str)]) -> TopologySpreadConstraint {
    TopologySpreadConstraint { when_unsatisfiable: "ScheduleAnyway".into(), ..spread(key, max_skew, labels) }
}

/// Returns a pod with one container, whose uid equals its name.
pub fn pod(name: &str) -> PodBuilder {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("default".into()),
        uid: Some(name.into()),
        ..ObjectMeta::default()
    };
    let spec = PodSpec { containers: vec![Container::default()], ..PodSpec::default() };
    PodBuilder(Pod { metadata, spec: Some(spec), ..Pod::default() })
}

/// Returns a node with 4 CPUs, 8Gi of memory and a limit of 110 pods.
pub fn node(name: &str) -> NodeBuilder {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    NodeBuilder(Node { metadata, ..Node::default() }).capacity("4", "8Gi", 110)
}

impl From<Pod> for PodBuilder {
    fn from(pod: Pod) -> Self {
        Self(pod)
    }
}

impl PodBuilder {
    pub fn build(self) -> Pod {
        self.0
    }

    fn spec(&mut self) -> &mut PodSpec {
        self.0.spec.as_mut().unwrap()
    }

    pub fn request(mut self, name: &str, amount: &str) -> Self {
        let resources = self.spec().containers[0].resources.get_or_insert_default();
        resources.requests.get_or_insert_default().insert(name.into(), Quantity(amount.into()));
        self
    }

    pub fn cpu(self, amount: &str) -> Self {
        self.request("cpu", amount)
    }

    pub fn memory(self, amount: &str) -> Self {
        self.request("memory", amount)
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// Makes the pod a member of this pod group.
    pub fn group(mut self, name: &str) -> Self {
        self.spec().scheduling_group = Some(PodSchedulingGroup { pod_group_name: Some(name.into()) });
        self
    }

    pub fn namespace(mut self, namespace: &str) -> Self {
        self.0.metadata.namespace = Some(namespace.into());
        self
    }

    fn any_affinity(&mut self) -> &mut Affinity {
        self.spec().affinity.get_or_insert_default()
    }

    /// Adds a required affinity term.
    pub fn affinity(mut self, labels: &[(&str, &str)], topology_key: &str) -> Self {
        let affinity = self.any_affinity().pod_affinity.get_or_insert_default();
        let terms = affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
        terms.push(term(labels, topology_key));
        self
    }

    /// Adds a required anti-affinity term.
    pub fn anti_affinity(mut self, labels: &[(&str, &str)], topology_key: &str) -> Self {
        let affinity = self.any_affinity().pod_anti_affinity.get_or_insert_default();
        let terms = affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
        terms.push(term(labels, topology_key));
        self
    }

    /// Adds a preferred affinity term.
    pub fn prefers(mut self, weight: i32, labels: &[(&str, &str)], topology_key: &str) -> Self {
        let affinity = self.any_affinity().pod_affinity.get_or_insert_default();
        let terms = affinity.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
        terms.push(WeightedPodAffinityTerm { weight, pod_affinity_term: term(labels, topology_key) });
        self
    }

    /// Adds a preferred anti-affinity term.
    pub fn avoids(mut self, weight: i32, labels: &[(&str, &str)], topology_key: &str) -> Self {
        let affinity = self.any_affinity().pod_anti_affinity.get_or_insert_default();
        let terms = affinity.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
        terms.push(WeightedPodAffinityTerm { weight, pod_affinity_term: term(labels, topology_key) });
        self
    }

    pub fn spread(mut self, constraints: Vec<TopologySpreadConstraint>) -> Self {
        self.spec().topology_spread_constraints = Some(constraints);
        self
    }

    /// Adds a volume with this source.
    pub fn volume(mut self, mut source: Value) -> Self {
        let volumes = self.spec().volumes.get_or_insert_default();
        source["name"] = format!("v{}", volumes.len()).into();
        volumes.push(object(source));
        self
    }

    /// Adds a volume with this claim.
    pub fn claim(self, name: &str) -> Self {
        self.volume(serde_json::json!({"persistentVolumeClaim": {"claimName": name}}))
    }

    pub fn on(mut self, node: &str) -> Self {
        self.spec().node_name = Some(node.into());
        self
    }

    pub fn priority(mut self, priority: i32) -> Self {
        self.spec().priority = Some(priority);
        self
    }

    pub fn container_image(mut self, image: &str) -> Self {
        self.spec().containers[0].image = Some(image.into());
        self
    }

    pub fn host_port(mut self, ip: &str, protocol: &str, port: i32) -> Self {
        let port = ContainerPort {
            container_port: port,
            host_port: Some(port),
            host_ip: (!ip.is_empty()).then(|| ip.to_owned()),
            protocol: Some(protocol.into()),
            ..ContainerPort::default()
        };
        self.spec().containers[0].ports.get_or_insert_default().push(port);
        self
    }

    pub fn toleration(mut self, key: &str, operator: &str, value: &str, effect: &str) -> Self {
        let given = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        let toleration = Toleration {
            key: given(key),
            operator: given(operator),
            value: given(value),
            effect: given(effect),
            toleration_seconds: None,
        };
        self.spec().tolerations.get_or_insert_default().push(toleration);
        self
    }

    pub fn node_selector(mut self, key: &str, value: &str) -> Self {
        self.spec().node_selector.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    fn node_affinity(&mut self) -> &mut NodeAffinity {
        self.spec().affinity.get_or_insert_with(Affinity::default).node_affinity.get_or_insert_default()
    }

    /// Adds a term with one requirement.
    pub fn required_affinity(mut self, key: &str, operator: &str, values: &[&str]) -> Self {
        let required = &mut self.node_affinity().required_during_scheduling_ignored_during_execution;
        required
            .get_or_insert_with(NodeSelector::default)
            .node_selector_terms
            .push(node_term(key, operator, values));
        self
    }

    pub fn preferred_affinity(mut self, weight: i32, key: &str, value: &str) -> Self {
        let preferred = &mut self.node_affinity().preferred_during_scheduling_ignored_during_execution;
        let preference = node_term(key, "In", &[value]);
        preferred.get_or_insert_default().push(PreferredSchedulingTerm { weight, preference });
        self
    }
}

fn node_term(key: &str, operator: &str, values: &[&str]) -> NodeSelectorTerm {
    let requirement = NodeSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
    };
    NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None }
}

impl NodeBuilder {
    pub fn build(self) -> Node {
        self.0
    }

    pub fn capacity(mut self, cpu: &str, memory: &str, pods: i64) -> Self {
        let list = BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.into())),
            ("memory".to_owned(), Quantity(memory.into())),
            ("pods".to_owned(), Quantity(pods.to_string())),
        ]);
        self.0.status.get_or_insert_default().allocatable = Some(list);
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        let taint =
            Taint { key: key.into(), value: Some(value.into()), effect: effect.into(), time_added: None };
        self.0.spec.get_or_insert_default().taints.get_or_insert_default().push(taint);
        self
    }

    pub fn unschedulable(mut self, yes: bool) -> Self {
        self.0.spec.get_or_insert_default().unschedulable = Some(yes);
        self
    }

    pub fn image(mut self, name: &str, size_bytes: i64) -> Self {
        let image = ContainerImage { names: Some(vec![name.into()]), size_bytes: Some(size_bytes) };
        self.0.status.get_or_insert_default().images.get_or_insert_default().push(image);
        self
    }
}

impl From<PodBuilder> for Arc<Pod> {
    fn from(builder: PodBuilder) -> Self {
        Arc::new(builder.0)
    }
}

impl From<Node> for NodeBuilder {
    fn from(node: Node) -> Self {
        Self(node)
    }
}

impl From<NodeBuilder> for Arc<Node> {
    fn from(builder: NodeBuilder) -> Self {
        Arc::new(builder.0)
    }
}
