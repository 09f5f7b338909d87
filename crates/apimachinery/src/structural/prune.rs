//! Pruning: removes fields that a schema does not specify.

use serde_json::Value;

use super::{Additional, Schema};

/// The members that every resource has without specifying them in its schema.
pub(super) const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

struct Pruner {
    path: String,
    unknown: Vec<String>,
}

/// Removes fields that the schema does not specify, except for the root's `apiVersion`, `kind` and `metadata`.
/// Returns their paths, sorted: `spec.foo`, `spec.list[0].bar`.
pub fn prune(object: &mut Value, schema: &Schema) -> Vec<String> {
    let mut pruner = Pruner { path: String::new(), unknown: Vec::new() };
    pruner.object_or_list(object, Some(schema), true);
    pruner.unknown.sort();
    pruner.unknown
}

/// Does the same as [`prune`], for a value below the root, such as a default.
pub fn prune_value(value: &mut Value, schema: &Schema) {
    Pruner { path: String::new(), unknown: Vec::new() }.object_or_list(value, Some(schema), false);
}

impl Pruner {
    fn below(&mut self, key: &str, run: impl FnOnce(&mut Self)) {
        let before = self.path.len();
        if before > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        run(self);
        self.path.truncate(before);
    }

    fn at_index(&mut self, index: usize, run: impl FnOnce(&mut Self)) {
        let before = self.path.len();
        self.path.push_str(&format!("[{index}]"));
        run(self);
        self.path.truncate(before);
    }

    fn record(&mut self, key: &str) {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        self.unknown.push(path);
    }

    fn object_or_list(&mut self, value: &mut Value, schema: Option<&Schema>, embedded: bool) {
        if let Some(schema) = schema.filter(|s| s.preserve_unknown_fields) {
            return self.known_parts(value, schema, embedded);
        }
        match value {
            Value::Object(map) => {
                let Some(schema) = schema else {
                    map.keys().for_each(|k| self.record(k));
                    map.clear();
                    return;
                };
                let embedded = embedded || schema.embedded_resource;
                map.retain(|key, child| {
                    let is_meta = META_FIELDS.contains(&key.as_str());
                    if embedded && is_meta {
                        return true;
                    }
                    match (schema.properties.get(key), &schema.additional) {
                        (Some(property), _) => {
                            self.below(key, |p| p.object_or_list(child, Some(property), false));
                        }
                        (None, Some(additional)) => {
                            let schema = match additional {
                                Additional::Schema(schema) => Some(&**schema),
                                Additional::Allowed(_) => None,
                            };
                            self.below(key, |p| p.object_or_list(child, schema, false));
                        }
                        (None, None) => {
                            if !is_meta || !self.path.is_empty() {
                                self.record(key);
                            }
                            return false;
                        }
                    }
                    true
                });
            }
            Value::Array(items) => {
                let schema = schema.and_then(|s| s.items.as_deref());
                for (i, item) in items.iter_mut().enumerate() {
                    self.at_index(i, |p| p.object_or_list(item, schema, false));
                }
            }
            _ => {}
        }
    }

    /// Prunes below the known fields of an object whose unknown fields are preserved.
    fn known_parts(&mut self, value: &mut Value, schema: &Schema, embedded: bool) {
        match value {
            Value::Object(map) => {
                let embedded = embedded || schema.embedded_resource;
                for (key, child) in map.iter_mut() {
                    if embedded && META_FIELDS.contains(&key.as_str()) {
                        continue;
                    }
                    if let Some(property) = schema.properties.get(key) {
                        self.below(key, |p| p.object_or_list(child, Some(property), false));
                    } else if let Some(additional) = &schema.additional {
                        let schema = match additional {
                            Additional::Schema(schema) => Some(&**schema),
                            Additional::Allowed(_) => None,
                        };
                        self.below(key, |p| p.object_or_list(child, schema, false));
                    }
                }
            }
            Value::Array(items) => {
                let Some(schema) = schema.items.as_deref() else { return };
                for (i, item) in items.iter_mut().enumerate() {
                    self.at_index(i, |p| p.known_parts(item, schema, false));
                }
            }
            _ => {}
        }
    }
}
