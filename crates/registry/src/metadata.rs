//! Object metadata: the fields that the server sets, the fields that must not change, and validation.

use knarr_api::prepare;
use knarr_api::strategy::Strategy;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::served::Served;

/// The maximum size of all annotations of an object, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Fields that only the server writes.
const SYSTEM_FIELDS: [&str; 4] =
    ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"];

const DELETION_FIELDS: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];

pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.pointer("/metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or("")
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub fn has_managed_fields(object: &Value) -> bool {
    object.pointer("/metadata/managedFields").is_some_and(|v| !v.is_null())
}

pub fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|v| !v.is_null())
}

pub fn rfc3339(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets the namespace of a body to that of the URL, or fails if the body has another one.
pub fn match_namespace(served: &Served, object: &mut Value, namespace: &str) -> Result<(), StatusError> {
    let own = text(object, "namespace").to_owned();
    if !served.resource.types.namespaced {
        if !own.is_empty() {
            prepare::metadata(object).remove("namespace");
        }
        return Ok(());
    }
    if own.is_empty() {
        prepare::metadata(object).insert("namespace".into(), namespace.into());
        return Ok(());
    }
    if own == namespace { Ok(()) } else { Err(namespace_mismatch()) }
}

fn namespace_mismatch() -> StatusError {
    StatusError::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

/// Sets the fields of a new object that its creator cannot choose.
pub fn init(object: &mut Value, now: jiff::Timestamp, uid: &str) {
    let metadata = prepare::metadata(object);
    for field in SYSTEM_FIELDS {
        metadata.remove(field);
    }
    metadata.remove("resourceVersion");
    metadata.remove("generation");
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), rfc3339(now).into());
}

/// Carries over the fields that an update cannot change. The deletion fields are only carried over once the object is
/// being deleted: before that, [`validate_update`] refuses a request that sets them.
pub fn carry_over(new: &mut Value, old: &Value) {
    for field in SYSTEM_FIELDS {
        if is_deleting(old) || !DELETION_FIELDS.contains(&field) {
            prepare::keep_metadata(new, old, field);
        }
    }
    for field in ["uid", "generation"] {
        prepare::keep_metadata(new, old, field);
    }
}

/// Checks the metadata of a new object.
pub fn validate(served: &Served, object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    validate_names(served, object, &path, &mut errors);
    validate_common(object, &path, wants_standard_finalizers(served), &mut errors);
    errors
}

/// Checks the names for what no resource allows, because a name is part of a path.
pub fn validate_path_segments(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    for field in ["generateName", "name"] {
        let name = text(object, field);
        for problem in names::path_segment_name(name).into_iter().filter(|_| !name.is_empty()) {
            errors.push(Error::invalid(&path.child(field), name, problem));
        }
    }
    errors
}

fn validate_names(served: &Served, object: &Value, path: &Path, errors: &mut ErrorList) {
    let strategy: &dyn Strategy = served.resource.strategy();
    let prefix = text(object, "generateName");
    if !prefix.is_empty() {
        for problem in strategy.validate_name(prefix, true) {
            errors.push(Error::invalid(&path.child("generateName"), prefix, problem));
        }
    }
    let name = text(object, "name");
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), "name or generateName is required"));
    } else {
        for problem in strategy.validate_name(name, false) {
            errors.push(Error::invalid(&path.child("name"), name, problem));
        }
    }
    let namespace = text(object, "namespace");
    if served.resource.types.namespaced {
        for problem in names::dns1123_label(namespace) {
            errors.push(Error::invalid(&path.child("namespace"), namespace, problem));
        }
    }
}

fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    let map = object.pointer("/metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
    map.into_iter().flatten().map(|(k, v)| (k, v.as_str().unwrap_or("")))
}

fn validate_common(object: &Value, path: &Path, standard: bool, errors: &mut ErrorList) {
    for (key, value) in entries(object, "labels") {
        let labels = path.child("labels");
        for problem in names::label_key(key) {
            errors.push(Error::invalid(&labels, key.as_str(), problem));
        }
        for problem in names::label_value(value) {
            errors.push(Error::invalid(&labels, value, problem));
        }
    }
    let (annotations, mut size) = (path.child("annotations"), 0);
    for (key, value) in entries(object, "annotations") {
        // The prefix of a key may contain capitals.
        for problem in names::label_key(&key.to_ascii_lowercase()) {
            errors.push(Error::invalid(&annotations, key.as_str(), problem));
        }
        size += key.len() + value.len();
    }
    if size > MAX_ANNOTATIONS {
        errors.push(Error::too_long(&annotations, MAX_ANNOTATIONS));
    }
    validate_owners(object, path, errors);
    validate_finalizers(object, path, standard, errors);
}

/// Returns whether finalizers without a domain must be Kubernetes' own; some groups and kinds do not check that.
pub fn wants_standard_finalizers(served: &Served) -> bool {
    let types = &served.resource.types;
    served.resource.custom().is_none()
        && !matches!(
            (types.group, types.plural),
            (
                "admissionregistration.k8s.io"
                    | "apiextensions.k8s.io"
                    | "apiregistration.k8s.io"
                    | "coordination.k8s.io"
                    | "node.k8s.io"
                    | "policy",
                _
            ) | ("", "events")
        )
}

fn validate_owners(object: &Value, path: &Path, errors: &mut ErrorList) {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut controller: Option<String> = None;
    for (i, owner) in owners.into_iter().flatten().enumerate() {
        let at = path.child("ownerReferences").index(i);
        let field = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or("");
        let version = field("apiVersion");
        if version.is_empty() {
            errors.push(Error::required(&at.child("apiVersion"), "must not be empty"));
        } else if version.matches('/').count() > 1 || version.ends_with('/') {
            let why = "must be <group>/<version> or <version>";
            errors.push(Error::invalid(&at.child("apiVersion"), version, why));
        }
        for name in ["kind", "name", "uid"] {
            if field(name).is_empty() {
                errors.push(Error::required(&at.child(name), "must not be empty"));
            }
        }
        if field("kind") == "Event" && matches!(field("apiVersion"), "v1" | "events.k8s.io/v1") {
            let (group, version) = field("apiVersion").split_once('/').unwrap_or(("", field("apiVersion")));
            let why = format!("{group}/{version}, Kind=Event is disallowed from being an owner");
            errors.push(Error::invalid(&at, owner.clone(), why));
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            if let Some(first) = &controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}/{}",
                    field("kind"),
                    field("name")
                );
                errors.push(Error::invalid(&path.child("ownerReferences"), json!(owners), why));
            } else {
                controller = Some(format!("{}/{}", field("kind"), field("name")));
            }
        }
    }
}

const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

fn validate_finalizers(object: &Value, path: &Path, standard: bool, errors: &mut ErrorList) {
    let all = finalizers(object);
    for (i, finalizer) in all.iter().enumerate() {
        let at = path.child("finalizers").index(i);
        for problem in names::label_key(finalizer) {
            errors.push(Error::invalid(&at, *finalizer, problem));
        }
        if standard && !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(finalizer) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(Error::invalid(&at, *finalizer, why));
        }
    }
    if all.contains(&"orphan") && all.contains(&"foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(Error::invalid(&path.child("finalizers"), json!(all), why));
    }
}

/// Checks the metadata of an update. `standard` is the result of [`wants_standard_finalizers`].
pub fn validate_update(new: &Value, old: &Value, standard: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    for field in ["name", "namespace", "uid"] {
        if text(new, field) != text(old, field) {
            errors.push(Error::invalid(&path.child(field), text(new, field), "field is immutable"));
        }
    }
    for field in DELETION_FIELDS {
        let of = |object: &Value| object.pointer("/metadata").and_then(|m| m.get(field)).cloned();
        let (set, was) = (of(new).unwrap_or_default(), of(old).unwrap_or_default());
        if set != was {
            errors.push(Error::invalid(&path.child(field), set, "field is immutable"));
        }
    }
    if is_deleting(old) {
        let before = finalizers(old);
        let added: Vec<String> =
            finalizers(new).iter().filter(|f| !before.contains(f)).map(|f| format!("\"{f}\"")).collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(Error::forbidden(&path.child("finalizers"), why));
        }
    }
    validate_common(new, &path, standard, &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_may_not_touch_the_servers_own() {
        let old = json!({"metadata": {"name": "a", "uid": "1", "creationTimestamp": "t", "generation": 3}});
        let mut new = json!({"metadata": {"name": "a", "uid": "2", "deletionTimestamp": "x"}});
        carry_over(&mut new, &old);
        assert_eq!(
            validate_update(&new, &old, true).to_string(),
            "metadata.deletionTimestamp: Invalid value: \"x\": field is immutable"
        );
        prepare::metadata(&mut new).remove("deletionTimestamp");
        assert_eq!(new, old);
        let deleting = json!({"metadata": {"name": "a", "deletionTimestamp": "t", "finalizers": ["a/b"]}});
        let more = json!({"metadata": {"name": "a", "deletionTimestamp": "t", "finalizers": ["a/b", "c/d"]}});
        assert_eq!(
            validate_update(&more, &deleting, true).to_string(),
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"c/d\"}"
        );
    }

    #[test]
    fn labels_owners_and_finalizers_are_checked() {
        for (metadata, expected) in [
            (
                json!({"labels": {"a b": "c"}}),
                "metadata.labels: Invalid value: \"a b\": name part must consist",
            ),
            (json!({"labels": {"a": "-"}}), "metadata.labels: Invalid value: \"-\": a valid label must be"),
            (json!({"finalizers": ["x"]}), "metadata.finalizers[0]: Invalid value: \"x\": name is neither"),
            (
                json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}),
                "metadata.ownerReferences[0].uid: Required value: must not be empty",
            ),
            (
                json!({"ownerReferences": [{"apiVersion": "a/b/c", "kind": "Pod", "name": "p", "uid": "u"}]}),
                "metadata.ownerReferences[0].apiVersion: Invalid value: \"a/b/c\": must be <group>/<version> or <version>",
            ),
            (
                json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}]}),
                "metadata.ownerReferences[0]: Invalid value: {\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"e\",\"uid\":\"u\"}: /v1, Kind=Event is",
            ),
            (
                json!({"annotations": {"k": "x".repeat(MAX_ANNOTATIONS)}}),
                "metadata.annotations: Too long: may not be more than 262144 bytes",
            ),
        ] {
            let mut errors = ErrorList::new();
            validate_common(&json!({"metadata": metadata}), &Path::new("metadata"), true, &mut errors);
            assert!(errors.to_string().starts_with(expected), "{errors}");
        }
    }
}
