//! Converts objects between the versions of a custom resource: unchanged, with another apiVersion, or by a webhook.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use knarr_api::apiextensions::definition::Definition;
use knarr_api::object::Object;
use knarr_api::prepare;
use knarr_apimachinery::gvk::api_version;
use knarr_apimachinery::status::StatusError;
use knarr_apimachinery::structural::{self, Coerced, Schema};
use serde_json::Value;

use crate::cache::Normalize;
use crate::served::Served;

/// Converts objects by the webhook of a definition.
#[async_trait]
pub trait Converter: Send + Sync {
    /// Converts the objects to the apiVersion `wanted`. The result has the same order.
    ///
    /// # Errors
    /// Why the webhook was not called, or what is wrong with its response.
    async fn convert(
        &self,
        definition: &Definition,
        objects: Vec<Value>,
        wanted: &str,
    ) -> Result<Vec<Value>, StatusError>;
}

/// Converts objects to one version, and back to the stored version.
pub struct Conversion {
    /// Weak: the converter owns the table of resources that this is a part of.
    converter: Weak<dyn Converter>,
    definition: Arc<Definition>,
    /// The apiVersion, such as `example.com/v1`.
    api_version: String,
    /// The prefix of the JSON of objects that already have this version.
    prefix: String,
}

/// Returns the function that normalizes stored JSON: it prunes and defaults by the schema of the stored object's
/// version.
pub fn normalize(definition: &Arc<Definition>) -> Normalize {
    let definition = Arc::clone(definition);
    Arc::new(move |stored| {
        let mut value: Value = serde_json::from_slice(stored)?;
        let nothing = Schema::default();
        let version = version_of(&value);
        let schema = definition.version(&version).and_then(|v| v.schema.as_ref());
        let how = Coerced {
            drop_invalid_metadata: true,
            preserve_unknown_fields: definition.preserve_unknown_fields || schema.is_none(),
        };
        let schema = schema.unwrap_or(&nothing);
        // Metadata that is not an object cannot be normalized.
        let _ = structural::coerce(&mut value, schema, how);
        structural::apply_defaults(&mut value, schema);
        if prepare::generation(&value) == 0 && value["metadata"].is_object() {
            prepare::set_generation(&mut value, 1);
        }
        serde_json::to_vec(&value)
    })
}

fn version_of(value: &Value) -> String {
    let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or("");
    api_version.rsplit('/').next().unwrap_or("").to_owned()
}

impl Conversion {
    pub fn new(converter: Weak<dyn Converter>, definition: &Arc<Definition>, version: &str) -> Self {
        let api_version = api_version(&definition.group, version);
        Self {
            converter,
            definition: Arc::clone(definition),
            prefix: format!("{{\"apiVersion\":{},", Value::from(api_version.as_str())),
            api_version,
        }
    }

    /// Returns whether all objects already have this version.
    pub fn is_trivial(&self) -> bool {
        self.definition.versions.len() == 1
    }

    fn fits(&self, held: &Object) -> bool {
        held.text().starts_with(self.prefix.as_bytes())
    }

    /// Returns a held object in this version.
    pub async fn show(&self, served: &Served, held: &Arc<Object>) -> Result<Arc<Object>, StatusError> {
        if self.fits(held) {
            return Ok(Arc::clone(held));
        }
        let mut shown = self.show_all(served, vec![Arc::clone(held)]).await?;
        shown.pop().ok_or_else(|| StatusError::internal("conversion answered nothing"))
    }

    /// Returns held objects in this version. Objects of other versions are converted together.
    pub async fn show_all(
        &self,
        served: &Served,
        mut held: Vec<Arc<Object>>,
    ) -> Result<Vec<Arc<Object>>, StatusError> {
        let places: Vec<usize> = (0..held.len()).filter(|i| !self.fits(&held[*i])).collect();
        if places.is_empty() {
            return Ok(held);
        }
        let read = |i: &usize| serde_json::from_slice(&held[*i].json()).map_err(StatusError::internal);
        let originals: Vec<Value> = places.iter().map(read).collect::<Result<_, _>>()?;
        let converted = self.convert(originals, &self.api_version).await?;
        for (place, value) in places.into_iter().zip(converted) {
            let json = serde_json::to_vec(&value).map_err(StatusError::internal)?;
            let object = Object::new(json.into(), served.resource.selectable);
            held[place] = Arc::new(object.map_err(StatusError::internal)?);
        }
        Ok(held)
    }

    /// Serializes a value of this version in the stored version.
    pub async fn to_stored(&self, served: &Served, value: &Value) -> Result<Bytes, StatusError> {
        let wanted = served.stored.types.api_version();
        let json = if wanted == self.api_version {
            serde_json::to_vec(value)
        } else {
            let converted = self.convert(vec![value.clone()], &wanted).await?;
            serde_json::to_vec(&converted.into_iter().next().unwrap_or_default())
        };
        json.map(|json| Bytes::from(json.into_boxed_slice())).map_err(StatusError::internal)
    }

    async fn convert(&self, mut objects: Vec<Value>, wanted: &str) -> Result<Vec<Value>, StatusError> {
        if self.definition.converts_by_webhook() {
            let converter = self.converter.upgrade();
            let converter =
                converter.ok_or_else(|| StatusError::unavailable("the server is shutting down"))?;
            objects = converter.convert(&self.definition, objects, wanted).await?;
        } else {
            for object in &mut objects {
                prepare::object(object).insert("apiVersion".into(), wanted.into());
            }
        }
        let version = self.definition.version(wanted.rsplit('/').next().unwrap_or(""));
        if let Some(schema) = version.and_then(|v| v.schema.as_ref()) {
            let how = Coerced {
                preserve_unknown_fields: self.definition.preserve_unknown_fields,
                ..Coerced::default()
            };
            for object in &mut objects {
                structural::coerce(object, schema, how).map_err(StatusError::internal)?;
            }
        }
        Ok(objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_held_is_pruned_and_defaulted() {
        let definition = Arc::new(Definition::parse(&json!({"spec": {"group": "example.com", "versions": [
            {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}}}}},
        ]}})));
        let normalize = normalize(&definition);
        let stored = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a", "odd": 1},
            "spec": {"gone": 1}, "more": {}});
        let held: Value = serde_json::from_slice(&normalize(stored.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!(
            held,
            json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a", "generation": 1},
                "spec": {"a": "x"}})
        );
    }
}
