//! Provides the images of containers: pull policy, pull secrets, back-off, events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_runtime::images::Reference;
use tokio::sync::Notify;

use crate::back_off::BackOff;
use crate::events::ContainerEvents;
use crate::pull_secrets::PullSecrets;
use crate::pull_turns::PullTurns;
use crate::pulled_images::{self, Access, PulledImages, RecordError};
use crate::runtime::{ContainerRuntime, Image, PulledImage};
use crate::status::StartFailure;
use crate::volumes::ObjectSource;

/// How long the error of a failed pull is shown before the back-off is.
const SHOW_ERROR: Duration = Duration::from_secs(2);

/// Why the image is not available, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFailure {
    pub failure: StartFailure,
    /// `None` if only a change of the pod can help.
    pub retry_at: Option<Timestamp>,
}

#[derive(Default)]
struct State {
    back_off: BackOff,
    /// The last error by back-off key, also shown during the back-off.
    errors: BTreeMap<String, String>,
}

pub struct ImageManager {
    runtime: Arc<dyn ContainerRuntime>,
    objects: Arc<ObjectSource>,
    clock: Arc<dyn Clock>,
    pulled: Arc<PulledImages>,
    turns: Arc<PullTurns>,
    state: Mutex<State>,
    /// Notified after each pull.
    changed: Arc<Notify>,
}

fn failure(reason: &str, message: impl Into<String>) -> StartFailure {
    StartFailure { reason: reason.to_owned(), message: message.into() }
}

impl ImageManager {
    pub fn new(
        runtime: Arc<dyn ContainerRuntime>,
        objects: Arc<ObjectSource>,
        clock: Arc<dyn Clock>,
        pulled: PulledImages,
        serialize_pulls: bool,
    ) -> Self {
        let turns = Arc::new(PullTurns::new(serialize_pulls));
        let pulled = Arc::new(pulled);
        Self { runtime, objects, clock, pulled, turns, state: Mutex::default(), changed: Arc::default() }
    }

    /// Loads the records of an earlier run; to be called before pods run.
    pub async fn take_up(&self) {
        // If that fails, the records stay as they are: pods may need to pull again, but can run.
        let images = match self.runtime.list_images().await {
            Ok(images) => images,
            Err(error) => return tracing::warn!(%error, "cannot list images to take up the records of pulls"),
        };
        let pulled = Arc::clone(&self.pulled);
        if let Err(error) = in_background(move || pulled.take_up(&images)).await {
            tracing::warn!(error, "cannot take up the records of image pulls");
        }
    }

    /// Notified when images were pulled.
    pub fn changes(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the image of a container; pulls it if the policy requires that.
    pub async fn ensure(
        &self,
        container: &Container,
        events: &ContainerEvents<'_>,
    ) -> Result<Image, ImageFailure> {
        let wanted = container.image.as_deref().unwrap_or("");
        self.ensure_named(wanted, container.image_pull_policy.as_deref(), events).await
    }

    /// Returns the image of this name; pulls it if the policy (`IfNotPresent` if there is none) requires that.
    pub async fn ensure_named(
        &self,
        wanted: &str,
        policy: Option<&str>,
        events: &ContainerEvents<'_>,
    ) -> Result<Image, ImageFailure> {
        let for_good = |failure| ImageFailure { failure, retry_at: None };
        if let Err(error) = wanted.parse::<Reference>() {
            let message = format!(
                "Failed to apply default image tag {wanted:?}: couldn't parse image name {wanted:?}: {error}"
            );
            events.warning("InspectFailed", message.clone());
            return Err(for_good(failure("InvalidImageName", message)));
        }
        let policy = policy.unwrap_or("IfNotPresent");
        if policy != "Always" {
            let present = self.runtime.image_status(wanted).await.map_err(|error| {
                let message = format!("Failed to inspect image {wanted:?}: {error}");
                events.warning("InspectFailed", message.clone());
                self.retry_later(failure("ImageInspectError", message))
            })?;
            match present {
                Some(image) if self.may_use(wanted, &image, events).await => {
                    events.normal(
                        "Pulled",
                        format!("Container image {wanted:?} already present on machine and can be accessed by the pod"),
                    );
                    return Ok(image);
                }
                // A pod that may not use the image must not learn whether it is on the node.
                _ if policy == "Never" => {
                    let message =
                        format!("Container image {wanted:?} is not present with pull policy of Never");
                    events.warning("ErrImageNeverPull", message.clone());
                    return Err(self.retry_later(failure("ErrImageNeverPull", message)));
                }
                _ => {}
            }
        }
        self.pull(wanted, events).await
    }

    /// Returns whether the pod may use a present image without a pull.
    async fn may_use(&self, wanted: &str, image: &Image, events: &ContainerEvents<'_>) -> bool {
        let (pulled, name, found) = (Arc::clone(&self.pulled), wanted.to_owned(), image.clone());
        let access = in_background(move || Ok(pulled.access(&name, &found))).await;
        let recorded = match access.unwrap_or(Access::Refused) {
            Access::Granted => return true,
            Access::Refused => return false,
            Access::Secrets(recorded) => recorded,
        };
        let Ok(reference) = wanted.parse::<Reference>() else { return false };
        let own = PullSecrets::of_pod(&self.objects, events.pod).await.for_image(&reference);
        let Some((secret, is_new)) = pulled_images::matching(&recorded, &own) else { return false };
        if is_new {
            let (pulled, name, id) = (Arc::clone(&self.pulled), wanted.to_owned(), image.id.clone());
            let secret = secret.clone();
            let remembered = in_background(move || {
                pulled.remember(&name, &id, secret);
                Ok(())
            });
            // An error has been logged; the pod may use the image anyway.
            let _ = remembered.await;
        }
        true
    }

    fn retry_later(&self, failure: StartFailure) -> ImageFailure {
        let retry_at = self.clock.now().checked_add(crate::back_off::INITIAL).ok();
        ImageFailure { failure, retry_at }
    }

    async fn pull(&self, wanted: &str, events: &ContainerEvents<'_>) -> Result<Image, ImageFailure> {
        let key = format!("{}_{wanted}", events.pod.uid());
        if let Some(waiting) = self.backing_off(&key, wanted, events) {
            return Err(waiting);
        }
        let intent = PullIntent::begin(&self.pulled, &*self.runtime, wanted).await.map_err(|error| {
            let message =
                format!("Failed to record image pull intent for container image {wanted:?}: {error}");
            events.warning("Failed", message.clone());
            self.retry_later(failure("ErrImagePull", message))
        })?;
        events.normal("Pulling", format!("Pulling image {wanted:?}"));
        let secrets = PullSecrets::of_pod(&self.objects, events.pod).await;
        let asked = self.clock.monotonic();
        let _turn = self.turns.turn(events.pod.namespace()).await;
        let started = self.clock.monotonic();
        match self.runtime.pull_image(wanted, &secrets.keyring).await {
            Ok(pulled) => {
                let image = pulled.image.clone();
                intent.pulled(&secrets, pulled).await;
                self.changed.notify_one();
                let now = self.clock.monotonic();
                events.normal(
                    "Pulled",
                    format!(
                        "Successfully pulled image {wanted:?} in {} ({} including waiting). Image size: {} bytes.",
                        go_duration(now - started),
                        go_duration(now - asked),
                        image.size
                    ),
                );
                Ok(image)
            }
            Err(error) => {
                intent.failed().await;
                let message = error.to_string();
                events.warning("Failed", format!("Failed to pull image {wanted:?}: {message}"));
                if !secrets.missing.is_empty() {
                    events.warning(
                        "FailedToRetrieveImagePullSecret",
                        format!(
                            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                            secrets.missing.join(", ")
                        ),
                    );
                }
                let now = self.clock.now();
                let mut state = self.lock();
                state.back_off.next(&key, now, now);
                state.errors.insert(key.clone(), format!("ErrImagePull: {message}"));
                // The pod is synced again soon, to show the back-off.
                let retry_at = now.checked_add(SHOW_ERROR).ok();
                Err(ImageFailure { failure: failure("ErrImagePull", message), retry_at })
            }
        }
    }

    fn backing_off(&self, key: &str, wanted: &str, events: &ContainerEvents<'_>) -> Option<ImageFailure> {
        let state = self.lock();
        let until = state.back_off.wait_since_update(key, self.clock.now())?;
        let mut message = format!("Back-off pulling image {wanted:?}");
        events.normal("BackOff", message.clone());
        if let Some(error) = state.errors.get(key) {
            message.push_str(": ");
            message.push_str(error);
        }
        Some(ImageFailure { failure: failure("ImagePullBackOff", message), retry_at: Some(until) })
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, pod_uid: &str) {
        let mut state = self.lock();
        let prefix = format!("{pod_uid}_");
        state.back_off.forget(&prefix);
        state.errors.retain(|key, _| !key.starts_with(&prefix));
    }
}

/// A pull that has begun. If it is dropped before its end, as the pod is stopped, it is recorded as abandoned.
struct PullIntent {
    pulled: Arc<PulledImages>,
    wanted: String,
    ended: bool,
}

impl PullIntent {
    async fn begin(
        pulled: &Arc<PulledImages>,
        runtime: &dyn ContainerRuntime,
        wanted: &str,
    ) -> Result<Self, String> {
        // An image whose status cannot be read counts as missing.
        let present = runtime.image_status(wanted).await.unwrap_or_default();
        let settled = match pulled.crowded() {
            true => runtime.list_images().await.ok(),
            false => None,
        };
        let (records, name) = (Arc::clone(pulled), wanted.to_owned());
        in_background(move || {
            if let Some(images) = settled {
                records.settle(&images)?;
            }
            records.begin(&name, present.as_ref())?;
            // Created here, so that it is dropped if the caller was cancelled.
            Ok(Self { pulled: records, wanted: name, ended: false })
        })
        .await
    }

    async fn pulled(mut self, secrets: &PullSecrets, pulled: PulledImage) {
        let Ok(reference) = self.wanted.parse::<Reference>() else { return };
        let credentials = secrets.used(&reference, pulled.credential.as_ref());
        self.ended = true;
        let _ = in_background(move || {
            self.pulled.pulled(&self.wanted, &pulled.image.id, credentials);
            Ok(())
        })
        .await;
    }

    async fn failed(mut self) {
        self.ended = true;
        let _ = in_background(move || {
            self.pulled.failed(&self.wanted);
            Ok(())
        })
        .await;
    }
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        if !self.ended {
            self.pulled.abandoned(&self.wanted);
        }
    }
}

/// Runs file system work on a thread for blocking work.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RecordError> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Formats a duration of whole milliseconds as Go does: `12ms`, `1.5s`, `1m2.5s`.
pub fn go_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (minutes, rest) = (ms / 60_000, ms % 60_000);
    let fraction = format!("{:03}", rest % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let seconds = format!("{}{point}{fraction}s", rest / 1000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, m) => format!("{m}m{seconds}"),
        (h, m) => format!("{h}h{m}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::go_duration;
    use std::time::Duration;

    #[test]
    fn durations() {
        for (ms, text) in [
            (0, "0s"),
            (12, "12ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (10_020, "10.02s"),
            (60_000, "1m0s"),
            (62_500, "1m2.5s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(ms)), text);
        }
    }
}
