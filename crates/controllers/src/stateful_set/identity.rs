//! The identity of a StatefulSet's pod: ordinal, name, labels, host name and claims.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use knarr_api::kind::Kind;

use crate::support::pod_control::pod_from;

pub const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
pub const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// Returns the first ordinal.
pub fn start(set: &StatefulSet) -> i32 {
    set.spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0)
}

/// Returns the wanted number of pods.
pub fn wanted(set: &StatefulSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

/// Returns whether the spec requires a pod with this ordinal.
pub fn in_range(set: &StatefulSet, ordinal: i32) -> bool {
    ordinal >= start(set) && ordinal < start(set).saturating_add(wanted(set))
}

/// Returns the name of the pod with this ordinal.
pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.name())
}

/// Returns the ordinal of a pod whose name has the set's form.
pub fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let number = pod.name().strip_prefix(set.name())?.strip_prefix('-')?;
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    number.parse().ok().filter(|_| plain)
}

/// Returns the name of the pod's revision, from its label.
pub fn revision(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get(REVISION_LABEL)).map_or("", String::as_str)
}

fn claim_templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.volume_claim_templates.as_deref().unwrap_or_default()
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name(), set.name())
}

/// Returns the claims of the pod with this ordinal.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let of = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        claim.metadata.name = Some(claim_name(set, template, ordinal));
        claim.metadata.namespace = set.metadata.namespace.clone();
        claim.status = None;
        let selected = set.spec.selector.match_labels.clone().unwrap_or_default();
        if !selected.is_empty() {
            claim.metadata.labels.get_or_insert_default().extend(selected);
        }
        claim
    };
    claim_templates(set).iter().map(of).collect()
}

/// Sets name, labels and host name of the pod for this ordinal.
pub fn identify(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let name = pod_name(set, ordinal);
    pod.metadata.namespace = set.metadata.namespace.clone();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME_LABEL.to_owned(), name.clone());
    labels.insert(INDEX_LABEL.to_owned(), ordinal.to_string());
    pod.metadata.name = Some(name);
}

/// Points the pod's volumes that are named like claim templates to this ordinal's claims.
pub fn mount_claims(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let templates = claim_templates(set);
    if templates.is_empty() {
        return;
    }
    let Some(spec) = &mut pod.spec else { return };
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|v| !templates.iter().any(|t| t.name() == v.name));
    volumes.extend(templates.iter().map(|template| Volume {
        name: template.name().to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: Some(false),
        }),
        ..Volume::default()
    }));
}

/// Makes the pod with this ordinal from a template.
pub fn new_pod(set: &StatefulSet, template: &PodTemplateSpec, revision: &str, ordinal: i32) -> Pod {
    let mut pod = pod_from(set, Some(template));
    identify(set, &mut pod, ordinal);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(REVISION_LABEL.to_owned(), revision.to_owned());
    let name = pod.metadata.name.clone();
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = name;
    spec.subdomain = set.spec.service_name.clone().filter(|s| !s.is_empty());
    mount_claims(set, &mut pod, ordinal);
    pod
}

/// Returns whether name, labels and claims of the set's pod are those of its ordinal.
pub fn is_identified(set: &StatefulSet, pod: &Pod, ordinal: i32) -> bool {
    let mut right = pod.clone();
    identify(set, &mut right, ordinal);
    let labels = right.metadata.labels == pod.metadata.labels;
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    let claimed = claim_templates(set).iter().all(|template| {
        let volume = volumes.iter().find(|v| v.name == template.name());
        let claim = volume.and_then(|v| v.persistent_volume_claim.as_ref());
        claim.is_some_and(|c| c.claim_name == claim_name(set, template, ordinal))
    });
    labels && claimed
}
