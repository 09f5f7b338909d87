//! AppArmor profiles in a pod's spec: the profile of each container, and whether this node can apply it.
//!
//! Source: `k8s.io/kubernetes/pkg/security/apparmor`, KEP-24.

use k8s_openapi::api::core::v1::{AppArmorProfile as ApiProfile, Container, Pod};

use crate::host_security::HostSecurity;
use crate::pod;
use crate::runtime::{AppArmorProfile, RuntimeFeatures};

/// The prefix of the old form, an annotation for each container; the container's name follows.
const ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const UNCONFINED: &str = "unconfined";

/// Returns the profile of a container; `None` if neither it nor its pod sets one.
pub fn profile(pod: &Pod, container: &Container) -> Result<Option<AppArmorProfile>, String> {
    if let Some(own) = container.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref()) {
        return from_field(own).map(Some);
    }
    let annotation = format!("{ANNOTATION_PREFIX}{}", container.name);
    let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(&annotation));
    if let Some(profile) = annotation.and_then(|text| from_annotation(text)) {
        return Ok(Some(profile));
    }
    let of_pod = pod::spec(pod).security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    of_pod.map(from_field).transpose()
}

fn from_field(profile: &ApiProfile) -> Result<AppArmorProfile, String> {
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(AppArmorProfile::RuntimeDefault),
        "Unconfined" => Ok(AppArmorProfile::Unconfined),
        "Localhost" => match profile.localhost_profile.as_deref() {
            Some(name) => Ok(AppArmorProfile::Localhost(name.to_owned())),
            None => Err("missing localhost apparmor profile name".to_owned()),
        },
        other => Err(format!("unknown apparmor profile type: {other:?}")),
    }
}

fn from_annotation(text: &str) -> Option<AppArmorProfile> {
    match text {
        "runtime/default" => Some(AppArmorProfile::RuntimeDefault),
        UNCONFINED => Some(AppArmorProfile::Unconfined),
        other => other.strip_prefix("localhost/").map(|name| AppArmorProfile::Localhost(name.to_owned())),
    }
}

/// Returns whether any profile but `Unconfined` is set.
fn is_required(pod: &Pod) -> bool {
    let of_pod = pod::spec(pod).security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let of_containers = pod::security_contexts(pod).filter_map(|s| s.app_armor_profile.as_ref());
    let annotations = pod.metadata.annotations.iter().flatten();
    of_pod.into_iter().chain(of_containers).any(|profile| profile.type_ != "Unconfined")
        || annotations.into_iter().any(|(key, text)| key.starts_with(ANNOTATION_PREFIX) && text != UNCONFINED)
}

/// Returns why the pod's profiles cannot be enforced on this node.
pub fn unenforceable(pod: &Pod, host: HostSecurity, features: &RuntimeFeatures) -> Option<String> {
    if !is_required(pod) {
        return None;
    }
    if !host.app_armor {
        return Some("AppArmor is not enabled on the host".to_owned());
    }
    if !features.app_armor {
        return Some("the container runtime does not support AppArmor profiles".to_owned());
    }
    pod::containers(pod).find_map(|container| match profile(pod, &container) {
        Ok(Some(AppArmorProfile::Localhost(name))) => {
            name.trim().is_empty().then(|| format!("invalid empty AppArmor profile name: {name:?}"))
        }
        Ok(_) => None,
        Err(error) => Some(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::kind::Kind;
    use serde_json::{Value, json};

    const HOST: HostSecurity = HostSecurity { app_armor: true, se_linux: false };

    fn pod(of_pod: Value, own: Value, annotation: Option<&str>) -> Pod {
        let context = |profile: Value| json!({"appArmorProfile": profile});
        let annotations = annotation.map(|text| json!({format!("{ANNOTATION_PREFIX}web"): text}));
        let pod = json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {
                "securityContext": context(of_pod),
                "containers": [{"name": "web", "securityContext": context(own)}],
            },
        });
        Pod::decode(pod.to_string().as_bytes()).unwrap()
    }

    fn runtime(app_armor: bool) -> RuntimeFeatures {
        RuntimeFeatures { app_armor, ..RuntimeFeatures::default() }
    }

    #[test]
    fn the_container_goes_before_its_annotation_and_that_before_the_pod() {
        let (default, none) = (json!({"type": "RuntimeDefault"}), Value::Null);
        let local = json!({"type": "Localhost", "localhostProfile": "k8s"});
        let table = [
            (none.clone(), none.clone(), None, None),
            (default.clone(), none.clone(), None, Some(AppArmorProfile::RuntimeDefault)),
            (default.clone(), none.clone(), Some("unconfined"), Some(AppArmorProfile::Unconfined)),
            (default.clone(), none.clone(), Some("nonsense"), Some(AppArmorProfile::RuntimeDefault)),
            (none.clone(), none, Some("localhost/a"), Some(AppArmorProfile::Localhost("a".into()))),
            (default, local, Some("unconfined"), Some(AppArmorProfile::Localhost("k8s".into()))),
        ];
        for (of_pod, own, annotation, expected) in table {
            let pod = pod(of_pod, own, annotation);
            assert_eq!(profile(&pod, &pod.spec.as_ref().unwrap().containers[0]), Ok(expected));
        }
    }

    #[test]
    fn what_cannot_be_enforced() {
        let (default, unconfined) = (json!({"type": "RuntimeDefault"}), json!({"type": "Unconfined"}));
        let none = Value::Null;
        for required in [
            pod(default.clone(), none.clone(), None),
            pod(none.clone(), default.clone(), None),
            pod(unconfined.clone(), default.clone(), None),
            pod(none.clone(), none.clone(), Some("runtime/default")),
        ] {
            let of = |host, can| unenforceable(&required, host, &runtime(can));
            let absent = Some("AppArmor is not enabled on the host".to_owned());
            assert_eq!(of(HostSecurity::default(), true), absent);
            let cannot = Some("the container runtime does not support AppArmor profiles".to_owned());
            assert_eq!(of(HOST, false), cannot);
            assert_eq!(of(HOST, true), None);
        }
        for free in [
            pod(none.clone(), none.clone(), None),
            pod(unconfined.clone(), unconfined, None),
            pod(none.clone(), none.clone(), Some("unconfined")),
        ] {
            assert_eq!(unenforceable(&free, HostSecurity::default(), &runtime(false)), None);
        }
        let empty = pod(none.clone(), none, Some("localhost/"));
        assert_eq!(
            unenforceable(&empty, HOST, &runtime(true)),
            Some("invalid empty AppArmor profile name: \"\"".to_owned())
        );
    }
}
