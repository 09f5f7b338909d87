//! Annotations of pods that Kubernetes evaluates; most are older than the fields that replaced them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::core::pod::app_armor;
use crate::validate;

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub fn annotations(
    errors: &mut ErrorList,
    path: &Path,
    annotations: Option<&BTreeMap<String, String>>,
    spec: &PodSpec,
) {
    let Some(annotations) = annotations else { return };
    if let Some(mirror) = annotations.get(MIRROR)
        && spec.node_name.as_deref().unwrap_or("").is_empty()
    {
        let problem = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(Error::invalid(&path.key(MIRROR), mirror.as_str(), problem));
    }
    if let Some(cost) = annotations.get(DELETION_COST).filter(|cost| !is_integer(cost)) {
        errors.push(Error::invalid(&path.key(DELETION_COST), cost.as_str(), "must be a 32bit integer"));
    }
    let of_container = |key: &str| key.starts_with(SECCOMP_OF_CONTAINER);
    for (key, profile) in annotations.iter().filter(|(key, _)| *key == SECCOMP || of_container(key)) {
        seccomp(errors, &path.child(key), profile);
    }
    let containers = || {
        let inits = spec.init_containers.iter().flatten();
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.name);
        spec.containers.iter().chain(inits).map(|c| &c.name).chain(ephemeral)
    };
    for (key, profile) in annotations {
        let Some(container) = key.strip_prefix(app_armor::ANNOTATION_PREFIX) else { continue };
        if !containers().any(|name| name == container) {
            errors.push(Error::invalid(&path.key(key), container, "container not found"));
        }
        let fine = matches!(profile.as_str(), "" | "runtime/default" | "unconfined");
        if !fine && !profile.starts_with("localhost/") {
            let problem = format!("invalid AppArmor profile name: {profile:?}");
            errors.push(Error::invalid(&path.key(key), profile.as_str(), problem));
        }
    }
}

/// Returns whether the text is an integer without a plus sign and leading zeros.
fn is_integer(text: &str) -> bool {
    let plain = text == "0" || text.starts_with(['-', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    plain && text.parse::<i32>().is_ok()
}

fn seccomp(errors: &mut ErrorList, path: &Path, profile: &str) {
    if let Some(file) = profile.strip_prefix("localhost/") {
        validate::descending_path(errors, path, file);
    } else if !matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        errors.push(Error::invalid(path, profile, "must be a valid seccomp profile"));
    }
}
