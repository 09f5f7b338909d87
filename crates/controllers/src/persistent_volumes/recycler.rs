//! Recycling: a pod scrubs a released volume whose policy is Recycle; then the volume is available again.
//!
//! Source: <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#recycle>, and the behaviour of
//! kube-controller-manager 1.37.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, PersistentVolume, Pod, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;
use knarr_client::Result;
use knarr_client::events::EventType;
use serde_json::json;

use super::binder::Controller;
use super::protection::claims_of;
use crate::settings::{RecyclerSettings, Scrubbing};
use crate::support::pod_state::has_ended;

const FAILED: &str = "VolumeFailedRecycle";
const PREFIX: &str = "recycler-for-";
/// The delay after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(15);
const GI: i64 = 1 << 30;

/// The state of each volume's recycling.
#[derive(Default)]
pub struct Recycling(Mutex<HashMap<String, State>>);

#[derive(Clone)]
enum State {
    /// The pod with this uid scrubs the volume.
    Runs(String),
    /// The next attempt may not start before this time of the monotonic clock.
    Waits(Duration),
}

impl Recycling {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget(&self, volume: &str) {
        self.lock().remove(volume);
    }
}

/// Returns the volume that a recycler pod scrubs, according to the pod's name.
pub fn volume_of(pod: &Pod) -> Option<&str> {
    pod.name().strip_prefix(PREFIX)
}

/// Makes the pod that scrubs the volume; `None` for a volume type that cannot be recycled.
fn scrubber(volume: &PersistentVolume, settings: &RecyclerSettings) -> Option<Pod> {
    let spec = volume.spec.as_ref()?;
    let (source, scrubbing) = match (&spec.host_path, &spec.nfs) {
        (Some(folder), _) => {
            let folder = HostPathVolumeSource { path: folder.path.clone(), type_: None };
            (Volume { host_path: Some(folder), ..Volume::default() }, &settings.host_path)
        }
        (None, Some(nfs)) => (Volume { nfs: Some(nfs.clone()), ..Volume::default() }, &settings.nfs),
        (None, None) => return None,
    };
    let mut pod = scrubbing.template.as_deref().cloned().unwrap_or_else(usual);
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(format!("{PREFIX}{}", volume.name()));
    let of_pod = pod.spec.get_or_insert_default();
    of_pod.active_deadline_seconds = Some(deadline(volume, scrubbing));
    let first = of_pod.volumes.get_or_insert_default().first_mut()?;
    *first = Volume { name: std::mem::take(&mut first.name), ..source };
    Some(pod)
}

/// Returns the deadline in seconds, which depends on the volume's whole gibibytes.
fn deadline(volume: &PersistentVolume, scrubbing: &Scrubbing) -> i64 {
    let size = || -> Option<i64> {
        let text = &volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0;
        Some(Quantity::parse(text).ok()?.value())
    };
    let gi = size().unwrap_or(0) / GI;
    gi.saturating_mul(scrubbing.seconds_per_gi).max(scrubbing.minimum_seconds)
}

fn usual() -> Pod {
    let mount = VolumeMount { name: "vol".into(), mount_path: "/scrub".into(), ..VolumeMount::default() };
    serde_json::from_value(json!({"spec": {
        "restartPolicy": "Never",
        "volumes": [{"name": "vol"}],
        "containers": [{
            "name": "pv-recycler",
            "image": "busybox",
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sh", "-c", "cd /scrub && rm -rf -- * .[!.]* ..?* && [ -z \"$(ls -A)\" ]"],
            "volumeMounts": [mount],
        }],
    }}))
    .unwrap_or_default()
}

impl Controller {
    /// Starts recycling of the volume or checks its progress. The volume is released, and may have failed before.
    pub(super) async fn recycle(&self, volume: &PersistentVolume) -> Result<()> {
        let Some(fresh) = scrubber(volume, &self.cx.settings().recyclers) else {
            return self
                .fail_volume(volume, FAILED, "No recycler plugin found for the volume!".to_owned())
                .await;
        };
        let state = self.recycling.lock().get(volume.name()).cloned();
        let now = self.cx.clock.monotonic();
        let ours = match state {
            Some(State::Waits(until)) if until > now => {
                self.volume_queue.add_after(volume.key(), until - now);
                return Ok(());
            }
            Some(State::Runs(uid)) => Some(uid),
            _ => None,
        };
        let namespace = fresh.namespace();
        let Some(uid) = ours else {
            let users = self.users(volume);
            if !users.is_empty() {
                // The end of these pods arrives as an event.
                let text = format!("Volume is used by pods: {}", users.join(","));
                self.cx.recorder.event(volume, EventType::Normal, FAILED, text);
                return Ok(());
            }
            // If this version is old, the volume may be available again or bound to another claim, whose data must
            // not be deleted.
            let live: PersistentVolume = self.cx.client.get("", volume.name()).await?;
            if live.metadata.resource_version != volume.metadata.resource_version {
                return Ok(());
            }
            return match self.cx.client.create(&fresh).await {
                Ok(pod) => {
                    self.recycling.lock().insert(volume.name().to_owned(), State::Runs(pod.uid().to_owned()));
                    Ok(())
                }
                // It is unknown what this older pod has deleted, and for which of the volume's claims.
                Err(error) if error.is_already_exists() => {
                    self.delete_pod(namespace, fresh.name()).await?;
                    self.failed(volume, "old recycler pod found, will retry later").await
                }
                Err(error) => {
                    self.failed(volume, &format!("unexpected error creating recycler pod: {error}")).await
                }
            };
        };
        let known = self.pods.lister().get(namespace, fresh.name()).filter(|pod| pod.uid() == uid);
        let pod = match known {
            Some(pod) => Some((*pod).clone()),
            None => match self.cx.client.get::<Pod>(namespace, fresh.name()).await {
                Ok(pod) => Some(pod).filter(|pod| pod.uid() == uid),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            },
        };
        match outcome(pod.as_ref()) {
            None => Ok(()),
            Some(Ok(())) => {
                // The volume is unbound first: if the pod were deleted first, a conflict here would look like a
                // failed recycling.
                self.unbind(volume).await?;
                self.recycling.forget(volume.name());
                self.cx.recorder.event(volume, EventType::Normal, "VolumeRecycled", "Volume recycled");
                self.delete_pod(namespace, fresh.name()).await
            }
            Some(Err(why)) => {
                self.delete_pod(namespace, fresh.name()).await?;
                self.failed(volume, &format!("failed to recycle volume: {why}")).await
            }
        }
    }

    async fn failed(&self, volume: &PersistentVolume, why: &str) -> Result<()> {
        let until = self.cx.clock.monotonic() + RETRY_AFTER;
        self.recycling.lock().insert(volume.name().to_owned(), State::Waits(until));
        self.volume_queue.add_after(volume.key(), RETRY_AFTER);
        self.fail_volume(volume, FAILED, format!("Recycle failed: {why}")).await
    }

    async fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        match self.cx.client.delete::<Pod>(namespace, name, &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the pods that still use the volume through the claim it was bound to. Pods of a new claim of the same
    /// name, which has another volume, do not count.
    fn users(&self, volume: &PersistentVolume) -> Vec<String> {
        let Some(claim) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return Vec::new() };
        let (namespace, name) =
            (claim.namespace.as_deref().unwrap_or(""), claim.name.as_deref().unwrap_or(""));
        if self.claims.lister().get(namespace, name).is_some() {
            return Vec::new();
        }
        let key = format!("{namespace}/{name}");
        let pods = self.pods.lister().list_namespace(namespace);
        let uses = pods.iter().filter(|pod| !has_ended(pod) && claims_of(pod).contains(&key));
        let mut users: Vec<String> = uses.map(|pod| format!("{namespace}/{}", pod.name())).collect();
        users.sort();
        users
    }
}

/// Returns the result of recycling; `None` while the pod runs.
fn outcome(pod: Option<&Pod>) -> Option<std::result::Result<(), String>> {
    let Some(pod) = pod else { return Some(Err("recycler pod was deleted".to_owned())) };
    let status = pod.status.as_ref();
    match status.and_then(|s| s.phase.as_deref()) {
        Some("Succeeded") => Some(Ok(())),
        Some("Failed") => {
            let message = status.and_then(|s| s.message.clone()).filter(|text| !text.is_empty());
            Some(Err(message.unwrap_or_else(|| "pod failed, pod.Status.Message unknown".to_owned())))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "recycler_tests.rs"]
mod tests;
