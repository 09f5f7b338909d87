//! The shape of a pod: the pod reduced to the fields that scheduling reads. Pods of one shape have the same feasible
//! nodes and scores, so they share that work.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Affinity, Container, Pod, PodSpec, PodStatus, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::core::pod::node_features::restarts_all;

use super::footprint::Footprint;
use crate::intern::Pool;

/// A reduced pod. Equal shapes share one `Arc` while it is alive.
#[derive(Debug)]
pub struct Shape {
    /// Unique in the process, never reused.
    pub id: u64,
    /// The pod with only the fields that plugins may read. It has a name and a uid only where they matter: with
    /// ephemeral volumes and resource claims, which belong to one pod.
    pub pod: Pod,
    /// What the pod will count as on a node.
    pub footprint: Arc<Footprint>,
}

static POOL: Pool<Vec<u8>, Shape> = Pool::new();

impl Shape {
    /// Returns the shape of a pod from the pool of shapes.
    pub fn of(pod: &Pod) -> Arc<Self> {
        let lean = lean(pod);
        let key = serde_json::to_vec(&lean).unwrap_or_default();
        POOL.intern(key, |id| Self { id, footprint: Footprint::of(pod), pod: lean })
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub fn namespace(&self) -> &str {
        &self.footprint.namespace
    }
}

/// The names of the claims that the pod's volumes use, including those of its ephemeral volumes.
pub fn claims(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    volumes.iter().filter_map(|volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(claim.claim_name.clone());
        }
        volume.ephemeral.as_ref()?;
        Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name))
    })
}

fn lean(pod: &Pod) -> Pod {
    let spec = pod.spec.as_ref();
    let volumes: Vec<Volume> =
        spec.and_then(|s| s.volumes.as_deref()).unwrap_or_default().iter().filter_map(lean_volume).collect();
    let own = volumes.iter().any(|v| v.ephemeral.is_some())
        || spec.and_then(|s| s.resource_claims.as_ref()).is_some_and(|claims| !claims.is_empty());
    let metadata = ObjectMeta {
        namespace: pod.metadata.namespace.clone(),
        labels: pod.metadata.labels.clone(),
        name: pod.metadata.name.clone().filter(|_| own),
        uid: pod.metadata.uid.clone().filter(|_| own),
        owner_references: controller(pod).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    let spec = spec.map(|s| PodSpec {
        affinity: s.affinity.clone(),
        containers: s.containers.iter().map(lean_container).collect(),
        init_containers: s.init_containers.as_ref().map(|list| list.iter().map(lean_container).collect()),
        host_network: s.host_network,
        host_users: s.host_users.filter(|_| s.host_network == Some(true)),
        node_name: s.node_name.clone(),
        node_selector: s.node_selector.clone(),
        os: s.os.clone(),
        overhead: s.overhead.clone(),
        preemption_policy: s.preemption_policy.clone(),
        priority: s.priority,
        resource_claims: s.resource_claims.clone(),
        resources: s.resources.clone(),
        scheduler_name: s.scheduler_name.clone(),
        scheduling_gates: s.scheduling_gates.clone(),
        scheduling_group: s.scheduling_group.clone(),
        tolerations: s.tolerations.clone(),
        topology_spread_constraints: s.topology_spread_constraints.clone(),
        volumes: (!volumes.is_empty()).then_some(volumes),
        ..PodSpec::default()
    });
    let status = pod.status.as_ref().and_then(|s| {
        let claims = s.resource_claim_statuses.clone()?;
        Some(PodStatus { resource_claim_statuses: Some(claims), ..PodStatus::default() })
    });
    Pod { metadata, spec, status }
}

/// The fields that other pods and the node depend on: affinity to pods, volumes with restricted sharing, ports, labels.
pub(super) fn visible(pod: &Pod) -> Pod {
    let mut seen = lean(pod);
    seen.status = None;
    seen.metadata.owner_references = None;
    seen.metadata.uid = None;
    let volumes = seen.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    if volumes.iter().all(|v| v.ephemeral.is_none()) {
        seen.metadata.name = None;
    }
    if let Some(spec) = &mut seen.spec {
        let affinity = spec.affinity.take().map(|a| Affinity { node_affinity: None, ..a });
        let ports_only = |c: &Container| Container { ports: c.ports.clone(), ..Container::default() };
        *spec = PodSpec {
            affinity: affinity.filter(|a| *a != Affinity::default()),
            containers: spec.containers.iter().map(ports_only).collect(),
            priority: spec.priority,
            volumes: spec.volumes.take().filter(|v| !v.is_empty()),
            ..PodSpec::default()
        };
    }
    seen
}

fn lean_container(container: &Container) -> Container {
    Container {
        image: container.image.clone(),
        ports: container
            .ports
            .as_ref()
            .map(|ports| ports.iter().filter(|p| p.host_port.is_some()).cloned().collect()),
        resources: container.resources.clone(),
        restart_policy: container.restart_policy.clone(),
        restart_policy_rules: container.restart_policy_rules.clone().filter(|_| restarts_all(container)),
        ..Container::default()
    }
}

/// Returns the volume if its type affects where a pod may run: claims, disks that are attached to nodes, images, inline
/// CSI volumes.
fn lean_volume(volume: &Volume) -> Option<Volume> {
    let lean = Volume {
        name: if volume.ephemeral.is_some() { volume.name.clone() } else { String::new() },
        aws_elastic_block_store: volume.aws_elastic_block_store.clone(),
        azure_disk: volume.azure_disk.clone(),
        cinder: volume.cinder.clone(),
        csi: volume.csi.clone(),
        ephemeral: volume.ephemeral.clone(),
        gce_persistent_disk: volume.gce_persistent_disk.clone(),
        image: volume.image.clone(),
        iscsi: volume.iscsi.clone(),
        persistent_volume_claim: volume.persistent_volume_claim.clone(),
        portworx_volume: volume.portworx_volume.clone(),
        rbd: volume.rbd.clone(),
        ..Volume::default()
    };
    (lean != Volume::default()).then_some(lean)
}

fn controller(pod: &Pod) -> Option<OwnerReference> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))?;
    Some(OwnerReference { uid: String::new(), block_owner_deletion: None, ..owner.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::pod;
    use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, ProjectedVolumeSource};

    #[test]
    fn what_scheduling_does_not_look_at_makes_no_difference() {
        let mut a = pod("a").cpu("1").label("app", "web").build();
        let mut b = pod("b").cpu("1").label("app", "web").build();
        for (pod, name) in [(&mut a, "kube-api-access-1"), (&mut b, "kube-api-access-2")] {
            let token = Volume {
                name: name.into(),
                projected: Some(ProjectedVolumeSource::default()),
                ..Volume::default()
            };
            pod.spec.as_mut().unwrap().volumes = Some(vec![token]);
            pod.spec.as_mut().unwrap().containers[0].command = Some(vec![name.into()]);
        }
        assert!(Arc::ptr_eq(&Shape::of(&a), &Shape::of(&b)));
    }

    #[test]
    fn what_decides_makes_another_shape() {
        let plain = Shape::of(&pod("a").build());
        let others = [
            pod("a").cpu("1"),
            pod("a").priority(7),
            pod("a").node_selector("disk", "ssd"),
            pod("a").toleration("k", "Exists", "", ""),
            pod("a").container_image("web"),
            pod("a").label("x", "y"),
            pod("a").host_port("", "TCP", 80),
        ];
        for other in others {
            assert_ne!(Shape::of(&other.build()).id, plain.id);
        }
    }

    #[test]
    fn claims_are_named_in_full() {
        let mut p = pod("web-0").build();
        let claim = PersistentVolumeClaimVolumeSource { claim_name: "data".into(), read_only: None };
        p.spec.as_mut().unwrap().volumes = Some(vec![
            Volume { name: "a".into(), persistent_volume_claim: Some(claim), ..Volume::default() },
            Volume { name: "scratch".into(), ephemeral: Some(Default::default()), ..Volume::default() },
        ]);
        assert_eq!(claims(&p).collect::<Vec<_>>(), ["data", "web-0-scratch"]);
        assert_eq!(
            Shape::of(&p).pod.metadata.name.as_deref(),
            Some("web-0"),
            "an ephemeral volume belongs to one pod"
        );
    }
}
