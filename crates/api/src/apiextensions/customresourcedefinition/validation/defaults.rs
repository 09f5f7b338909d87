//! Defaults in a schema: each must be valid against the schema of its own field.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::structural::{self, Schema};
use serde_json::Value;

use crate::custom::Rules;

/// Returns whether a default has fields that its own schema does not know.
pub fn has_unpruned(schema: &Schema) -> bool {
    schema.default.as_ref().is_some_and(|default| is_unpruned(default, schema))
        || schema.properties.values().any(has_unpruned)
        || schema.items.as_deref().is_some_and(has_unpruned)
        || schema.additional_schema().is_some_and(has_unpruned)
}

fn is_unpruned(default: &Value, schema: &Schema) -> bool {
    let mut pruned = default.clone();
    structural::prune_value(&mut pruned, schema);
    pruned != *default
}

/// Validates the defaults of a schema.
pub fn validate(schema: &Schema, json: &Value, demand_pruned: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    walk(schema, json, Place { is_resource: true, inside_meta: false, demand_pruned }, path, &mut errors);
    errors
}

/// The position of a node in the schema.
#[derive(Clone, Copy)]
struct Place {
    is_resource: bool,
    inside_meta: bool,
    demand_pruned: bool,
}

fn walk(schema: &Schema, json: &Value, place: Place, path: &Path, errors: &mut ErrorList) {
    let is_resource = place.is_resource || schema.embedded_resource;
    let inside_meta = place.inside_meta && !schema.embedded_resource;
    if let Some(default) = &schema.default {
        let at = path.child("default");
        if place.demand_pruned && !inside_meta && is_unpruned(default, schema) {
            errors.push(Error::invalid(&at, default.clone(), "must not have unknown fields"));
        }
        errors.extend(wrong_default(default, schema, json, &at));
    }
    let below = Place { is_resource: false, inside_meta, ..place };
    if let (Some(items), Some(json)) = (schema.items.as_deref(), json.get("items")) {
        walk(items, json, below, &path.child("items"), errors);
    }
    for (name, property) in &schema.properties {
        let meta = is_resource && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        let json = json.get("properties").and_then(|p| p.get(name)).unwrap_or(&Value::Null);
        let inside = Place { inside_meta: inside_meta || meta, ..below };
        walk(property, json, inside, &path.child("properties").key(name), errors);
    }
}

/// Validates a default against its schema; each check runs only if the ones before find no errors.
fn wrong_default(default: &Value, schema: &Schema, json: &Value, path: &Path) -> ErrorList {
    let embedded = structural::validate_embedded(default, schema, path);
    if !embedded.is_empty() {
        return embedded;
    }
    let errors = structural::validate(default, schema, path);
    if !errors.is_empty() {
        return errors;
    }
    let Some(rules) = Rules::compile(schema, json, false) else { return errors };
    // Checks transition rules once with the default as old value, then without an old value.
    let stays = rules.check(default, Some(default), schema, path);
    if stays.is_empty() { rules.check(default, None, schema, path) } else { stays }
}
