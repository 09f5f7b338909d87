//! CustomResourceDefinition: resources that are defined at run time.

mod columns;
pub mod structural;
mod validation;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knarr_apimachinery::field::ErrorList;
use knarr_apimachinery::structural::{Schema, is_known_format};
use serde_json::{Value, json};

use super::definition::{CLEANUP_FINALIZER, Condition, Definition, TERMINATING};
use crate::defaults::{Fields, blank, child, items};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{Resource, STATUS};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    subresources: &[STATUS],
    columns: columns::COLUMNS,
    cells: columns::cells,
    ..Resource::stored(
        CustomResourceDefinition::RESOURCE,
        "CustomResourceDefinitionList",
        "customresourcedefinition",
        &Definitions,
    )
};

struct Definitions;

impl Strategy for Definitions {
    fn default(&self, object: &mut Value) {
        let Some(map) = object.as_object_mut() else { return };
        let storage = {
            let spec = child(map, "spec");
            default_spec(spec);
            let mut versions = items(spec, "versions");
            let storage = versions.find(|v| v.get("storage") == Some(&Value::Bool(true)));
            storage.and_then(|v| v.get("name").cloned())
        };
        let status = child(map, "status");
        let none = status.get("storedVersions").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if let (Some(name), true) = (storage, none) {
            status.insert("storedVersions".into(), json!([name]));
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::object(object).insert("status".into(), json!({}));
        prepare::set_generation(object, 1);
        store_version(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if subresource == Some("status") {
            // A status update may also change metadata: this is how the clean-up controller removes its
            // finalizer.
            prepare::keep(new, old, "spec");
            prepare::set_generation(new, prepare::generation(old));
            return;
        }
        prepare::keep(new, old, "status");
        prepare::bump_generation(new, old, &["/spec"]);
        store_version(new);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        validation::validate(&value_of(object))
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (new, old) = (value_of(new), value_of(old));
        if subresource == Some("status") {
            return validation::validate_status(&new);
        }
        validation::validate_update(&new, &old)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let before = old.map(|o| warnings(&value_of(o))).unwrap_or_default();
        let mut all = warnings(&value_of(new));
        all.retain(|w| !before.contains(w));
        all
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn prepare_for_delete(&self, object: &mut Value, now: &str) {
        let finalizers = prepare::metadata(object).entry("finalizers").or_insert(Value::Null);
        match finalizers {
            Value::Array(all) if all.iter().any(|f| f == CLEANUP_FINALIZER) => {}
            Value::Array(all) => all.push(CLEANUP_FINALIZER.into()),
            other => *other = json!([CLEANUP_FINALIZER]),
        }
        let why = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        Condition::new(TERMINATING, "True", "InstanceDeletionPending", why).set(object, now);
    }
}

fn value_of(object: &Object) -> Value {
    serde_json::from_slice(&object.json()).unwrap_or_default()
}

fn default_spec(spec: &mut Fields) {
    let names = child(spec, "names");
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
    blank(names, "singular", kind.to_lowercase());
    if !kind.is_empty() {
        blank(names, "listKind", format!("{kind}List"));
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec.insert("conversion".into(), json!({"strategy": "None"}));
    }
    // The strategy `None` has no webhook; an incomplete one is removed.
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut)
        && conversion.get("strategy").and_then(Value::as_str) == Some("None")
        && conversion.get("webhook").is_some_and(|w| w.get("clientConfig").is_none())
    {
        conversion.remove("webhook");
    }
    let service = spec.get_mut("conversion").and_then(|c| c.pointer_mut("/webhook/clientConfig/service"));
    if let Some(service) = service.and_then(Value::as_object_mut) {
        crate::defaults::unset(service, "port", 443);
    }
}

/// Adds the storage version to `status.storedVersions`.
fn store_version(object: &mut Value) {
    let versions = object.pointer("/spec/versions").and_then(Value::as_array);
    let storage = versions.into_iter().flatten().find(|v| v["storage"] == true);
    let Some(name) = storage.and_then(|v| v.get("name")).cloned() else { return };
    let status = prepare::object(object).entry("status").or_insert(Value::Null);
    let list = prepare::object(status).entry("storedVersions").or_insert(Value::Null);
    match list {
        Value::Array(all) if all.contains(&name) => {}
        Value::Array(all) => all.push(name),
        other => *other = json!([name]),
    }
}

fn warnings(object: &Value) -> Vec<String> {
    let definition = Definition::parse(object);
    let mut found = Vec::new();
    for schema in definition.versions.iter().filter_map(|v| v.schema.as_ref()) {
        collect_warnings(schema, &mut found);
    }
    found
}

fn collect_warnings(schema: &Schema, found: &mut Vec<String>) {
    let mut warn = |text: String| {
        if !found.contains(&text) {
            found.push(text);
        }
    };
    let format = schema.format.as_str();
    let recognized = match schema.ty.as_str() {
        "" | "string" => is_known_format(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !recognized {
        warn(format!("unrecognized format \"{format}\""));
    }
    if schema.list_type.as_deref() == Some("set")
        && let Some(ty) =
            schema.items.as_deref().map(|i| i.ty.as_str()).filter(|t| matches!(*t, "object" | "array"))
    {
        warn(format!(
            "x-kubernetes-list-type: set for items of type \"{ty}\" is not supported by server-side apply or CEL \
             validation rules"
        ));
    }
    schema.children().for_each(|child| collect_warnings(child, found));
}

#[cfg(test)]
mod tests;
