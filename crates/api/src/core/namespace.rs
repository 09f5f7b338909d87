//! Namespace: a scope for names.

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource, Subresource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

const FINALIZE: Subresource = Subresource { name: "finalize", body: None, verbs: &["update"] };

/// The finalizer that keeps a namespace until its content is deleted.
pub const FINALIZER: &str = "kubernetes";
/// The label with the namespace's name, for selectors.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub const RESOURCE: Resource = Resource {
    short_names: &["ns"],
    verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    subresources: &[FINALIZE, resource::STATUS],
    selectable: &["status.phase"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Namespace::RESOURCE, "NamespaceList", "namespace", &Rules)
};

const COLUMNS: &[Column] = &[NAME, Column::new("Status", "string", "The phase of the namespace."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Namespace>().unwrap_or_default();
    let phase = o.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
    vec![
        Value::from(object.name()),
        Value::from(phase),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let metadata = prepare::metadata(object);
        let name = metadata.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
        if !name.is_empty() {
            let labels = metadata.entry("labels").or_insert(Value::Null);
            prepare::object(labels).insert(NAME_LABEL.to_owned(), Value::from(name));
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        // Runs again, because a generated name does not exist yet when the object is defaulted.
        self.default(object);
        let map = prepare::object(object);
        map.insert("status".to_owned(), json!({"phase": "Active"}));
        let spec = prepare::object(map.entry("spec").or_insert(Value::Null));
        match spec.entry("finalizers").or_insert(Value::Null) {
            Value::Array(list) if list.iter().any(|f| f == FINALIZER) => {}
            Value::Array(list) => list.push(Value::from(FINALIZER)),
            other => *other = json!([FINALIZER]),
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        match subresource {
            Some("finalize") => prepare::keep(new, old, "status"),
            Some("status") => prepare::keep(new, old, "spec"),
            _ => {
                prepare::keep_in(new, old, &["spec", "finalizers"]);
                prepare::keep(new, old, "status");
            }
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Namespace>().map(|o| validate_finalizers(&o, false)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        let Ok(new) = new.typed::<api::Namespace>() else { return ErrorList::new() };
        match subresource {
            Some("status") => validate_phase(&new),
            Some("finalize") => validate_finalizers(&new, true),
            _ => validate_finalizers(&new, false),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::label(name, prefix)
    }
}

fn validate_finalizers(namespace: &api::Namespace, indexed: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref());
    for (i, name) in finalizers.into_iter().flatten().enumerate() {
        let list = Path::new("spec").child("finalizers");
        let path = if indexed { list.index(i) } else { list };
        validate::label_key(&mut errors, &path, name);
        let standard = matches!(name.as_str(), FINALIZER | "orphan" | "foregroundDeletion");
        if !name.contains('/') && !standard {
            let problem = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(Error::invalid(&path, name.as_str(), problem));
        }
    }
    errors
}

fn validate_phase(namespace: &api::Namespace) -> ErrorList {
    let mut errors = ErrorList::new();
    let phase = namespace.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
    let (expected, problem) = match namespace.metadata.deletion_timestamp {
        None => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
        Some(_) => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    };
    if phase != expected {
        errors.push(Error::invalid(&Path::new("status").child("Phase"), phase, problem));
    }
    errors
}
