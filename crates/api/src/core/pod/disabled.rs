//! Fields of features that are off by default in 1.37: they are dropped wherever a pod spec stands.

use serde_json::Value;

use crate::defaults::{Fields, existing, items};
use crate::gates::GENERIC_WORKLOAD;
use crate::kind::ResourceType;

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// Volumes of files that come with a mode, and maybe an owner.
const WRITTEN: [&str; 4] = ["secret", "configMap", "downwardAPI", "projected"];
/// Sources of such files.
const PROJECTED: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];

/// Where objects of a resource have their pod spec.
fn pod_spec_of(resource: ResourceType) -> Option<&'static str> {
    Some(match (resource.group, resource.plural) {
        ("", "pods") => "/spec",
        ("", "podtemplates") => "/template/spec",
        ("", "replicationcontrollers")
        | ("apps", "daemonsets" | "deployments" | "replicasets" | "statefulsets")
        | ("batch", "jobs") => "/spec/template/spec",
        ("batch", "cronjobs") => "/spec/jobTemplate/spec/template/spec",
        _ => return None,
    })
}

/// Drops what the gates of this process forbid, unless the object has it already: it was made while the gate was on.
pub fn drop_gated(resource: ResourceType, object: &mut Value, old: Option<&Value>) {
    if GENERIC_WORKLOAD.is_on() {
        return;
    }
    let Some(at) = pod_spec_of(resource) else { return };
    let in_use =
        old.and_then(|old| old.pointer(at)?.get("schedulingGroup")).is_some_and(|group| !group.is_null());
    if let (false, Some(spec)) = (in_use, object.pointer_mut(at).and_then(Value::as_object_mut)) {
        spec.remove("schedulingGroup");
    }
}

/// Drops what no gate lets in.
pub fn drop_fields(spec: &mut Fields) {
    spec.remove("evictionResponders");
    for volume in items(spec, "volumes") {
        self::volume(volume);
    }
    for list in CONTAINERS {
        for container in items(spec, list) {
            self::container(container);
        }
    }
}

/// Who owns the files of a volume, and the mode of an empty one.
fn volume(volume: &mut Fields) {
    if let Some(empty) = existing(volume, "emptyDir") {
        empty.remove("mode");
    }
    for source in WRITTEN {
        let Some(source) = existing(volume, source) else { continue };
        source.remove("defaultUser");
        items(source, "items").for_each(|file| drop(file.remove("user")));
        for projection in items(source, "sources") {
            for source in PROJECTED {
                let Some(source) = existing(projection, source) else { continue };
                source.remove("user");
                items(source, "items").for_each(|file| drop(file.remove("user")));
            }
        }
    }
}

/// Stop signals, other protocols of probes, options of mounts.
fn container(container: &mut Fields) {
    items(container, "volumeMounts").for_each(|mount| drop(mount.remove("bindMountOptions")));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = existing(container, probe) else { continue };
        if let Some(get) = existing(probe, "httpGet") {
            get.remove("protocol");
        }
        if let Some(call) = existing(probe, "grpc") {
            call.remove("mode");
        }
    }
    if let Some(lifecycle) = existing(container, "lifecycle") {
        lifecycle.remove("stopSignal");
        for hook in ["postStart", "preStop"] {
            if let Some(get) = existing(lifecycle, hook).and_then(|hook| existing(hook, "httpGet")) {
                get.remove("protocol");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object with this at `at`.
    fn object(at: &str, spec: Value) -> Value {
        at.rsplit('/').filter(|part| !part.is_empty()).fold(spec, |inner, part| json!({part: inner}))
    }

    #[test]
    fn groups_of_pods_stay_where_they_are_in_use() {
        let with = json!({"schedulingGroup": {"podGroupName": "g"}});
        let other = json!({"schedulingGroup": {"podGroupName": "h"}});
        let without = json!({});
        for (group, plural, at) in [
            ("", "pods", "/spec"),
            ("", "podtemplates", "/template/spec"),
            ("", "replicationcontrollers", "/spec/template/spec"),
            ("apps", "deployments", "/spec/template/spec"),
            ("batch", "jobs", "/spec/template/spec"),
            ("batch", "cronjobs", "/spec/jobTemplate/spec/template/spec"),
        ] {
            let resource = crate::resources::find(group, plural).unwrap().types;
            for (new, old, kept) in [
                (&with, None, false),
                (&with, Some(&without), false),
                (&with, Some(&with), true),
                // Whether it may change is for validation to say.
                (&other, Some(&with), true),
                (&without, Some(&with), false),
            ] {
                let mut object = object(at, new.clone());
                let old = old.map(|old| self::object(at, old.clone()));
                drop_gated(resource, &mut object, old.as_ref());
                let has = object.pointer(at).unwrap().get("schedulingGroup").is_some();
                assert_eq!(has, kept, "{plural}: {new} after {old:?}");
            }
        }
    }
}
