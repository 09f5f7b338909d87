//! Labels and annotations of sandboxes and containers, by which they are recognized after a restart.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::kind::Kind;
use sha2::{Digest, Sha256};

use crate::pod;
use crate::resize_policy;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// The resources with which a container was started, if its resize policy requires a restart.
pub const CONTAINER_RESOURCES: &str = "knarr.dev/container.resources";
pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

pub fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    for (name, value) in [(POD_NAME, pod.name()), (POD_NAMESPACE, pod.namespace()), (POD_UID, pod.uid())] {
        labels.insert(name.to_owned(), value.to_owned());
    }
    labels
}

pub fn container_labels(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    [
        (POD_NAME, pod.name()),
        (POD_NAMESPACE, pod.namespace()),
        (POD_UID, pod.uid()),
        (CONTAINER_NAME, &container.name),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

pub fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let mut annotations: BTreeMap<String, String> = [
        (CONTAINER_HASH, container_hash(container)),
        (RESTART_COUNT, restart_count.to_string()),
        (TERMINATION_MESSAGE_PATH, container.termination_message_path.clone().unwrap_or_default()),
        (TERMINATION_MESSAGE_POLICY, container.termination_message_policy.clone().unwrap_or_default()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let Some(grace) = pod::spec(pod).termination_grace_period_seconds {
        annotations.insert(TERMINATION_GRACE_PERIOD.to_owned(), grace.to_string());
    }
    if let Some(resources) = resize_policy::annotation(pod, container) {
        annotations.insert(CONTAINER_RESOURCES.to_owned(), resources);
    }
    annotations
}

/// Returns a hash over the fields whose change requires a new container: name and image. All other fields of a
/// running container's spec either cannot change, or can be changed in place.
pub fn container_hash(container: &Container) -> String {
    let mut hash = Sha256::new();
    for part in [container.name.as_str(), container.image.as_deref().unwrap_or("")] {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_the_image_and_nothing_else() {
        let web = Container { name: "web".into(), image: Some("web:1".into()), ..Container::default() };
        let same = Container { command: Some(vec!["sh".into()]), ..web.clone() };
        let other = Container { image: Some("web:2".into()), ..web.clone() };
        assert_eq!(container_hash(&web).len(), 16);
        assert_eq!(container_hash(&web), container_hash(&same));
        assert_ne!(container_hash(&web), container_hash(&other));
    }
}
