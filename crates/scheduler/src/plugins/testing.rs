//! Builders of pods and nodes for the plugins' tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerImage, ContainerPort, Node, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PreferredSchedulingTerm, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub struct PodBuilder(Pod);
pub struct NodeBuilder(Node);

/// A pod with one container and a uid equal to its name.
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

/// A node with 4 CPUs, 8Gi of memory and room for 110 pods.
pub fn node(name: &str) -> NodeBuilder {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    NodeBuilder(Node { metadata, ..Node::default() }).capacity("4", "8Gi", 110)
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
            .push(term(key, operator, values));
        self
    }

    pub fn preferred_affinity(mut self, weight: i32, key: &str, value: &str) -> Self {
        let preferred = &mut self.node_affinity().preferred_during_scheduling_ignored_during_execution;
        let preference = term(key, "In", &[value]);
        preferred.get_or_insert_default().push(PreferredSchedulingTerm { weight, preference });
        self
    }
}

fn term(key: &str, operator: &str, values: &[&str]) -> NodeSelectorTerm {
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

impl From<NodeBuilder> for Arc<Node> {
    fn from(builder: NodeBuilder) -> Self {
        Arc::new(builder.0)
    }
}
