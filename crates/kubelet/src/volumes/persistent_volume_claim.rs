//! `persistentVolumeClaim` and `ephemeral` volumes: the volume behind a bound claim, of type hostPath, local or
//! csi ([`csi`]).

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Volume};
use knarr_api::kind::Kind;

use super::error::{Error, Result};
use super::meter::Meter;
use super::operations::{Operation, csi_plugin};
use super::plugin::{Ready, SetUp, VolumePlugin, blocking};
use super::{csi, host_path, ownership};

const PROTECTION_FINALIZER: &str = "kubernetes.io/pvc-protection";

pub struct PersistentVolumeClaimPlugin;

#[async_trait]
impl VolumePlugin for PersistentVolumeClaimPlugin {
    fn name(&self) -> &'static str {
        "persistent-volume-claim"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let (claim_name, read_only) = match &task.volume.persistent_volume_claim {
            Some(source) => (source.claim_name.clone(), source.read_only.unwrap_or(false)),
            None => (format!("{}-{}", task.pod.name(), task.volume.name), false),
        };
        let namespace = task.namespace();
        let unprocessed = |text: String| {
            Error::Unprocessed(format!("error processing PVC {namespace}/{claim_name}: {text}"))
        };
        let client = &task.host.client;
        let claim: PersistentVolumeClaim = client
            .get(namespace, &claim_name)
            .await
            .map_err(|e| unprocessed(format!("failed to fetch PVC from API server: {e}")))?;
        let volume_name = bound_volume(&claim).map_err(|e| unprocessed(e.to_owned()))?;
        if task.volume.ephemeral.is_some() && !is_owned(&claim, task.pod.uid()) {
            return Err(Error::Unprocessed(format!(
                "PVC {namespace}/{claim_name} was not created for pod {namespace}/{} (pod is not owner)",
                task.pod.name()
            )));
        }
        let volume: PersistentVolume = client
            .get("", volume_name)
            .await
            .map_err(|e| unprocessed(format!("failed to fetch PV {volume_name} from API server: {e}")))?;
        check_claim_ref(&volume, claim.uid()).map_err(unprocessed)?;
        check_mode(&volume, &task.volume.name)?;
        let operations = task.host.csi.operations();
        if let Some(source) = volume.spec.as_ref().and_then(|s| s.csi.as_ref()) {
            let claimed = csi::Claimed { claim: &claim, volume: &volume, source, read_only };
            let plugin = csi_plugin(&source.driver);
            return operations.measured(&plugin, Operation::Mount, csi::set_up_claimed(task, &claimed)).await;
        }
        let target = target(&volume)?;
        let group = task.fs_group().filter(|_| !read_only && target.owned);
        let lazily = task.change_on_root_mismatch();
        let path = target.path.clone();
        let local = target.host_path_type.is_none();
        let plugin = if local { "kubernetes.io/local-volume" } else { "kubernetes.io/host-path" };
        let work = blocking(move || {
            target.prepare()?;
            match group {
                Some(group) => ownership::set_ownership(&target.path, group, false, lazily),
                None => Ok(()),
            }
        });
        operations.measured(plugin, Operation::Mount, work).await?;
        let mut ready = Ready::at(&path);
        ready.volume.read_only = read_only;
        // A hostPath volume is not measured: it is only a part of some file system.
        ready.meter = local.then_some(Meter::FileSystem);
        Ok(ready)
    }
}

/// Returns the name of the volume that a claim is bound to, or why there is none.
fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, &'static str> {
    let protected = claim.metadata.finalizers.iter().flatten().any(|f| f == PROTECTION_FINALIZER);
    if claim.metadata.deletion_timestamp.is_some() && !protected {
        return Err("PVC is being deleted");
    }
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return Err("PVC is not bound");
    }
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or("");
    if name.is_empty() { Err("PVC has empty pvc.Spec.VolumeName") } else { Ok(name) }
}

fn is_owned(claim: &PersistentVolumeClaim, pod_uid: &str) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.filter(|o| o.controller == Some(true)).any(|o| o.uid == pod_uid)
}

fn check_claim_ref(volume: &PersistentVolume, claim_uid: &str) -> Result<(), String> {
    let name = volume.name();
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let Some(uid) = reference.map(|r| r.uid.as_deref().unwrap_or("")) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    if uid != claim_uid {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {uid} does not point to claim.UID {claim_uid}"
        ));
    }
    Ok(())
}

fn check_mode(volume: &PersistentVolume, name: &str) -> Result<()> {
    match volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref()) {
        None | Some("Filesystem") => Ok(()),
        Some(mode) => Err(Error::Unprocessed(format!(
            "volume {name} has volumeMode {mode}, but is specified in volumeMounts"
        ))),
    }
}

struct Target {
    volume: String,
    path: PathBuf,
    /// The type of a hostPath volume; `None` for a local volume.
    host_path_type: Option<String>,
    /// Whether fsGroup is applied.
    owned: bool,
}

fn target(volume: &PersistentVolume) -> Result<Target> {
    let (name, spec) = (volume.name().to_owned(), volume.spec.as_ref());
    if let Some(source) = spec.and_then(|s| s.host_path.as_ref()) {
        let host_path_type = Some(source.type_.clone().unwrap_or_default());
        return Ok(Target { volume: name, path: PathBuf::from(&source.path), host_path_type, owned: false });
    }
    if let Some(source) = spec.and_then(|s| s.local.as_ref()) {
        return Ok(Target {
            volume: name,
            path: PathBuf::from(&source.path),
            host_path_type: None,
            owned: true,
        });
    }
    Err(Error::failed("no volume plugin matched"))
}

impl Target {
    fn prepare(&self) -> Result<()> {
        match &self.host_path_type {
            Some(wanted) => host_path::prepare(&self.path, wanted),
            None => local_fault(&self.path).map_or(Ok(()), |fault| {
                let name = &self.volume;
                let text =
                    format!("MountVolume.NewMounter initialization failed for volume {name:?} : {fault}");
                Err(Error::Whole(text))
            }),
        }
    }
}

fn local_fault(path: &Path) -> Option<String> {
    let shown = path.display().to_string();
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => None,
        Ok(_) => Some("only directory and block device are supported".to_owned()),
        Err(_) => Some(format!("path {shown:?} does not exist")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(value: serde_json::Value) -> PersistentVolumeClaim {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_bound_claims_have_a_volume() {
        let bound = json!({"phase": "Bound"});
        let deleted = "2026-01-01T00:00:00Z";
        let table = [
            (json!({"spec": {"volumeName": "v"}, "status": bound}), Ok("v")),
            (json!({"spec": {"volumeName": "v"}, "status": {"phase": "Pending"}}), Err("PVC is not bound")),
            (json!({"spec": {}, "status": bound}), Err("PVC has empty pvc.Spec.VolumeName")),
            (
                json!({"metadata": {"deletionTimestamp": deleted}, "spec": {"volumeName": "v"}, "status": bound}),
                Err("PVC is being deleted"),
            ),
            (
                json!({"metadata": {"deletionTimestamp": deleted, "finalizers": [PROTECTION_FINALIZER]},
                    "spec": {"volumeName": "v"}, "status": bound}),
                Ok("v"),
            ),
        ];
        for (value, want) in table {
            assert_eq!(bound_volume(&claim(value.clone())), want, "{value}");
        }
    }

    #[test]
    fn the_volume_points_back() {
        let volume = |reference: serde_json::Value| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"claimRef": reference}}))
                .unwrap()
        };
        assert!(check_claim_ref(&volume(json!({"uid": "u"})), "u").is_ok());
        let other = check_claim_ref(&volume(json!({"uid": "x"})), "u").unwrap_err();
        assert!(other.ends_with("UID x does not point to claim.UID u"), "{other}");
        assert!(check_claim_ref(&volume(json!(null)), "u").unwrap_err().contains("nil pv.Spec.ClaimRef"));
    }
}
