//! Structural schemas: every field has one type, which is specified outside of `anyOf`, `oneOf`, `allOf` and
//! `not`.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::structural::{Additional, Schema};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns why a schema cannot be converted to a structural one at all; `None` if it can.
pub fn unreadable(schema: &Schema) -> Option<String> {
    if let Some(field) = schema.unsupported.first() {
        let field = field.trim_start_matches("$schema");
        let name = if field.is_empty() { "schema" } else { field };
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if schema.items_is_list {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    if schema.preserve_is_false {
        let why = "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined";
        return Some(why.to_owned());
    }
    schema.children().find_map(unreadable)
}

/// Returns the violations of the rules for structural schemas, sorted.
pub fn validate(schema: &Schema, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    invariants(schema, Level::Root, path, &mut errors);
    complete(schema, Some(schema), path, path, &mut errors);
    errors.0.sort_by_cached_key(ToString::to_string);
    errors
}

fn invariants(schema: &Schema, level: Level, path: &Path, errors: &mut ErrorList) {
    if schema.ty == "array" && schema.items.is_none() {
        errors.push(Error::required(&path.child("items"), "must be specified"));
    }
    if let Some(items) = schema.items.as_deref() {
        invariants(items, Level::Item, &path.child("items"), errors);
    }
    for (name, property) in &schema.properties {
        invariants(property, Level::Field, &path.child("properties").key(name), errors);
    }
    let at_additional = path.child("additionalProperties");
    if schema.additional.is_some() && level == Level::Root {
        errors.push(Error::forbidden(&at_additional, "must not be used at the root"));
    }
    if let Some(Additional::Schema(additional)) = &schema.additional {
        invariants(additional, Level::Field, &at_additional, errors);
    }
    extensions(schema, path, errors);
    value_validation(schema, is_int_or_string(schema), first_all_of(schema), level, path, errors);
    types(schema, level, path, errors);
    metadata(schema, level, path, errors);
}

fn extensions(schema: &Schema, path: &Path, errors: &mut ErrorList) {
    let why = "must be false if x-kubernetes-int-or-string is true";
    if schema.int_or_string && schema.preserve_unknown_fields {
        errors.push(Error::invalid(&path.child("x-kubernetes-preserve-unknown-fields"), true, why));
    }
    if schema.int_or_string && schema.embedded_resource {
        errors.push(Error::invalid(&path.child("x-kubernetes-embedded-resource"), true, why));
    }
}

fn types(schema: &Schema, level: Level, path: &Path, errors: &mut ErrorList) {
    let (ty, at) = (schema.ty.as_str(), path.child("type"));
    if schema.embedded_resource && ty != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if ty.is_empty() { Error::required(&at, why) } else { Error::invalid(&at, ty, why) });
    } else if ty.is_empty() && !schema.int_or_string && !schema.preserve_unknown_fields {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(Error::required(&at, why));
    }
    if schema.embedded_resource && schema.additional.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(Error::forbidden(&path.child("additionalProperties"), why));
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.push(Error::invalid(&at, ty, "must be object at the root"));
    }
}

fn metadata(schema: &Schema, level: Level, path: &Path, errors: &mut ErrorList) {
    let is_resource = level == Level::Root || schema.embedded_resource;
    for name in ["kind", "apiVersion"] {
        if let Some(property) = schema.properties.get(name)
            && is_resource
            && property.ty != "string"
        {
            let at = path.child("properties").key(name).child("type");
            errors.push(Error::invalid(&at, property.ty.as_str(), "must be string"));
        }
    }
    if let Some(metadata) = schema.properties.get("metadata") {
        let at = path.child("properties").key("metadata");
        if is_resource && metadata.ty != "object" {
            errors.push(Error::invalid(&at.child("type"), metadata.ty.as_str(), "must be object"));
        }
        if level == Level::Root && !restricts_only_names(metadata) {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(Error::forbidden(&at, why));
        }
    }
    if schema.embedded_resource && !schema.preserve_unknown_fields && schema.properties.is_empty() {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(Error::required(&path.child("properties"), why));
    }
}

fn restricts_only_names(metadata: &Schema) -> bool {
    let names = metadata.properties.keys().all(|n| n == "name" || n == "generateName");
    let nothing = Schema::default();
    let m = metadata;
    names
        && m.prose.is_empty()
        && !m.nullable
        && m.additional.is_none()
        && m.items.is_none()
        && !m.preserve_unknown_fields
        && !m.embedded_resource
        && !m.int_or_string
        && m.list_type.is_none()
        && m.list_map_keys.is_empty()
        && m.map_type.is_none()
        && m.rules.is_empty()
        && m.format.is_empty()
        && m.required.is_empty()
        && m.enumeration.is_empty()
        && m.limits == nothing.limits
        && m.pattern.is_none()
        && (m.all_of.len() + m.any_of.len() + m.one_of.len() == 0)
        && m.not.is_none()
}

/// Returns whether this is `anyOf: [{type: integer}, {type: string}]`, which may accompany
/// `x-kubernetes-int-or-string`.
fn is_int_or_string(schema: &Schema) -> bool {
    let only = |s: &Schema, ty: &str| {
        let plain = Schema { ty: ty.to_owned(), ..Schema::default() };
        format!("{s:?}") == format!("{plain:?}")
    };
    matches!(schema.any_of.as_slice(), [a, b] if only(a, "integer") && only(b, "string"))
}

fn first_all_of(schema: &Schema) -> bool {
    schema.all_of.first().is_some_and(is_int_or_string)
}

fn value_validation(
    schema: &Schema,
    skip_any_of: bool,
    skip_first_all_of: bool,
    level: Level,
    path: &Path,
    errors: &mut ErrorList,
) {
    if !skip_any_of {
        for (i, one) in schema.any_of.iter().enumerate() {
            nested(one, false, level, &path.child("anyOf").index(i), errors);
        }
    }
    for (i, one) in schema.all_of.iter().enumerate() {
        nested(one, skip_first_all_of && i == 0, level, &path.child("allOf").index(i), errors);
    }
    for (i, one) in schema.one_of.iter().enumerate() {
        nested(one, false, level, &path.child("oneOf").index(i), errors);
    }
    if let Some(not) = schema.not.as_deref() {
        nested(not, false, level, &path.child("not"), errors);
    }
    if let Some(pattern) = &schema.pattern
        && let Err(error) = pattern.regex()
    {
        let why = format!(
            "must be a valid regular expression, but isn't: error parsing regexp: {error}: `{}`",
            pattern.text
        );
        errors.push(Error::invalid(&path.child("pattern"), pattern.text.as_str(), why));
    }
}

/// Refuses fields that may not be set below `anyOf`, `oneOf`, `allOf` and `not`.
fn nested(schema: &Schema, skip_any_of: bool, level: Level, path: &Path, errors: &mut ErrorList) {
    value_validation(schema, skip_any_of, false, level, path, errors);
    if let Some(items) = schema.items.as_deref() {
        nested(items, false, level, &path.child("items"), errors);
    }
    for (name, property) in &schema.properties {
        nested(property, false, Level::Field, &path.child("properties").key(name), errors);
    }
    let has = |name: &str| schema.prose.contains(&name);
    let additional = !matches!(schema.additional, None | Some(Additional::Allowed(false)));
    for (is_set, field, why) in [
        (!schema.ty.is_empty(), "type", "must be empty to be structural"),
        (additional, "additionalProperties", "must be undefined to be structural"),
        (schema.default.is_some(), "default", "must be undefined to be structural"),
        (has("title"), "title", "must be empty to be structural"),
        (has("description"), "description", "must be empty to be structural"),
        (schema.nullable, "nullable", "must be false to be structural"),
        (
            schema.preserve_unknown_fields,
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        (schema.embedded_resource, "x-kubernetes-embedded-resource", "must be false to be structural"),
        (schema.int_or_string, "x-kubernetes-int-or-string", "must be false to be structural"),
        (!schema.list_map_keys.is_empty(), "x-kubernetes-list-map-keys", "must be empty to be structural"),
        (schema.list_type.is_some(), "x-kubernetes-list-type", "must be undefined to be structural"),
        (schema.map_type.is_some(), "x-kubernetes-map-type", "must be undefined to be structural"),
        (!schema.rules.is_empty(), "x-kubernetes-validations", "must be empty to be structural"),
    ] {
        if is_set {
            errors.push(Error::forbidden(&path.child(field), why));
        }
    }
    if schema.properties.contains_key("metadata") {
        let at = path.child("properties").key("metadata");
        errors.push(Error::forbidden(&at, "must not be specified in a nested context"));
    }
}

/// Requires that every field with a value validation is also specified outside of these.
fn complete(
    validation: &Schema,
    outside: Option<&Schema>,
    at: &Path,
    validation_at: &Path,
    errors: &mut ErrorList,
) {
    let junctors = [("not", validation.not.as_deref().map_or(&[][..], std::slice::from_ref))];
    let lists = [("allOf", &validation.all_of), ("anyOf", &validation.any_of), ("oneOf", &validation.one_of)];
    for (name, schemas) in junctors {
        for schema in schemas {
            nested_complete(schema, outside, at, &validation_at.child(name), errors);
        }
    }
    for (name, schemas) in lists {
        for (i, schema) in schemas.iter().enumerate() {
            nested_complete(schema, outside, at, &validation_at.child(name).index(i), errors);
        }
    }
}

fn nested_complete(
    validation: &Schema,
    outside: Option<&Schema>,
    at: &Path,
    validation_at: &Path,
    errors: &mut ErrorList,
) {
    let Some(outside) = outside else {
        return errors.push(Error::required(at, format!("because it is defined in {validation_at}")));
    };
    complete(validation, Some(outside), at, validation_at, errors);
    if let Some(items) = validation.items.as_deref() {
        let (below, above) = (at.child("items"), validation_at.child("items"));
        nested_complete(items, outside.items.as_deref(), &below, &above, errors);
    }
    for (name, property) in &validation.properties {
        let (below, above) = (at.child("properties").key(name), validation_at.child("properties").key(name));
        nested_complete(property, outside.properties.get(name), &below, &above, errors);
    }
}
