//! Which volumes should be attached to a node: those of its running and starting pods. Pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ContainerStatus, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodStatus, Volume,
};
use k8s_openapi::api::storage::v1::CSIDriver;
use knarr_api::kind::Kind;

use super::names;
use crate::support::pod_state::has_ended;

const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const KEEP_TERMINATED: &str = "volumes.kubernetes.io/keep-terminated-pod-volumes";

/// A volume that should be attached, and the pods that want it.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub volume: Arc<PersistentVolume>,
    pub driver: String,
    pub handle: String,
    pub pods: Vec<Arc<Pod>>,
}

impl Wanted {
    /// Returns the name of the volume in a node's status.
    pub fn unique_name(&self) -> String {
        names::unique_name(&self.driver, &self.handle)
    }

    /// Returns whether several nodes may attach the volume. A volume without access modes may be attached anywhere.
    pub fn is_shareable(&self) -> bool {
        let modes = self.volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
        modes.is_empty() || modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany")
    }
}

/// The listers that lead from pods to volumes.
pub trait Sources {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    fn driver(&self, name: &str) -> Option<Arc<CSIDriver>>;
}

/// Returns whether the kubelet leaves attaching to the controller.
pub fn is_managed(node: &Node) -> bool {
    annotation(node, MANAGED) == Some("true")
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str)
}

/// Returns whether the pod needs its volumes: a pod that has ended does not, unless the node's annotation says
/// otherwise.
fn needs_volumes(pod: &Pod, node: &Node) -> bool {
    annotation(node, KEEP_TERMINATED) == Some("true") || !is_terminated(pod)
}

/// Returns whether the pod still needs its volumes, whatever its node's annotation says.
pub fn may_use_volumes(pod: &Pod) -> bool {
    !is_terminated(pod)
}

fn is_terminated(pod: &Pod) -> bool {
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let still = |statuses: &Option<Vec<ContainerStatus>>| {
        let over = |s: &ContainerStatus| {
            s.state.as_ref().is_some_and(|state| state.terminated.is_some() || state.waiting.is_some())
        };
        statuses.iter().flatten().all(over)
    };
    has_ended(pod)
        || pod.metadata.deletion_timestamp.is_some()
            && still(&status.init_container_statuses)
            && still(&status.container_statuses)
            && still(&status.ephemeral_container_statuses)
}

/// Returns the name of the claim of a pod's volume.
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    named.or_else(|| volume.ephemeral.is_some().then(|| format!("{}-{}", pod.name(), volume.name)))
}

/// Returns the attachable volume of a pod's volume; `None` while it is unbound or if its driver does not attach.
fn attachable(
    pod: &Pod,
    volume: &Volume,
    sources: &impl Sources,
) -> Option<(Arc<PersistentVolume>, String, String)> {
    let claim = sources.claim(pod.namespace(), &claim_name(pod, volume)?)?;
    if volume.ephemeral.is_some() {
        let owners = claim.metadata.owner_references.iter().flatten();
        owners.filter(|o| o.controller == Some(true)).find(|o| o.uid == pod.uid())?;
    }
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name =
        claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| bound && !n.is_empty())?;
    let volume = sources.volume(name)?;
    let spec = volume.spec.as_ref()?;
    spec.claim_ref.as_ref().filter(|r| r.uid.as_deref() == Some(claim.uid()))?;
    let csi = spec.csi.as_ref()?;
    let attaches = sources.driver(&csi.driver).is_none_or(|d| d.spec.attach_required != Some(false));
    let (driver, handle) = (csi.driver.clone(), csi.volume_handle.clone());
    attaches.then_some((volume, driver, handle))
}

/// Returns the volumes that the node's pods want, by the names of the attachments.
pub fn of_node(node: &Node, pods: &[Arc<Pod>], sources: &impl Sources) -> BTreeMap<String, Wanted> {
    let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
    if !is_managed(node) {
        return wanted;
    }
    for pod in pods.iter().filter(|pod| needs_volumes(pod, node)) {
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let Some((volume, driver, handle)) = attachable(pod, volume, sources) else { continue };
            let name = names::attachment_name(&driver, &handle, node.name());
            let entry =
                wanted.entry(name).or_insert_with(|| Wanted { volume, driver, handle, pods: Vec::new() });
            if !entry.pods.iter().any(|known| known.uid() == pod.uid()) {
                entry.pods.push(Arc::clone(pod));
            }
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    struct World(Value);

    impl Sources for World {
        fn claim(&self, _: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
            serde_json::from_value(self.0["claims"].get(name)?.clone()).ok().map(Arc::new)
        }
        fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
            serde_json::from_value(self.0["volumes"].get(name)?.clone()).ok().map(Arc::new)
        }
        fn driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
            serde_json::from_value(self.0["drivers"].get(name)?.clone()).ok().map(Arc::new)
        }
    }

    fn world() -> World {
        let claim = |volume: &str, uid: &str| json!({"metadata": {"uid": uid}, "spec": {"volumeName": volume}, "status": {"phase": "Bound"}});
        let volume = |driver: &str, uid: &str| json!({"spec": {"claimRef": {"uid": uid}, "csi": {"driver": driver, "volumeHandle": "h"}}});
        World(json!({
            "claims": {"plain": claim("v", "1"), "none": claim("w", "2"), "other": claim("v", "3"),
                "free": {"spec": {}, "status": {"phase": "Pending"}},
                "p-e": {"metadata": {"uid": "4", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod", "controller": true}]},
                    "spec": {"volumeName": "x"}, "status": {"phase": "Bound"}}},
            "volumes": {"v": volume("d", "1"), "w": volume("quiet", "2"), "x": volume("e", "4")},
            "drivers": {"quiet": {"metadata": {"name": "quiet"}, "spec": {"attachRequired": false}},
                "d": {"metadata": {"name": "d"}, "spec": {"attachRequired": true}}},
        }))
    }

    fn pod(volumes: Value, extra: Value) -> Arc<Pod> {
        let mut value = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pod"},
            "spec": {"nodeName": "n", "containers": [], "volumes": volumes}});
        for (key, part) in extra.as_object().unwrap() {
            match key.as_str() {
                "deletionTimestamp" => value["metadata"][key] = part.clone(),
                _ => value[key] = part.clone(),
            }
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn node(annotations: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap()
    }

    fn claim(name: &str) -> Value {
        json!([{"name": "e", "persistentVolumeClaim": {"claimName": name}}])
    }

    #[test]
    fn only_bound_volumes_of_drivers_that_attach_are_wanted() {
        let here = node(json!({MANAGED: "true"}));
        let table = [
            (claim("plain"), Some("d")),
            (claim("none"), None),
            (claim("other"), None),
            (claim("free"), None),
            (claim("missing"), None),
            (json!([{"name": "e", "ephemeral": {}}]), Some("e")),
            (json!([{"name": "e", "emptyDir": {}}]), None),
        ];
        for (volumes, want) in table {
            let found = of_node(&here, &[pod(volumes.clone(), json!({}))], &world());
            assert_eq!(found.values().next().map(|w| w.driver.as_str()), want, "{volumes}");
        }
        assert!(of_node(&node(json!({})), &[pod(claim("plain"), json!({}))], &world()).is_empty());
    }

    #[test]
    fn pods_that_have_ended_want_nothing() {
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}},
            "image": "", "imageID": "", "ready": true, "restartCount": 0}]});
        let deleted = "2026-01-01T00:00:00Z";
        let table = [
            (json!({"status": running}), 1),
            (json!({"status": running, "deletionTimestamp": deleted}), 1),
            (json!({"status": {"phase": "Pending"}, "deletionTimestamp": deleted}), 0),
            (json!({"status": {"phase": "Succeeded"}}), 0),
        ];
        for (extra, want) in table {
            let pods = [pod(claim("plain"), extra.clone())];
            assert_eq!(of_node(&node(json!({MANAGED: "true"})), &pods, &world()).len(), want, "{extra}");
            let keeps = node(json!({MANAGED: "true", KEEP_TERMINATED: "true"}));
            assert_eq!(of_node(&keeps, &pods, &world()).len(), 1, "{extra}");
        }
    }
}
