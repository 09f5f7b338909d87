//! Custom resources: one served version of a CustomResourceDefinition.

mod columns;
mod rules;
mod scale;
mod strategy;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use knarr_apimachinery::structural::Schema;
use serde_json::Value;

use crate::apiextensions::definition::{Definition, Names, Scale, Version, compare_versions};
use crate::intern;
use crate::kind::ResourceType;
use crate::naming;
use crate::resource::{Resource, SCALE, STATUS, STORED, Subresource};
use crate::strategy::Strategy;
use crate::table;

pub use columns::Columns;
pub use rules::{Rules, declarations};

/// One served version of a custom resource.
pub struct CustomResource {
    /// Names, verbs and subresources, with interned strings. Its strategy and columns are placeholders.
    pub resource: Resource,
    pub columns: Columns,
    pub schema: Schema,
    rules: Option<Rules>,
    /// Whether unknown fields are preserved everywhere, as in old definitions without a schema.
    pub preserve_unknown_fields: bool,
    pub status: bool,
    pub scale: Option<Scale>,
    /// The deprecation warning for clients of this version.
    pub deprecation: Option<String>,
    /// The definition of this version.
    pub definition: Arc<Definition>,
}

/// The limit of interned names is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many names of resources are in use")]
pub struct TooManyNames;

const NO_SUBRESOURCES: &[Subresource] = &[];
const ONLY_STATUS: &[Subresource] = &[STATUS];
const ONLY_SCALE: &[Subresource] = &[SCALE];
const SCALE_AND_STATUS: &[Subresource] = &[SCALE, STATUS];

/// Fills the static strategy field of [`Resource`]; the real strategy is the [`CustomResource`] itself.
struct Placeholder;

impl Strategy for Placeholder {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

impl CustomResource {
    pub fn new(definition: &Arc<Definition>, version: &Version) -> Result<Self, TooManyNames> {
        let name = |text: &str| intern::name(text).ok_or(TooManyNames);
        let list = |all: &[String]| intern::names(all.iter().map(String::as_str)).ok_or(TooManyNames);
        let names: &Names = &definition.accepted_names;
        let types = ResourceType {
            group: name(&definition.group)?,
            version: name(&version.name)?,
            kind: name(&names.kind)?,
            plural: name(&names.plural)?,
            namespaced: definition.namespaced,
        };
        let selectable: Vec<String> =
            version.selectable_fields.iter().map(|p| p.trim_start_matches('.').to_owned()).collect();
        let subresources = match (version.scale.is_some(), version.status) {
            (false, false) => NO_SUBRESOURCES,
            (false, true) => ONLY_STATUS,
            (true, false) => ONLY_SCALE,
            (true, true) => SCALE_AND_STATUS,
        };
        let resource = Resource {
            types,
            list_kind: name(&names.list_kind)?,
            singular: name(&names.singular)?,
            short_names: list(&names.short_names)?,
            categories: list(&names.categories)?,
            verbs: STORED,
            subresources,
            selectable: list(&selectable)?,
            strategy: &Placeholder,
            columns: table::PLAIN_COLUMNS,
            cells: table::plain_cells,
            stored_as: None,
            deprecated: None,
        };
        let rules = match (&version.schema, &version.schema_json) {
            (Some(schema), Some(json)) => Rules::compile(schema, json, true),
            _ => None,
        };
        Ok(Self {
            resource,
            rules,
            columns: Columns::new(&version.columns),
            schema: version.schema.clone().unwrap_or_default(),
            preserve_unknown_fields: definition.preserve_unknown_fields || version.schema.is_none(),
            status: version.status,
            scale: version.scale.clone(),
            deprecation: version.deprecated.then(|| deprecation(definition, version)),
            definition: Arc::clone(definition),
        })
    }

    /// Returns the schema of the status, if there is one.
    fn status_schema(&self) -> Option<&Schema> {
        self.schema.properties.get("status")
    }

    /// Returns the Scale of the object.
    pub fn scale_of(&self, object: &Value) -> Result<Value, String> {
        match &self.scale {
            Some(scale) => scale::of(object, scale),
            None => Err("the server could not find the requested resource".to_owned()),
        }
    }

    /// Writes the replicas of a Scale into the object.
    pub fn apply_scale(&self, object: &mut Value, wanted: &Value) {
        if let Some(scale) = &self.scale {
            scale::apply(object, wanted, scale);
        }
    }
}

fn deprecation(definition: &Definition, version: &Version) -> String {
    if let Some(warning) = &version.deprecation_warning {
        return warning.clone();
    }
    let (group, kind) = (&definition.group, &definition.names.kind);
    let mut better: Vec<&str> = definition
        .versions
        .iter()
        .filter(|v| v.served && !v.deprecated && compare_versions(&v.name, &version.name).is_lt())
        .map(|v| v.name.as_str())
        .collect();
    better.sort_by(|a, b| compare_versions(a, b));
    let text = format!("{group}/{} {kind} is deprecated", version.name);
    match better.first() {
        Some(name) => format!("{text}; use {group}/{name} {kind}"),
        None => text,
    }
}
