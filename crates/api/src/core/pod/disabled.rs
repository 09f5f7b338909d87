//! The location of pod specs, and the field that is removed from them while its gate is off in this process.

use serde_json::Value;

use crate::gates::GENERIC_WORKLOAD;
use crate::kind::ResourceType;

/// Returns the JSON pointer of the pod spec in objects of a resource.
pub fn pod_spec_of(resource: ResourceType) -> Option<&'static str> {
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

/// Removes fields whose gate is off, unless the old object has them: it was written while the gate was on.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns an object with this value at `at`.
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
                // Validation decides whether it may change.
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
