//! Makes sure that a container's image is here: pull policy, pull secrets, back-off, events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_runtime::images::Reference;
use tokio::sync::{Notify, Semaphore};

use crate::back_off::BackOff;
use crate::events::ContainerEvents;
use crate::pod;
use crate::runtime::{ContainerRuntime, Image, Keyring};
use crate::status::StartFailure;
use crate::volumes::ObjectSource;

/// Pulls at the same time, unless they are to be one after the other.
const PARALLEL_PULLS: usize = 5;

/// How long a failed pull is shown before its back-off is.
const SHOW_ERROR: Duration = Duration::from_secs(2);

/// Why there is no image, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFailure {
    pub failure: StartFailure,
    /// `None` when only a change of the pod can help.
    pub retry_at: Option<Timestamp>,
}

#[derive(Default)]
struct State {
    back_off: BackOff,
    /// The last error per back-off key, told during the back-off as well.
    errors: BTreeMap<String, String>,
}

pub struct ImageManager {
    runtime: Arc<dyn ContainerRuntime>,
    objects: Arc<ObjectSource>,
    clock: Arc<dyn Clock>,
    pulls: Semaphore,
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
        serialize_pulls: bool,
    ) -> Self {
        let pulls = Semaphore::new(if serialize_pulls { 1 } else { PARALLEL_PULLS });
        Self { runtime, objects, clock, pulls, state: Mutex::default(), changed: Arc::default() }
    }

    /// Notified when images were pulled.
    pub fn changes(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The image of a container, pulled if the policy says so.
    pub async fn ensure(
        &self,
        container: &Container,
        events: &ContainerEvents<'_>,
    ) -> Result<Image, ImageFailure> {
        let wanted = container.image.as_deref().unwrap_or("");
        self.ensure_named(wanted, container.image_pull_policy.as_deref(), events).await
    }

    /// The image of this name, pulled if the policy (`IfNotPresent` if there is none) says so.
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
                Some(image) => {
                    events.normal(
                        "Pulled",
                        format!("Container image {wanted:?} already present on machine and can be accessed by the pod"),
                    );
                    return Ok(image);
                }
                None if policy == "Never" => {
                    let message =
                        format!("Container image {wanted:?} is not present with pull policy of Never");
                    events.warning("ErrImageNeverPull", message.clone());
                    return Err(self.retry_later(failure("ErrImageNeverPull", message)));
                }
                None => {}
            }
        }
        self.pull(wanted, events).await
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
        events.normal("Pulling", format!("Pulling image {wanted:?}"));
        let (keyring, missing) = self.keyring(events.pod).await;
        let asked = self.clock.monotonic();
        // The semaphore is never closed.
        let _turn = self.pulls.acquire().await;
        let started = self.clock.monotonic();
        match self.runtime.pull_image(wanted, &keyring).await {
            Ok(image) => {
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
                let message = error.to_string();
                events.warning("Failed", format!("Failed to pull image {wanted:?}: {message}"));
                if !missing.is_empty() {
                    events.warning(
                        "FailedToRetrieveImagePullSecret",
                        format!(
                            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                            missing.join(", ")
                        ),
                    );
                }
                let now = self.clock.now();
                let mut state = self.lock();
                state.back_off.next(&key, now, now);
                state.errors.insert(key.clone(), format!("ErrImagePull: {message}"));
                // Looked at again soon, to show the back-off.
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

    /// The credentials of the pod's pull secrets, and the names of secrets that could not be read.
    async fn keyring(&self, pod: &Pod) -> (Keyring, Vec<String>) {
        let (mut keyring, mut missing) = (Keyring::new(), Vec::new());
        for secret in pod::spec(pod).image_pull_secrets.iter().flatten().filter(|s| !s.name.is_empty()) {
            let Ok(object) = self.objects.secret(pod.namespace(), &secret.name).await else {
                missing.push(secret.name.clone());
                continue;
            };
            let data =
                |key: &str| object.data.as_ref().and_then(|d| d.get(key)).map(|bytes| bytes.0.as_slice());
            let mut own = Keyring::new();
            let read = match (data(".dockerconfigjson"), data(".dockercfg")) {
                (Some(json), _) => own.add_docker_config_json(json),
                (None, Some(json)) => own.add_dockercfg(json),
                (None, None) => Ok(()),
            };
            match read {
                Ok(()) => keyring.extend(own),
                Err(error) => {
                    tracing::warn!(pod = %pod::format(pod), secret = %secret.name, %error, "unreadable pull secret");
                }
            }
        }
        (keyring, missing)
    }

    /// The pod is gone.
    pub fn forget(&self, pod_uid: &str) {
        let mut state = self.lock();
        let prefix = format!("{pod_uid}_");
        state.back_off.forget(&prefix);
        state.errors.retain(|key, _| !key.starts_with(&prefix));
    }
}

/// A duration in milliseconds as Go writes it: `12ms`, `1.5s`, `1m2.5s`.
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
