//! Expands the file system of a volume after the volume has grown.
//!
//! Source: `k8s.io/kubernetes/pkg/volume/util/operationexecutor`, KEP-1790.

use std::path::Path;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;
use knarr_client::Patch;
use knarr_client::events::EventType;
use knarr_grpc::Code;
use serde_json::{Value, json};

use super::super::error::{Error, Result};
use super::super::plugin::SetUp;
use super::Csi;
use super::persistent::{Claimed, place};
use super::publish::Driver;
use crate::csi::messages::{CapacityRange, NodeExpandVolumeRequest};

const STORAGE: &str = "storage";
const INFEASIBLE: &str = "NodeResizeInfeasible";

/// Returns the size that the file system should get; `None` if it needs no expansion.
fn due(claimed: &Claimed<'_>) -> Option<ApiQuantity> {
    let size = claimed.volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE)?;
    let status = claimed.claim.status.as_ref()?;
    let now = status.capacity.as_ref()?.get(STORAGE)?;
    let refused = status.allocated_resource_statuses.as_ref().and_then(|s| s.get(STORAGE));
    let grown = Quantity::try_from(now).ok()? < Quantity::try_from(size).ok()?;
    (grown && !claimed.read_only && refused.is_none_or(|s| s != INFEASIBLE)).then(|| size.clone())
}

/// Returns the patch of the claim's status after the expansion.
fn finished(claim: &PersistentVolumeClaim, size: &ApiQuantity) -> Value {
    let status = claim.status.as_ref();
    let mut patch = json!({"capacity": {STORAGE: size}});
    if status.is_some_and(|s| s.allocated_resource_statuses.is_some()) {
        patch["allocatedResourceStatuses"] = json!({STORAGE: null});
    }
    if let Some(conditions) = status.and_then(|s| s.conditions.as_ref()) {
        let kept: Vec<_> = conditions
            .iter()
            .filter(|c| !matches!(c.type_.as_str(), "Resizing" | "FileSystemResizePending"))
            .collect();
        patch["conditions"] = json!(kept);
    }
    json!({"status": patch})
}

impl Csi {
    pub(super) async fn expand_if_due(
        &self,
        task: &SetUp<'_>,
        claimed: &Claimed<'_>,
        driver: &Driver<'_>,
        target: &Path,
        staged: Option<&Path>,
    ) -> Result<()> {
        let Some(size) = due(claimed) else { return Ok(()) };
        let recorder = task.host.recorder.as_ref();
        if driver.can.expand() {
            let request = self.expand_request(claimed, driver, target, staged, &size).await?;
            if let Err(error) = driver.client.expand(&request).await {
                let name = claimed.volume.name();
                let text = format!(
                    "NodeExpandVolume failed for volume {name:?} : Expander.NodeExpand failed to expand the volume : {error}"
                );
                if let Some(recorder) = recorder {
                    recorder.event(task.pod, EventType::Warning, "VolumeResizeFailed", text.clone());
                    recorder.event(claimed.claim, EventType::Warning, "VolumeResizeFailed", text.clone());
                }
                if matches!(error.code(), Code::INVALID_ARGUMENT | Code::OUT_OF_RANGE | Code::NOT_FOUND) {
                    let patch = json!({"status": {"allocatedResourceStatuses": {STORAGE: INFEASIBLE}}});
                    self.patch_claim(claimed, patch).await?;
                }
                // A volume in use keeps its size until no pod uses it; other errors are retried.
                return if error.code() == Code::FAILED_PRECONDITION {
                    Ok(())
                } else {
                    Err(Error::Whole(text))
                };
            }
        }
        self.patch_claim(claimed, finished(claimed.claim, &size)).await?;
        if let Some(recorder) = recorder.filter(|_| driver.can.expand()) {
            let text = format!(
                "MountVolume.NodeExpandVolume succeeded for volume {:?} {}",
                claimed.volume.name(),
                self.node_name
            );
            recorder.event(task.pod, EventType::Normal, "FileSystemResizeSuccessful", text.clone());
            recorder.event(claimed.claim, EventType::Normal, "FileSystemResizeSuccessful", text);
        }
        Ok(())
    }

    async fn expand_request(
        &self,
        claimed: &Claimed<'_>,
        driver: &Driver<'_>,
        target: &Path,
        staged: Option<&Path>,
        size: &ApiQuantity,
    ) -> Result<NodeExpandVolumeRequest> {
        let secrets = match place(claimed.source.node_expand_secret_ref.as_ref()) {
            None => Default::default(),
            Some((namespace, name)) => self.secret(&namespace, &name).await.map_err(|e| {
                Error::failed(format!(
                    "expander.NodeExpand failed to get NodeExpandSecretRef {namespace}/{name}: {e}"
                ))
            })?,
        };
        let required_bytes = Quantity::try_from(size).map_or(0, |q| q.value());
        Ok(NodeExpandVolumeRequest {
            volume_id: claimed.source.volume_handle.clone(),
            volume_path: target.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            staging_target_path: staged.map(|p| p.display().to_string()).unwrap_or_default(),
            volume_capability: Some(claimed.form().capability(driver.can, None)),
            secrets,
        })
    }

    async fn patch_claim(&self, claimed: &Claimed<'_>, patch: Value) -> Result<()> {
        let (namespace, name) = (claimed.claim.namespace(), claimed.claim.name());
        let patch = Patch::Merge(patch);
        let patched =
            self.client.patch::<PersistentVolumeClaim>(namespace, name, Some("status"), &patch).await;
        patched
            .map(drop)
            .map_err(|e| Error::failed(format!("error updating PVC {namespace}/{name} status: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume};

    #[test]
    fn a_volume_that_has_grown_is_due() {
        let source = CSIPersistentVolumeSource::default();
        let table = [
            ("1Gi", json!({"capacity": {"storage": "1Gi"}}), None),
            ("2Gi", json!({"capacity": {"storage": "1Gi"}}), Some("2Gi")),
            (
                "2Gi",
                json!({"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
                Some("2Gi"),
            ),
            (
                "2Gi",
                json!({"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": INFEASIBLE}}),
                None,
            ),
            ("2Gi", json!({}), None),
        ];
        for (size, status, want) in table {
            let volume: PersistentVolume =
                serde_json::from_value(json!({"spec": {"capacity": {"storage": size}}})).unwrap();
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({"status": status})).unwrap();
            let claimed = Claimed { claim: &claim, volume: &volume, source: &source, read_only: false };
            assert_eq!(due(&claimed).map(|q| q.0).as_deref(), want, "{status}");
            assert!(due(&Claimed { read_only: true, ..claimed }).is_none());
        }
    }

    #[test]
    fn what_was_pending_goes() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({"status": {
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}],
            "allocatedResourceStatuses": {"storage": "NodeResizePending"}}}))
        .unwrap();
        let patch = finished(&claim, &ApiQuantity("2Gi".into()));
        assert_eq!(patch["status"]["capacity"], json!({"storage": "2Gi"}));
        assert_eq!(patch["status"]["allocatedResourceStatuses"], json!({"storage": null}));
        let left: Vec<&Value> = patch["status"]["conditions"].as_array().unwrap().iter().collect();
        assert_eq!((left.len(), &left[0]["type"]), (1, &json!("Other")));
    }
}
