//! Schemas of custom resources: the OpenAPI v3 schema of a CustomResourceDefinition, parsed for use.
//!
//! Built-in types have a static table ([`crate::schema`]); these schemas arrive at run time. They are used as
//! upstream uses its structural schemas: to prune, default, coerce metadata, validate, and identify list elements.

mod coerce;
mod correlate;
mod default;
mod format;
mod list_type;
mod meta;
mod number;
mod outcome;
mod prune;
mod validate;

pub use coerce::{Coerced, coerce};
pub use correlate::{Correlation, Keyed};
pub use default::{apply_defaults, prune_nulls};
pub use format::is_known as is_known_format;
pub use list_type::validate as validate_list_types;
pub use meta::validate_embedded;
pub use prune::{prune, prune_value};
pub use validate::{validate, validate_update};

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

/// The maximum nesting of a schema: deeper than any accepted JSON body can be.
const MAX_DEPTH: usize = 512;

/// One node of a schema (`JSONSchemaProps`).
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`, or empty.
    pub ty: String,
    pub format: String,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Option<Additional>,
    pub items: Option<Box<Schema>>,
    pub preserve_unknown_fields: bool,
    pub embedded_resource: bool,
    pub int_or_string: bool,
    pub list_type: Option<String>,
    pub list_map_keys: Vec<String>,
    pub map_type: Option<String>,
    /// `x-kubernetes-validations`.
    pub rules: Vec<Rule>,
    pub required: Vec<String>,
    pub enumeration: Vec<Value>,
    pub limits: Limits,
    pub pattern: Option<Pattern>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,
    /// Which of `title`, `description`, `externalDocs` and `example` are set.
    pub prose: Vec<&'static str>,
    /// The fields that are set although no custom resource may use them, such as `$ref`.
    pub unsupported: Vec<&'static str>,
    /// Whether `items` is a list of schemas.
    pub items_is_list: bool,
    /// Whether `x-kubernetes-preserve-unknown-fields` is `false`, which is not permitted.
    pub preserve_is_false: bool,
}

/// `additionalProperties`.
#[derive(Debug, Clone)]
pub enum Additional {
    Allowed(bool),
    Schema(Box<Schema>),
}

/// Limits of numbers, lengths and counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub unique_items: bool,
}

/// A regular expression, compiled on first use.
#[derive(Debug, Clone)]
pub struct Pattern {
    pub text: String,
    compiled: OnceLock<Result<Regex, String>>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), compiled: OnceLock::new() }
    }

    /// Returns the compiled expression, or the error.
    pub fn regex(&self) -> Result<&Regex, &str> {
        self.compiled.get_or_init(|| compile(&self.text)).as_ref().map_err(String::as_str)
    }
}

fn compile(text: &str) -> Result<Regex, String> {
    // The limit keeps nested repetitions from using all memory.
    regex::RegexBuilder::new(text).size_limit(4 * 1024 * 1024).build().map_err(|e| {
        let text = e.to_string();
        text.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned()
    })
}

/// One rule of `x-kubernetes-validations`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: Option<String>,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
}

impl Schema {
    /// Parses a decoded `JSONSchemaProps`, in which every field has its type.
    pub fn parse(props: &Value) -> Self {
        Self::parse_at(props, 0)
    }

    fn parse_at(props: &Value, depth: usize) -> Self {
        if depth > MAX_DEPTH {
            return Self::default();
        }
        let below = |value: &Value| Self::parse_at(value, depth + 1);
        let text = |name: &str| props.get(name).and_then(Value::as_str).unwrap_or("");
        let flag = |name: &str| props.get(name).and_then(Value::as_bool).unwrap_or(false);
        let given = |name: &str| props.get(name).is_some_and(|v| !v.is_null());
        let list = |name: &str| props.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let texts =
            |name: &str| list(name).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
        let schemas = |name: &str| list(name).iter().map(below).collect::<Vec<_>>();
        let optional = |name: &str| props.get(name).and_then(Value::as_str).map(str::to_owned);
        let preserve = props.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool);
        Self {
            ty: text("type").to_owned(),
            format: text("format").to_owned(),
            nullable: flag("nullable"),
            default: props.get("default").filter(|v| !v.is_null()).cloned(),
            properties: properties(props, &below),
            additional: match props.get("additionalProperties") {
                Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
                Some(schema @ Value::Object(_)) => Some(Additional::Schema(Box::new(below(schema)))),
                _ => None,
            },
            items: props.get("items").filter(|i| i.is_object()).map(|i| Box::new(below(i))),
            items_is_list: props.get("items").is_some_and(Value::is_array),
            preserve_unknown_fields: preserve == Some(true),
            preserve_is_false: preserve == Some(false),
            embedded_resource: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type: optional("x-kubernetes-list-type"),
            list_map_keys: texts("x-kubernetes-list-map-keys"),
            map_type: optional("x-kubernetes-map-type"),
            rules: list("x-kubernetes-validations").iter().map(rule).collect(),
            required: texts("required"),
            enumeration: list("enum").to_vec(),
            limits: limits(props),
            pattern: Some(text("pattern")).filter(|p| !p.is_empty()).map(Pattern::new),
            all_of: schemas("allOf"),
            any_of: schemas("anyOf"),
            one_of: schemas("oneOf"),
            not: props.get("not").filter(|n| n.is_object()).map(|n| Box::new(below(n))),
            prose: ["title", "description", "externalDocs", "example"]
                .into_iter()
                .filter(|name| given(name))
                .collect(),
            unsupported: UNSUPPORTED.into_iter().filter(|name| is_set(props.get(*name))).collect(),
        }
    }

    /// Returns the schema of a property or of any other member.
    pub fn member(&self, name: &str) -> Option<&Schema> {
        match (self.properties.get(name), &self.additional) {
            (Some(property), _) => Some(property),
            (None, Some(Additional::Schema(schema))) => Some(schema),
            _ => None,
        }
    }

    /// Returns the schema of members that are not properties.
    pub fn additional_schema(&self) -> Option<&Schema> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// Returns whether the predicate holds for this node or for any below it.
    pub fn any(&self, is_so: &dyn Fn(&Schema) -> bool) -> bool {
        is_so(self) || self.children().any(|child| child.any(is_so))
    }

    /// Returns all schemas directly below.
    pub fn children(&self) -> impl Iterator<Item = &Schema> {
        self.properties
            .values()
            .chain(self.additional_schema())
            .chain(self.items.as_deref())
            .chain(&self.all_of)
            .chain(&self.any_of)
            .chain(&self.one_of)
            .chain(self.not.as_deref())
    }
}

const UNSUPPORTED: [&str; 7] =
    ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"];

fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::String(s)) => !s.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    }
}

fn properties(props: &Value, below: &dyn Fn(&Value) -> Schema) -> BTreeMap<String, Schema> {
    let map = props.get("properties").and_then(Value::as_object);
    map.into_iter().flatten().map(|(name, schema)| (name.clone(), below(schema))).collect()
}

fn rule(value: &Value) -> Rule {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    Rule {
        rule: text("rule"),
        message: text("message"),
        message_expression: text("messageExpression"),
        reason: value.get("reason").and_then(Value::as_str).map(str::to_owned),
        field_path: text("fieldPath"),
        optional_old_self: value.get("optionalOldSelf").and_then(Value::as_bool),
    }
}

fn limits(props: &Value) -> Limits {
    let float = |name: &str| props.get(name).and_then(Value::as_f64);
    let int = |name: &str| props.get(name).and_then(Value::as_i64);
    let flag = |name: &str| props.get(name).and_then(Value::as_bool).unwrap_or(false);
    Limits {
        maximum: float("maximum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        minimum: float("minimum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        multiple_of: float("multipleOf"),
        max_length: int("maxLength"),
        min_length: int("minLength"),
        max_items: int("maxItems"),
        min_items: int("minItems"),
        max_properties: int("maxProperties"),
        min_properties: int("minProperties"),
        unique_items: flag("uniqueItems"),
    }
}

#[cfg(test)]
mod tests;
