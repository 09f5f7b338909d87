//! The phases of volumes: available without a claim, bound to one, released when it is gone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::Result;
use knarr_client::events::EventType;

use super::binder::{BOUND_BY_CONTROLLER, Controller};
use super::matching::modes_differ;
use super::migration::{driver_of, is_of_kubernetes};

pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// The finalizer that kept a volume until an in-tree provisioner had deleted it.
const OLD_FINALIZER: &str = "kubernetes.io/pv-controller";
const MODES_DIFFER: &str = "due to incompatible volumeMode.";

pub fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn annotation<'v>(volume: &'v PersistentVolume, name: &str) -> Option<&'v str> {
    volume.metadata.annotations.as_ref()?.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

fn is_to_be_deleted(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) == Some("Delete")
}

/// Returns a volume of an in-tree provisioner, annotated for the CSI driver that replaces it; `None` if nothing
/// changes.
fn migrated(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let driver = driver_of(annotation(volume, PROVISIONED_BY)?)?;
    let mut next = volume.clone();
    next.metadata.annotations.get_or_insert_default().insert(MIGRATED_TO.to_owned(), driver.to_owned());
    next.metadata.finalizers.get_or_insert_default().retain(|f| f != OLD_FINALIZER);
    next.metadata.finalizers = next.metadata.finalizers.filter(|list| !list.is_empty());
    (next != *volume).then_some(next)
}

impl Controller {
    pub(super) async fn set_volume_phase(&self, volume: &PersistentVolume, to: &str) -> Result<()> {
        if phase(volume) == to {
            return Ok(());
        }
        let status = PersistentVolumeStatus {
            phase: Some(to.to_owned()),
            message: None,
            reason: None,
            ..volume.status.clone().unwrap_or_default()
        };
        let next = PersistentVolume { status: Some(status), ..volume.clone() };
        match self.cx.client.update_status(&next).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    pub(super) async fn sync_volume(&self, key: &ObjectKey) -> Result<()> {
        let Some(volume) = self.volumes.lister().get_key(key) else {
            self.recycling.forget(&key.name);
            return Ok(());
        };
        if let Some(next) = migrated(&volume) {
            // The change arrives as an event, which requeues the volume.
            return self.cx.client.update(&next).await.map(drop);
        }
        let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
            return self.set_volume_phase(&volume, "Available").await;
        };
        if reference.uid.as_deref().is_none_or(str::is_empty) {
            return self.set_volume_phase(&volume, "Available").await;
        }
        let Some(claim) = self.claim_of(reference).await? else { return self.release(&volume).await };
        let wanted = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or("");
        if wanted == volume.name() {
            return self.set_volume_phase(&volume, "Bound").await;
        }
        if wanted.is_empty() {
            if modes_differ(&volume, &claim) {
                let to = format!(
                    "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?}",
                    claim.name()
                );
                let from = format!(
                    "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim",
                    volume.name()
                );
                let recorder = &self.cx.recorder;
                recorder.event(
                    &*volume,
                    EventType::Warning,
                    "VolumeMismatch",
                    format!("{to} {MODES_DIFFER}"),
                );
                recorder.event(
                    &*claim,
                    EventType::Warning,
                    "VolumeMismatch",
                    format!("{from} {MODES_DIFFER}"),
                );
            } else {
                self.claim_queue.add(claim.key());
            }
            return Ok(());
        }
        // The claim is bound to another volume.
        if annotation(&volume, PROVISIONED_BY).is_some() && is_to_be_deleted(&volume) {
            return self.release(&volume).await;
        }
        self.unbind(&volume).await
    }

    /// Returns the claim that a volume is bound to, if it exists, reading it from the API server if the informer does
    /// not show it.
    async fn claim_of(&self, reference: &ObjectReference) -> Result<Option<Arc<PersistentVolumeClaim>>> {
        let uid = reference.uid.as_deref().unwrap_or("");
        let (namespace, name) =
            (reference.namespace.as_deref().unwrap_or(""), reference.name.as_deref().unwrap_or(""));
        let known = self.claims.lister().get(namespace, name).filter(|claim| claim.uid() == uid);
        if known.is_some() {
            return Ok(known);
        }
        match self.cx.client.get::<PersistentVolumeClaim>(namespace, name).await {
            Ok(live) => Ok(Some(Arc::new(live)).filter(|claim| claim.uid() == uid)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Unbinds a volume whose claim is bound to another one; a claimRef set by the volume's creator is kept.
    pub(super) async fn unbind(&self, volume: &PersistentVolume) -> Result<()> {
        let mut next = volume.clone();
        let annotations = next.metadata.annotations.get_or_insert_default();
        let by_us = annotations.remove(BOUND_BY_CONTROLLER).is_some();
        next.metadata.annotations = next.metadata.annotations.filter(|all| !all.is_empty());
        let spec = next.spec.get_or_insert_default();
        if by_us {
            spec.claim_ref = None;
        } else if let Some(reference) = &mut spec.claim_ref {
            reference.uid = None;
        }
        let freed = self.cx.client.update(&next).await?;
        self.set_volume_phase(&freed, "Available").await
    }

    /// Applies the reclaim policy after the claim is gone, as far as it is this controller's work.
    async fn release(&self, volume: &PersistentVolume) -> Result<()> {
        let todo = reclaim(volume);
        // A failure stays visible in the phase, but recycling may be retried.
        if phase(volume) == "Failed" && todo != Reclaim::Recycle {
            return Ok(());
        }
        if phase(volume) == "Failed" {
            return self.recycle(volume).await;
        }
        if phase(volume) != "Released" {
            return self.set_volume_phase(volume, "Released").await;
        }
        match todo {
            Reclaim::Nothing => Ok(()),
            Reclaim::Recycle => self.recycle(volume).await,
            Reclaim::Forget => {
                match self
                    .cx
                    .client
                    .delete::<PersistentVolume>("", volume.name(), &DeleteOptions::default())
                    .await
                {
                    Err(e) if !e.is_not_found() => Err(e),
                    _ => Ok(()),
                }
            }
            Reclaim::Fail(reason, why) => self.fail_volume(volume, reason, why).await,
        }
    }

    /// Sets the phase Failed: no component can apply the reclaim policy.
    pub(super) async fn fail_volume(
        &self,
        volume: &PersistentVolume,
        reason: &str,
        why: String,
    ) -> Result<()> {
        let mut next = volume.clone();
        let status = next.status.get_or_insert_default();
        if status.phase.as_deref() == Some("Failed") && status.message.as_ref() == Some(&why) {
            return Ok(());
        }
        status.phase = Some("Failed".to_owned());
        status.message = Some(why.clone());
        match self.cx.client.update_status(&next).await {
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => Err(e),
            Ok(_) => {
                self.cx.recorder.event(volume, EventType::Warning, reason, why);
                Ok(())
            }
        }
    }
}

/// What to do with a released volume.
#[derive(Debug, PartialEq, Eq)]
enum Reclaim {
    /// Nothing: it is retained, or another component deletes it.
    Nothing,
    /// Delete the object; there is no storage behind it that could be reclaimed.
    Forget,
    /// Scrub the volume and make it available again.
    Recycle,
    /// The policy cannot be applied: the event's reason and message.
    Fail(&'static str, String),
}

fn reclaim(volume: &PersistentVolume) -> Reclaim {
    let Some(spec) = volume.spec.as_ref().filter(|_| annotation(volume, MIGRATED_TO).is_none()) else {
        return Reclaim::Nothing;
    };
    match spec.persistent_volume_reclaim_policy.as_deref() {
        Some("Delete") => {}
        Some("Recycle") => return Reclaim::Recycle,
        _ => return Reclaim::Nothing,
    }
    let fail = |why: String| Reclaim::Fail("VolumeFailedDelete", why);
    match annotation(volume, PROVISIONED_BY) {
        Some(name) if is_of_kubernetes(name) => {
            return fail(format!("no volume plugin matched name: {name}"));
        }
        Some(_) => return Reclaim::Nothing,
        None => {}
    }
    if spec.csi.is_some() {
        return Reclaim::Nothing;
    }
    if let Some(folder) = &spec.host_path {
        let path = &folder.path;
        // A directory below /tmp belongs to a test; its content is not deleted.
        let of_test = path.find("/tmp/").is_some_and(|at| path.len() > at + "/tmp/".len());
        return match of_test {
            true => Reclaim::Forget,
            false => fail(format!("host_path deleter only supports /tmp/.+ but received provided {path}")),
        };
    }
    let known = spec.nfs.is_some();
    let why = if known { "no deletable volume plugin matched" } else { "no volume plugin matched" };
    fail(format!("error getting deleter volume plugin for volume {:?}: {why}", volume.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volumes_of_old_provisioners_are_their_drivers() {
        let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "v",
            "annotations": {PROVISIONED_BY: "kubernetes.io/gce-pd"}, "finalizers": [OLD_FINALIZER]}}))
        .unwrap();
        let marked = migrated(&volume).unwrap();
        assert_eq!(annotation(&marked, MIGRATED_TO), Some("pd.csi.storage.gke.io"));
        assert_eq!(marked.metadata.finalizers, None);
        assert_eq!(migrated(&marked), None, "once");
    }

    #[test]
    fn what_becomes_of_released_volumes() {
        let volume = |annotations: serde_json::Value, source: serde_json::Value| -> PersistentVolume {
            let mut spec = source;
            spec["persistentVolumeReclaimPolicy"] = json!("Delete");
            serde_json::from_value(
                json!({"metadata": {"name": "v", "annotations": annotations}, "spec": spec}),
            )
            .unwrap()
        };
        let none = || json!({});
        for (annotations, source, expected) in [
            (none(), json!({"csi": {"driver": "d", "volumeHandle": "h"}}), None),
            (json!({PROVISIONED_BY: "example.com/p"}), json!({"hostPath": {"path": "/data"}}), None),
            (json!({MIGRATED_TO: "example.com/p"}), json!({"nfs": {"server": "s", "path": "/"}}), None),
            (
                json!({PROVISIONED_BY: "kubernetes.io/x"}),
                json!({"hostPath": {"path": "/data"}}),
                Some("no volume plugin matched name: kubernetes.io/x"),
            ),
            (none(), json!({"hostPath": {"path": "/tmp/a"}}), Some("")),
            (
                none(),
                json!({"hostPath": {"path": "/data"}}),
                Some("host_path deleter only supports /tmp/.+ but received provided /data"),
            ),
            (
                none(),
                json!({"nfs": {"server": "s", "path": "/"}}),
                Some(
                    "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched",
                ),
            ),
            (
                none(),
                json!({"local": {"path": "/mnt"}}),
                Some("error getting deleter volume plugin for volume \"v\": no volume plugin matched"),
            ),
        ] {
            let expected = match expected {
                Some("") => Reclaim::Forget,
                Some(why) => Reclaim::Fail("VolumeFailedDelete", why.to_owned()),
                None => Reclaim::Nothing,
            };
            assert_eq!(reclaim(&volume(annotations, source.clone())), expected, "{source}");
        }
        let mut kept = volume(none(), json!({"local": {"path": "/mnt"}}));
        kept.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Retain".to_owned());
        assert_eq!(reclaim(&kept), Reclaim::Nothing);
        kept.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some("Recycle".to_owned());
        assert_eq!(reclaim(&kept), Reclaim::Recycle);
    }
}
