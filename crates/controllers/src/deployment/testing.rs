//! Builders of Deployments and ReplicaSets for this controller's tests.

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus,
    RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub struct DeploymentBuilder(Deployment);
pub struct SetBuilder(ReplicaSet);

/// Builds a Deployment `web` with this many replicas.
pub fn deployment(replicas: i32) -> DeploymentBuilder {
    let mut d = Deployment::default();
    d.metadata.name = Some("web".into());
    d.metadata.uid = Some("web-uid".into());
    d.spec = DeploymentSpec { replicas: Some(replicas), ..DeploymentSpec::default() };
    DeploymentBuilder(d)
}

pub fn set(name: &str, replicas: i32) -> SetBuilder {
    let mut s = ReplicaSet::default();
    s.metadata.name = Some(name.into());
    s.metadata.uid = Some(name.into());
    s.spec = ReplicaSetSpec { replicas: Some(replicas), ..ReplicaSetSpec::default() };
    s.status = Some(ReplicaSetStatus { replicas, ..ReplicaSetStatus::default() });
    SetBuilder(s)
}

impl DeploymentBuilder {
    pub fn build(self) -> Deployment {
        self.0
    }

    fn strategy(mut self, type_: &str, rolling: Option<(IntOrString, IntOrString)>) -> Self {
        let rolling_update = rolling.map(|(surge, unavailable)| RollingUpdateDeployment {
            max_surge: Some(surge),
            max_unavailable: Some(unavailable),
        });
        self.0.spec.strategy = Some(DeploymentStrategy { type_: Some(type_.into()), rolling_update });
        self
    }

    pub fn rolling(self, surge: i32, unavailable: i32) -> Self {
        self.strategy("RollingUpdate", Some((IntOrString::Int(surge), IntOrString::Int(unavailable))))
    }

    pub fn rolling_text(self, surge: &str, unavailable: &str) -> Self {
        let text = |s: &str| IntOrString::String(s.into());
        self.strategy("RollingUpdate", Some((text(surge), text(unavailable))))
    }

    pub fn recreate(self) -> Self {
        self.strategy("Recreate", None)
    }

    pub fn image(mut self, image: &str) -> Self {
        let container = Container { name: "web".into(), image: Some(image.into()), ..Container::default() };
        self.0.spec.template.spec = Some(PodSpec { containers: vec![container], ..PodSpec::default() });
        self
    }
}

impl SetBuilder {
    pub fn build(self) -> ReplicaSet {
        self.0
    }

    pub fn available(mut self, pods: i32) -> Self {
        let status = self.0.status.as_mut().unwrap();
        status.available_replicas = Some(pods);
        status.ready_replicas = Some(pods);
        self
    }

    pub fn annotated(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
        self
    }
}
