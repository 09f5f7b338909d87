//! The schema of one version of a custom resource.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::structural::{Additional, Rule, Schema};
use serde_json::Value;

use super::super::structural;
use super::version::field_path;
use super::{Options, defaults, rules};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength \
                       MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties \
                       ExternalDocs Example XPreserveUnknownFields XValidations]";

pub fn has_invalid_type(schema: &Schema) -> bool {
    !schema.ty.is_empty() && !TYPES.contains(&schema.ty.as_str())
}

pub fn is_not_structural(schema: &Schema) -> bool {
    structural::unreadable(schema).is_some() || !structural::validate(schema, &Path::default()).is_empty()
}

/// Returns whether this is a set whose elements are not atomic.
pub fn is_set_of_granular(schema: &Schema) -> bool {
    let (Some("set"), Some(items)) = (schema.list_type.as_deref(), schema.items.as_deref()) else {
        return false;
    };
    match items.ty.as_str() {
        "array" => items.list_type.as_deref().is_some_and(|t| t != "atomic"),
        "object" => items.map_type.as_deref() != Some("atomic"),
        _ => false,
    }
}

pub fn has_bad_map_list(schema: &Schema) -> bool {
    let mut errors = ErrorList::new();
    map_list(schema, &Path::default(), &mut errors);
    !errors.is_empty()
}

/// Which checks apply to the schema of a version, or of all versions.
pub struct Demands<'a> {
    /// Whether the status subresource is enabled.
    pub status: bool,
    pub structural: bool,
    /// Whether the schema was accepted before.
    pub unchanged: bool,
    pub options: &'a Options,
}

/// Validates a schema. `path` is that of the object around `openAPIV3Schema`; `json` is the schema as written.
pub fn validate(schema: &Schema, json: &Value, demands: &Demands<'_>, path: &Path) -> ErrorList {
    let Demands { status, structural, unchanged, options } = *demands;
    let path = path.child("openAPIV3Schema");
    let mut errors = ErrorList::new();
    if status {
        root_with_status(schema, &path, &mut errors);
    }
    if schema.nullable {
        errors.push(Error::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut unreadable = None;
    if structural {
        unreadable = structural::unreadable(schema);
        if unreadable.is_none() {
            let found = structural::validate(schema, &path);
            if found.is_empty() {
                errors.extend(defaults::validate(schema, json, options.pruned_defaults, &path));
            } else {
                errors.extend(found);
            }
        }
    }
    let mut walk = Walk { options, errors: &mut errors };
    walk.node(schema, &path, &Place { root: true, ..Place::default() });
    match unreadable {
        Some(why) if errors.is_empty() => errors.push(Error::invalid(&path, "", why)),
        None if structural && errors.is_empty() => {
            errors.extend(rules::validate(schema, json, unchanged, &path));
        }
        _ => {}
    }
    errors
}

/// Validates the root of a schema with a status subresource, which may set fewer fields: the status is also validated
/// alone.
fn root_with_status(schema: &Schema, path: &Path, errors: &mut ErrorList) {
    if schema.ty != "object" {
        let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(Error::invalid(&path.child("type"), schema.ty.as_str(), why));
        return;
    }
    let forbidden = !schema.unsupported.is_empty()
        || schema.nullable
        || schema.default.is_some()
        || schema.additional.is_some()
        || schema.embedded_resource
        || schema.int_or_string
        || schema.list_type.is_some()
        || !schema.list_map_keys.is_empty()
        || schema.map_type.is_some()
        || !schema.enumeration.is_empty()
        || schema.limits.max_properties.is_some()
        || schema.limits.min_properties.is_some()
        || !(schema.all_of.is_empty() && schema.any_of.is_empty() && schema.one_of.is_empty())
        || schema.not.is_some();
    if forbidden {
        let why = format!(
            "only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        errors.push(Error::invalid(path, serde_json::json!({"type": schema.ty}), why));
    }
}

/// The position of a node in the schema.
#[derive(Clone, Default)]
struct Place {
    root: bool,
    inside_meta: bool,
    /// Why defaults are forbidden here.
    no_defaults: Option<String>,
}

struct Walk<'a> {
    options: &'a Options,
    errors: &'a mut ErrorList,
}

impl Walk<'_> {
    fn node(&mut self, schema: &Schema, path: &Path, place: &Place) {
        self.unsupported(schema, path, place);
        self.extensions(schema, path);
        self.lists(schema, path);
        for (i, rule) in schema.rules.iter().enumerate() {
            rule_text(rule, schema, &path.child("x-kubernetes-validations").index(i), self.errors);
        }
        self.below(schema, path, place);
    }

    fn below(&mut self, schema: &Schema, path: &Path, place: &Place) {
        let plain = Place { root: false, ..place.clone() };
        if let Some(Additional::Schema(additional)) = &schema.additional {
            let mut inside = plain.clone();
            if place.inside_meta {
                inside.no_defaults =
                    Some("inside additionalProperties applying to object metadata".to_owned());
            }
            self.node(additional, &path.child("additionalProperties"), &inside);
        }
        for (name, property) in &schema.properties {
            let mut inside = plain.clone();
            let meta = matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
            if (place.root || schema.embedded_resource) && meta {
                inside.inside_meta = true;
                if place.root {
                    inside.no_defaults = Some(format!("in top-level {name}"));
                }
            }
            self.node(property, &path.child("properties").key(name), &inside);
        }
        if let Some(not) = schema.not.as_deref() {
            self.node(not, &path.child("not"), &plain);
        }
        let lists = [("allOf", &schema.all_of), ("oneOf", &schema.one_of), ("anyOf", &schema.any_of)];
        for (name, list) in lists {
            for (i, one) in list.iter().enumerate() {
                self.node(one, &path.child(name).index(i), &plain);
            }
        }
        if let Some(items) = schema.items.as_deref() {
            self.node(items, &path.child("items"), &plain);
        }
    }

    fn unsupported(&mut self, schema: &Schema, path: &Path, place: &Place) {
        let mut forbid =
            |field: &str, why: String| self.errors.push(Error::forbidden(&path.child(field), why));
        if schema.default.is_some()
            && let Some(reason) = &place.no_defaults
        {
            forbid("default", format!("must not be set {reason}"));
        }
        for field in schema.unsupported.iter().filter(|f| **f != "$schema") {
            forbid(field, format!("{field} is not supported"));
        }
        if schema.ty == "null" {
            forbid("type", "type cannot be set to null, use nullable as an alternative".to_owned());
        }
        if schema.items_is_list {
            forbid("items", "items must be a schema object and not an array".to_owned());
        }
        if place.inside_meta && schema.embedded_resource {
            forbid("x-kubernetes-embedded-resource", "must not be used inside of resource meta".to_owned());
        }
        if schema.limits.unique_items {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            forbid("uniqueItems", why.to_owned());
        }
        if !schema.properties.is_empty()
            && matches!(schema.additional, Some(Additional::Schema(_) | Additional::Allowed(false)))
        {
            let why = "additionalProperties and properties are mutual exclusive";
            forbid("additionalProperties", why.to_owned());
        }
        if self.options.valid_property_types && has_invalid_type(schema) {
            self.errors.push(Error::not_supported(&path.child("type"), schema.ty.as_str(), &TYPES));
        }
    }

    fn extensions(&mut self, schema: &Schema, path: &Path) {
        if schema.preserve_is_false {
            let at = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.push(Error::invalid(&at, false, "must be true or undefined"));
        }
        if let Some(ty) = schema.map_type.as_deref() {
            self.type_must_be("object", "x-kubernetes-map-type", schema, path);
            if !matches!(ty, "atomic" | "granular") {
                let at = path.child("x-kubernetes-map-type");
                self.errors.push(Error::not_supported(&at, ty, &["atomic", "granular"]));
            }
        }
    }

    fn type_must_be(&mut self, ty: &str, because: &str, schema: &Schema, path: &Path) -> bool {
        if schema.ty == ty {
            return true;
        }
        let (at, why) = (path.child("type"), format!("must be {ty} if {because} is specified"));
        self.errors.push(if schema.ty.is_empty() {
            Error::required(&at, why)
        } else {
            Error::invalid(&at, schema.ty.as_str(), why)
        });
        false
    }

    fn lists(&mut self, schema: &Schema, path: &Path) {
        let at = path.child("x-kubernetes-list-type");
        if let Some(ty) = schema.list_type.as_deref() {
            let is_list = self.type_must_be("array", "x-kubernetes-list-type", schema, path);
            if is_list && self.options.atomic_sets && is_set_of_granular(schema) {
                let items = path.child("items");
                let array = schema.items.as_deref().is_some_and(|i| i.ty == "array");
                let field = if array { "x-kubernetes-list-type" } else { "x-kubernetes-map-type" };
                let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
                let value = schema.items.as_deref().and_then(|i| i.list_type.clone());
                self.errors.push(Error::invalid(&items.child(field), value, why));
            }
            if !matches!(ty, "atomic" | "set" | "map") {
                self.errors.push(Error::not_supported(&at, ty, &["atomic", "set", "map"]));
            }
        }
        if !schema.list_map_keys.is_empty() {
            let why = "must be map if x-kubernetes-list-map-keys is non-empty";
            match schema.list_type.as_deref() {
                None => self.errors.push(Error::required(&at, why)),
                Some("map") => {}
                Some(other) => self.errors.push(Error::invalid(&at, other, why)),
            }
        }
        if schema.list_type.as_deref() == Some("map") {
            self.keyed_list(schema, path);
        }
        if self.options.map_list_keys {
            map_list(schema, path, self.errors);
        }
    }

    fn keyed_list(&mut self, schema: &Schema, path: &Path) {
        let at_keys = path.child("x-kubernetes-list-map-keys");
        let at_items = path.child("items");
        if schema.list_map_keys.is_empty() {
            let why = "must not be empty if x-kubernetes-list-type is map";
            self.errors.push(Error::required(&at_keys, why));
        }
        let Some(items) = schema.items.as_deref() else {
            let why = "must have a schema if x-kubernetes-list-type is map";
            return self.errors.push(Error::required(&at_items, why));
        };
        if items.ty != "object" {
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            return self.errors.push(Error::invalid(&at_items.child("type"), items.ty.as_str(), why));
        }
        for (i, key) in schema.list_map_keys.iter().enumerate() {
            match items.properties.get(key) {
                Some(property) if matches!(property.ty.as_str(), "array" | "object") => {
                    let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    let at = at_items.child("properties").key(key).child("type");
                    self.errors.push(Error::invalid(&at, items.ty.as_str(), why));
                }
                Some(_) => {}
                None => {
                    let why = "entries must all be names of item properties";
                    self.errors.push(Error::invalid(&at_keys, schema.list_map_keys.clone(), why));
                }
            }
            if schema.list_map_keys[..i].contains(key) {
                let why = "must not contain duplicate entries";
                self.errors.push(Error::invalid(&at_keys, schema.list_map_keys.clone(), why));
            }
        }
    }
}

/// Requires that elements and keys of sets and maps are not nullable, and that keys are required or have a
/// default.
fn map_list(schema: &Schema, path: &Path, errors: &mut ErrorList) {
    let (Some(kind @ ("set" | "map")), Some(items)) = (schema.list_type.as_deref(), schema.items.as_deref())
    else {
        return;
    };
    let at = path.child("items");
    if items.nullable {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(Error::forbidden(&at.child("nullable"), why));
    }
    for key in schema.list_map_keys.iter().filter(|_| kind == "map") {
        let Some(property) = items.properties.get(key) else { continue };
        let at = at.child("properties").key(key);
        if !items.required.contains(key) && property.default.is_none() {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(Error::required(&at.child("default"), why));
        }
        if property.nullable {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(Error::forbidden(&at.child("nullable"), why));
        }
    }
}

fn rule_text(rule: &Rule, schema: &Schema, path: &Path, errors: &mut ErrorList) {
    let breaks = |text: &str| text.contains(['\n', '\r']);
    let (text, message) = (rule.rule.trim(), rule.message.trim());
    if text.is_empty() {
        errors.push(Error::required(&path.child("rule"), "rule is not specified"));
    } else if !rule.message.is_empty() && message.is_empty() {
        let why = "must be non-empty if specified";
        errors.push(Error::invalid(&path.child("message"), rule.message.as_str(), why));
    } else if breaks(message) {
        let why = "must not contain line breaks";
        errors.push(Error::invalid(&path.child("message"), rule.message.as_str(), why));
    } else if breaks(text) && message.is_empty() {
        let why = "message must be specified if rule contains line breaks";
        errors.push(Error::required(&path.child("message"), why));
    }
    if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
        let why = "messageExpression must be non-empty if specified";
        errors.push(Error::required(&path.child("messageExpression"), why));
    }
    if let Some(reason) = &rule.reason
        && !REASONS.contains(&reason.as_str())
    {
        errors.push(Error::not_supported(&path.child("reason"), reason.as_str(), &REASONS));
    }
    if rule.field_path.is_empty() {
        return;
    }
    let at = path.child("fieldPath");
    if rule.field_path.trim().is_empty() {
        errors.push(Error::invalid(&at, rule.field_path.as_str(), "must be non-empty if specified"));
    }
    if breaks(&rule.field_path) {
        errors.push(Error::invalid(&at, rule.field_path.as_str(), "must not contain line breaks"));
    }
    if field_path(&rule.field_path, schema, true).is_err() {
        errors.push(Error::invalid(&at, rule.field_path.as_str(), "must be a valid path"));
    }
}
