//! Decides about a node's attachments: pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kind::Kind;

use super::desired::Wanted;
use super::names;

/// How long an unhealthy node may keep a volume that no pod wants.
pub const FORCE_DETACH_AFTER: Duration = Duration::from_secs(6 * 60);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Whether a volume that no pod wants is detached from its node.
#[derive(Debug, PartialEq, Eq)]
pub enum Detach {
    /// The kubelet has unmounted the volume, or will not come back.
    Now { forced: bool },
    /// The volume may still be mounted; after some time it is detached all the same.
    Wait { again_in: Option<Duration> },
}

/// `unwanted_for` is how long no pod has wanted the volume. Without a Node object, nothing proves that it is
/// unmounted. `by_force` allows detaching a volume that may still be mounted from an unresponsive node after a while.
pub fn detach(node: Option<&Node>, attachment: &str, unwanted_for: Duration, by_force: bool) -> Detach {
    let name = node.map_or("", |n| n.name());
    let in_use = node.and_then(|n| n.status.as_ref()?.volumes_in_use.as_ref());
    let mounted =
        node.is_none() || in_use.is_some_and(|all| all.iter().any(|v| names::means(v, attachment, name)));
    let expired = by_force && unwanted_for >= FORCE_DETACH_AFTER && !node.is_some_and(is_ready);
    if !mounted || expired || node.is_some_and(is_out_of_service) {
        return Detach::Now { forced: mounted };
    }
    let left = FORCE_DETACH_AFTER.saturating_sub(unwanted_for);
    Detach::Wait { again_in: (by_force && !left.is_zero()).then_some(left) }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Returns whether the node has the out-of-service taint.
pub fn is_out_of_service(node: &Node) -> bool {
    node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == OUT_OF_SERVICE)
}

/// Returns the wanted `volumesAttached` of the node: the attached volumes without those to be detached.
pub fn volumes_attached(
    node: &Node,
    attachments: &[Arc<VolumeAttachment>],
    wanted: &BTreeMap<String, Wanted>,
    leaving: &[String],
) -> Vec<String> {
    let listed = node.status.as_ref().and_then(|s| s.volumes_attached.as_ref());
    let mut names: Vec<String> = Vec::new();
    for attachment in attachments.iter().filter(|a| is_attached(a)) {
        let name = attachment.name();
        if leaving.iter().any(|l| l == name) {
            continue;
        }
        let known = listed.into_iter().flatten().map(|v| &v.name);
        let of_node = || known.into_iter().find(|v| names::means(v, name, node.name())).cloned();
        names.extend(wanted.get(name).map(Wanted::unique_name).or_else(of_node));
    }
    names.sort();
    names.dedup();
    names
}

/// Returns whether the external attacher has attached the volume.
pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.metadata.deletion_timestamp.is_none() && attachment.status.as_ref().is_some_and(|s| s.attached)
}

/// Returns the Multi-Attach message for a pod; pods in other namespaces are only counted in it, not named.
pub fn multi_attach_text(volume: &str, pod: &Pod, elsewhere: &[Arc<Pod>]) -> String {
    if elsewhere.is_empty() {
        return format!(
            "Waiting for detach for volume {volume:?} Volume is already exclusively attached to one node, \
             waiting on detach before it can be attached to another node"
        );
    }
    let near: Vec<&str> =
        elsewhere.iter().filter(|p| p.namespace() == pod.namespace()).map(|p| p.name()).collect();
    let far = elsewhere.len() - near.len();
    let why = match (near.is_empty(), far) {
        (true, far) => format!("Volume is already used by {far} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", near.join(", ")),
        (false, far) => format!(
            "Volume is already used by pod(s) {} and {far} pod(s) in different namespaces",
            near.join(", ")
        ),
    };
    format!("Waiting for detach for volume {volume:?} {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(ready: &str, in_use: &[String], taints: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints},
            "status": {"volumesInUse": in_use, "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn when_a_volume_leaves() {
        let (volume, attachment) = (names::unique_name("d", "h"), names::attachment_name("d", "h", "n"));
        let (none, used) = (Vec::new(), vec![volume]);
        let (short, long) = (Duration::from_secs(60), FORCE_DETACH_AFTER);
        let out = json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]);
        let wait = |seconds: u64| Detach::Wait { again_in: Some(Duration::from_secs(seconds)) };
        let table = [
            (Some(node("True", &none, json!([]))), short, Detach::Now { forced: false }),
            (Some(node("True", &used, json!([]))), short, wait(300)),
            (Some(node("True", &used, json!([]))), long, Detach::Wait { again_in: None }),
            (Some(node("Unknown", &used, json!([]))), short, wait(300)),
            (Some(node("Unknown", &used, json!([]))), long, Detach::Now { forced: true }),
            (Some(node("Unknown", &used, out)), short, Detach::Now { forced: true }),
            (None, short, wait(300)),
            (None, long, Detach::Now { forced: true }),
        ];
        for (node, unwanted_for, want) in table {
            assert_eq!(detach(node.as_ref(), &attachment, unwanted_for, true), want, "{node:?}");
        }
        let lost = node("Unknown", &used, json!([]));
        assert_eq!(detach(Some(&lost), &attachment, long, false), Detach::Wait { again_in: None });
    }

    #[test]
    fn the_volumes_attached_of_a_node() {
        let attachment = |handle: &str, attached: bool, deleted: bool| -> Arc<VolumeAttachment> {
            let mut value = json!({"metadata": {"name": names::attachment_name("d", handle, "n")},
                "spec": {"attacher": "d", "nodeName": "n", "source": {}}, "status": {"attached": attached}});
            if deleted {
                value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(serde_json::from_value(value).unwrap())
        };
        let wanted = |handle: &str| {
            let wanted = Wanted {
                volume: Arc::default(),
                driver: "d".into(),
                handle: handle.into(),
                pods: Vec::new(),
            };
            (names::attachment_name("d", handle, "n"), wanted)
        };
        let listed = json!([{"name": names::unique_name("d", "old"), "devicePath": ""},
            {"name": names::unique_name("d", "leaving"), "devicePath": ""}]);
        let mut here = node("True", &[], json!([]));
        here.status.as_mut().unwrap().volumes_attached = serde_json::from_value(listed).unwrap();
        let attachments = [
            attachment("b", true, false),
            attachment("a", true, false),
            attachment("pending", false, false),
            attachment("gone", true, true),
            attachment("old", true, false),
            attachment("leaving", true, false),
        ];
        let wanted = ["a", "b", "pending", "gone"].map(wanted).into();
        let leaving = [names::attachment_name("d", "leaving", "n")];
        let names = volumes_attached(&here, &attachments, &wanted, &leaving);
        assert_eq!(names, ["a", "b", "old"].map(|h| names::unique_name("d", h)));
    }

    #[test]
    fn pods_with_the_volume_are_named_within_the_namespace() {
        let pod = |name: &str, namespace: &str| -> Arc<Pod> {
            let value = json!({"metadata": {"name": name, "namespace": namespace}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        let mine = pod("mine", "a");
        let table: [(&[Arc<Pod>], &str); 4] = [
            (
                &[],
                "Waiting for detach for volume \"v\" Volume is already exclusively attached to one node, waiting on \
                   detach before it can be attached to another node",
            ),
            (
                &[pod("x", "a"), pod("y", "a")],
                "Waiting for detach for volume \"v\" Volume is already used by pod(s) x, y",
            ),
            (
                &[pod("x", "b")],
                "Waiting for detach for volume \"v\" Volume is already used by 1 pod(s) in different namespaces",
            ),
            (
                &[pod("x", "a"), pod("y", "b")],
                "Waiting for detach for volume \"v\" Volume is already used by pod(s) x and 1 pod(s) in different \
                 namespaces",
            ),
        ];
        for (elsewhere, want) in table {
            assert_eq!(multi_attach_text("v", &mine, elsewhere), want);
        }
    }
}
