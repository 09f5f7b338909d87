//! Defaults of a schema for missing fields, and removal of nulls where they are not permitted.

use serde_json::Value;

use super::Schema;

/// Sets missing fields, and nulls that are not permitted, to the defaults of the schema.
pub fn apply_defaults(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                match map.get_mut(name) {
                    None => {
                        map.insert(name.clone(), default.clone());
                    }
                    Some(child) if child.is_null() && !property.nullable => *child = default.clone(),
                    Some(_) => {}
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(property) = schema.properties.get(name) {
                    apply_defaults(child, property);
                } else if let Some(additional) = schema.additional_schema() {
                    default_element(child, additional);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else { return };
            items.iter_mut().for_each(|item| default_element(item, schema));
        }
        _ => {}
    }
}

fn default_element(value: &mut Value, schema: &Schema) {
    if value.is_null() && !schema.nullable {
        *value = schema.default.clone().unwrap_or_default();
    }
    apply_defaults(value, schema);
}

/// Removes nulls that are not permitted and that no default replaces.
pub fn prune_nulls(value: &mut Value, schema: Option<&Schema>) {
    match value {
        Value::Object(map) => map.retain(|name, child| {
            let schema = schema.and_then(|s| s.member(name));
            if child.is_null() && schema.is_some_and(|s| !s.nullable && s.default.is_none()) {
                return false;
            }
            prune_nulls(child, schema);
            true
        }),
        Value::Array(items) => {
            let schema = schema.and_then(|s| s.items.as_deref());
            items.iter_mut().for_each(|item| prune_nulls(item, schema));
        }
        _ => {}
    }
}
