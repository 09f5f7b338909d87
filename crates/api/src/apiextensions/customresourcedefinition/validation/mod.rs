//! Validation of CustomResourceDefinitions, with upstream's error texts.

mod conversion;
mod defaults;
mod names;
mod rules;
mod schema;
mod spec;
mod version;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::apiextensions::approval::{self, Approval};
use crate::apiextensions::definition::{Definition, ESTABLISHED, Names};
use spec::Internal;

/// Which checks apply. An update skips the checks that the old definition already fails.
pub(super) struct Options {
    pub recognized_review_version: bool,
    pub openapi_schema: bool,
    pub valid_property_types: bool,
    pub structural: bool,
    pub pruned_defaults: bool,
    pub atomic_sets: bool,
    pub map_list_keys: bool,
    pub immutable_names: bool,
    pub invalid_ca_bundle: bool,
    /// Versions whose schema did not change.
    pub unchanged: Vec<String>,
}

impl Options {
    fn all() -> Self {
        Self {
            recognized_review_version: true,
            openapi_schema: true,
            valid_property_types: true,
            structural: true,
            pruned_defaults: true,
            atomic_sets: true,
            map_list_keys: true,
            immutable_names: false,
            invalid_ca_bundle: true,
            unchanged: Vec::new(),
        }
    }

    fn for_update(new: &Definition, old: &Definition) -> Self {
        let schemas = || old.versions.iter().filter_map(|v| v.schema.as_ref());
        Self {
            recognized_review_version: conversion::keeps_to_known_versions(&old.conversion),
            openapi_schema: old.versions.iter().all(|v| v.schema.is_some()),
            valid_property_types: !schemas().any(|s| s.any(&schema::has_invalid_type)),
            structural: !schemas().any(schema::is_not_structural),
            pruned_defaults: !schemas().any(defaults::has_unpruned),
            atomic_sets: !schemas().any(|s| s.any(&schema::is_set_of_granular)),
            map_list_keys: !schemas().any(|s| s.any(&schema::has_bad_map_list)),
            immutable_names: old.is_true(ESTABLISHED),
            invalid_ca_bundle: !old.is_true(ESTABLISHED),
            unchanged: new
                .versions
                .iter()
                .filter(|v| old.version(&v.name).is_some_and(|o| o.schema_json == v.schema_json))
                .map(|v| v.name.clone())
                .collect(),
        }
    }
}

/// Validates a new definition.
pub fn validate(object: &Value) -> ErrorList {
    let definition = Definition::parse(object);
    let mut errors = ErrorList::new();
    let wanted = format!("{}.{}", definition.names.plural, definition.group);
    if definition.name != wanted {
        let path = Path::new("metadata").child("name");
        errors.push(Error::invalid(
            &path,
            definition.name.as_str(),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    errors.extend(spec::validate(&Internal::of(object, &definition), &Options::all()));
    errors.extend(status(object, &definition));
    errors.extend(approved(object, None, &definition));
    errors.extend(preserve_unknown_fields(&definition, None));
    errors
}

pub fn validate_update(object: &Value, old: &Value) -> ErrorList {
    let (definition, before) = (Definition::parse(object), Definition::parse(old));
    let options = Options::for_update(&definition, &before);
    let mut errors = spec::validate(&Internal::of(object, &definition), &options);
    let spec = Path::new("spec");
    let text = |v: &Value, pointer: &str| v.pointer(pointer).cloned().unwrap_or_default();
    let mut immutable = |path: Path, pointer: &str| {
        if text(object, pointer) != text(old, pointer) {
            errors.push(Error::invalid(&path, text(object, pointer), "field is immutable"));
        }
    };
    if options.immutable_names {
        immutable(spec.child("scope"), "/spec/scope");
        immutable(spec.child("names").child("kind"), "/spec/names/kind");
    }
    immutable(spec.child("group"), "/spec/group");
    immutable(spec.child("names").child("plural"), "/spec/names/plural");
    errors.extend(status(object, &definition));
    errors.extend(approved(object, Some(old), &definition));
    errors.extend(preserve_unknown_fields(&definition, Some(&before)));
    errors
}

/// Validates an update of the status.
pub fn validate_status(object: &Value) -> ErrorList {
    let accepted = Names::parse(object.pointer("/status/acceptedNames"));
    names::validate(&accepted, &Path::new("status").child("acceptedNames"))
}

fn status(object: &Value, definition: &Definition) -> ErrorList {
    let mut errors = validate_status(object);
    let path = Path::new("status").child("storedVersions");
    let stored = &definition.stored_versions;
    if stored.is_empty() {
        errors.push(Error::invalid(&path, Value::Null, "must have at least one stored version"));
        return errors;
    }
    if let Some(storage) = definition.storage_version()
        && !stored.contains(&storage.name)
    {
        let why = format!("must have the storage version {}", storage.name);
        errors.push(Error::invalid(&path, stored.clone(), why));
    }
    for (i, name) in stored.iter().enumerate().filter(|(_, name)| definition.version(name).is_none()) {
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
             until a storage migration ensures no data remains persisted in {name} and removes {name} from \
             status.storedVersions"
        );
        errors.push(Error::invalid(&path.index(i), name.as_str(), why));
    }
    errors
}

fn approved(object: &Value, old: Option<&Value>, definition: &Definition) -> ErrorList {
    let mut errors = ErrorList::new();
    if !approval::is_protected(&definition.group) {
        return errors;
    }
    let (state, reason) = approval::of(object);
    if old.is_some_and(|old| approval::of(old).0 == state) {
        return errors;
    }
    let path = Path::new("metadata").child("annotations").key(approval::ANNOTATION);
    let annotation = object.pointer("/metadata/annotations").and_then(|a| a.get(approval::ANNOTATION));
    match state {
        Approval::Missing => errors.push(Error::required(&path, reason)),
        Approval::Invalid => {
            errors.push(Error::invalid(&path, annotation.cloned().unwrap_or_default(), reason));
        }
        Approval::Approved | Approval::Bypassed => {}
    }
    errors
}

fn preserve_unknown_fields(definition: &Definition, old: Option<&Definition>) -> ErrorList {
    let mut errors = ErrorList::new();
    if definition.preserve_unknown_fields && !old.is_some_and(|o| o.preserve_unknown_fields) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        let path = Path::new("spec").child("preserveUnknownFields");
        errors.push(Error::invalid(&path, true, why));
    }
    errors
}
