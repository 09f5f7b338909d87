//! VolumeZone: a node with zone or region labels only accepts pods whose volumes have the same zone or region.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::claims::{WAIT_FOR_FIRST_CONSUMER, class_of, named, no_claim, volume_name};
use crate::framework::points::NodeView;
use crate::framework::{
    Action, Catalog, Changed, ClusterEvent, Descriptor, Filter, NodeFilter, Parts, Plugin, PodInfo,
    PreFilter, Resource, Scope, Shape, Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "VolumeZone";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |build| {
        build.catalog.watch::<PersistentVolumeClaim>();
        build.catalog.watch::<PersistentVolume>();
        build.catalog.watch::<StorageClass>();
        let plugin = Arc::new(VolumeZone { catalog: Arc::clone(build.catalog) });
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

const CONFLICT: &str = "node(s) had no available volume zone";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const LABELS: [&str; 4] = [OLD_ZONE, OLD_REGION, ZONE, REGION];
/// Separates the zones of a volume that is in several.
const DELIMITER: &str = "__";

struct VolumeZone {
    catalog: Arc<Catalog>,
}

/// A topology label of a volume, with the values that a node may have.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Topology {
    key: &'static str,
    values: BTreeSet<String>,
}

#[derive(Clone)]
struct Zones(Vec<Topology>);

/// The current name of a deprecated topology label.
fn today(key: &str) -> &str {
    match key {
        OLD_ZONE => ZONE,
        OLD_REGION => REGION,
        other => other,
    }
}

fn topologies(volume: &PersistentVolume) -> Vec<Topology> {
    let labels = volume.metadata.labels.as_ref();
    let of_key = |key: &'static str| {
        let value = labels?.get(key)?;
        let values: BTreeSet<String> = value.split(DELIMITER).map(|v| v.trim().to_owned()).collect();
        (!values.contains("")).then_some(Topology { key, values })
    };
    LABELS.into_iter().filter_map(of_key).collect()
}

impl VolumeZone {
    /// The topologies of the volume that the claim is bound to; none while the claim waits for its pod.
    fn of_claim(&self, namespace: &str, name: &str) -> Result<Vec<Topology>, String> {
        if name.is_empty() {
            return Err("PersistentVolumeClaim had no name".to_owned());
        }
        let claim = self.catalog.get::<PersistentVolumeClaim>(namespace, name);
        let Some(claim) = claim else { return Err(no_claim(name)) };
        if let Some(name) = volume_name(&claim) {
            let volume = self.catalog.get::<PersistentVolume>("", name);
            return volume
                .map(|v| topologies(&v))
                .ok_or_else(|| format!("persistentvolume {name:?} not found"));
        }
        let class = class_of(&claim);
        if class.is_empty() {
            return Err("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
        }
        let Some(found) = self.catalog.get::<StorageClass>("", class) else {
            return Err(format!("storageclass.storage.k8s.io {class:?} not found"));
        };
        match found.volume_binding_mode.as_deref() {
            None => Err(format!("VolumeBindingMode not set for StorageClass {class:?}")),
            Some(WAIT_FOR_FIRST_CONSUMER) => Ok(Vec::new()),
            Some(_) => Err("PersistentVolume had no name".to_owned()),
        }
    }
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            const NEW_OR_CHANGED: Action = Action::ADD.or(Action::UPDATE);
            &[
                ClusterEvent::new(Resource::StorageClass, Action::ADD),
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_LABEL)),
                ClusterEvent::new(Resource::PersistentVolumeClaim, NEW_OR_CHANGED),
                ClusterEvent::new(Resource::PersistentVolume, NEW_OR_CHANGED),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        match happened.resource {
            Resource::StorageClass => change
                .new::<StorageClass>()
                .is_none_or(|c| c.volume_binding_mode.as_deref() == Some(WAIT_FOR_FIRST_CONSUMER)),
            Resource::PersistentVolumeClaim => {
                change.new::<PersistentVolumeClaim>().is_none_or(|claim| super::claims::claims(pod, claim))
            }
            Resource::PersistentVolume => {
                match (change.old::<PersistentVolume>(), change.new::<PersistentVolume>()) {
                    (Some(old), Some(new)) => topologies(old) != topologies(new),
                    _ => true,
                }
            }
            _ => true,
        }
    }
}

impl Filter for VolumeZone {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        if shape.footprint.claims.is_empty() {
            return 0;
        }
        self.catalog.version::<PersistentVolumeClaim>()
            + self.catalog.version::<PersistentVolume>()
            + self.catalog.version::<StorageClass>()
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        let mut zones = Vec::new();
        for name in named(&shape.pod) {
            match self.of_claim(shape.namespace(), name) {
                Ok(topologies) => zones.extend(topologies),
                Err(why) => return PreFilter::Reject(Status::unresolvable(why)),
            }
        }
        if zones.is_empty() { PreFilter::Skip } else { PreFilter::check(Zones(zones)) }
    }
}

impl NodeFilter for Zones {
    fn check(&self, node: &NodeView) -> Status {
        let label = |key: &str| node.row.label(key);
        let somewhere = LABELS.into_iter().any(|key| label(key).is_some());
        let matches = |t: &Topology| {
            label(t.key).or_else(|| label(today(t.key))).is_some_and(|value| t.values.contains(value))
        };
        if !somewhere || self.0.iter().all(matches) {
            return Status::SUCCESS;
        }
        Status::unresolvable(CONFLICT)
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, object, pod, verdicts_of};
    use serde_json::{Value, json};

    fn say(volume_labels: Value, claim: Value) -> Vec<String> {
        let catalog = Catalog::default();
        catalog.put::<PersistentVolume>(object(json!({"metadata": {"name": "v", "labels": volume_labels}})));
        catalog.put::<PersistentVolumeClaim>(object(
            json!({"metadata": {"name": "c", "namespace": "default"}, "spec": claim}),
        ));
        for (name, mode) in
            [("late", Some(WAIT_FOR_FIRST_CONSUMER)), ("now", Some("Immediate")), ("odd", None)]
        {
            catalog.put::<StorageClass>(object(
                json!({"metadata": {"name": name}, "provisioner": "x", "volumeBindingMode": mode}),
            ));
        }
        let nodes = vec![node("a").label(ZONE, "a"), node("old").label(OLD_ZONE, "b"), node("nowhere")];
        let said = verdicts_of(DESCRIPTOR, &Arc::new(catalog), pod("p").claim("c"), nodes, vec![]);
        said.iter().map(crate::framework::Status::message).collect()
    }

    #[test]
    fn nodes_have_to_be_where_the_volume_is() {
        let bound = || json!({"volumeName": "v"});
        let no = || CONFLICT.to_owned();
        let yes = String::new;
        let table = [
            (json!({}), [yes(), yes(), yes()]),
            (json!({ZONE: "a"}), [yes(), no(), yes()]),
            (json!({OLD_ZONE: "a"}), [yes(), no(), yes()]),
            (json!({OLD_ZONE: "b"}), [no(), yes(), yes()]),
            (json!({ZONE: "a__b"}), [yes(), no(), yes()]),
            (json!({OLD_ZONE: "a__b"}), [yes(), yes(), yes()]),
            (json!({ZONE: "a____b"}), [yes(), yes(), yes()]),
            (json!({REGION: "r"}), [no(), no(), yes()]),
        ];
        for (labels, expected) in table {
            assert_eq!(say(labels.clone(), bound()), expected, "{labels}");
        }
    }

    #[test]
    fn claims_without_a_volume_are_told_apart() {
        let table = [
            (json!({"volumeName": "gone"}), "persistentvolume \"gone\" not found"),
            (json!({}), "PersistentVolumeClaim had no pv name and storageClass name"),
            (json!({"storageClassName": "gone"}), "storageclass.storage.k8s.io \"gone\" not found"),
            (json!({"storageClassName": "odd"}), "VolumeBindingMode not set for StorageClass \"odd\""),
            (json!({"storageClassName": "now"}), "PersistentVolume had no name"),
            (json!({"storageClassName": "late"}), ""),
        ];
        for (claim, expected) in table {
            assert_eq!(say(json!({}), claim.clone())[0], expected, "{claim}");
        }
    }
}
