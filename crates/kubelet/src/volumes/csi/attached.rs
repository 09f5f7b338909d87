//! Waits until a volume is attached to this node: the controller publishes that in the node's status, and the
//! VolumeAttachment holds the driver's publish context.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kind::Kind;

use super::super::error::{Error, Result};
use super::Csi;
use super::identity::VolumeId;

/// Returns what is still missing in the node's status: first the volume is listed as in use, then as attached.
fn missing(node: Option<&Node>, name: &str) -> Option<&'static str> {
    let status = node.and_then(|n| n.status.as_ref());
    let in_use = status.and_then(|s| s.volumes_in_use.as_ref());
    let attached = status.and_then(|s| s.volumes_attached.as_ref());
    if !in_use.is_some_and(|names| names.iter().any(|n| n == name)) {
        return Some("volume has not been added to the list of VolumesInUse in the node's volume status");
    }
    if !attached.is_some_and(|volumes| volumes.iter().any(|v| v.name == name)) {
        return Some("volume not attached according to node status");
    }
    None
}

impl Csi {
    /// Returns the attachment's metadata for the driver. An [`Error::Waiting`] resolves without action.
    pub(super) async fn publish_context(
        &self,
        pod_uid: &str,
        pv: &PersistentVolume,
        volume: &VolumeId,
    ) -> Result<BTreeMap<String, String>> {
        let name = volume.unique_name();
        // Registered before the check, so that no change is missed in between.
        self.wait(pod_uid);
        if let Some(why) = missing(self.node.lister().get("", &self.node_name).as_deref(), &name) {
            return Err(Error::Waiting(format!("{name}: {why}")));
        }
        let id = volume.attachment_name(&self.node_name);
        let failed = |text: String| {
            Error::Whole(format!("MountVolume.WaitForAttach failed for volume {:?} : {text}", pv.name()))
        };
        let handle = &volume.handle;
        let attachment: VolumeAttachment =
            self.client.get("", &id).await.map_err(|e| {
                failed(format!("volume {handle} has GET error for volume attachment {id}: {e}"))
            })?;
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err(failed("volume attachment is being deleted".to_owned()));
        }
        let status = attachment.status.unwrap_or_default();
        if status.attached {
            return Ok(status.attachment_metadata.unwrap_or_default());
        }
        let why = status.attach_error.and_then(|e| e.message);
        Err(failed(
            why.unwrap_or_else(|| format!("volume {handle} is not attached for volume attachment {id}")),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn first_in_use_then_attached() {
        let node = |status: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap()
        };
        let name = "kubernetes.io/csi/d^h";
        let missing_in = |status| missing(Some(&node(status)), name);
        assert!(missing(None, name).unwrap().contains("VolumesInUse"));
        let attached = json!([{"name": name, "devicePath": ""}]);
        assert!(missing_in(json!({"volumesAttached": attached})).unwrap().contains("VolumesInUse"));
        assert!(missing_in(json!({"volumesInUse": [name]})).unwrap().contains("not attached"));
        assert_eq!(missing_in(json!({"volumesInUse": [name], "volumesAttached": attached})), None);
    }
}
