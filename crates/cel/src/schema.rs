//! Types declared by OpenAPI schemas, and JSON values of these types.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::error::EvalError;
use crate::escaping;
use crate::time;
use crate::types::Type;
use crate::value::{List, Map, Object, Str, Value};

/// The largest request, which limits sizes that a schema does not.
pub const MAX_REQUEST_BYTES: i64 = 3 * 1024 * 1024;
const MAX_DURATION: i64 = 32;
const MAX_DATETIME: i64 = 32;
const DATE: i64 = 12;
const MIN_DATETIME: i64 = 21;
const MIN_DURATION: i64 = 3;
/// The maximum nesting of schemas.
const DEEPEST: usize = 200;

/// A type, with what cost estimates and conversions need.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclType {
    name: Arc<str>,
    shape: Shape,
    /// The maximum number of elements, entries or bytes.
    pub max_elements: i64,
    /// The minimum number of bytes as JSON.
    pub min_serialized_size: i64,
    nullable: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    /// Untyped JSON.
    Dyn,
    IntOrString,
    /// A type that only functions can inspect, such as a quantity.
    Opaque,
    Scalar(Scalar),
    List {
        element: Arc<DeclType>,
        kind: ListKind,
    },
    /// The type of the values, and of the keys if their size is limited.
    Map(Arc<DeclType>, Option<Arc<DeclType>>),
    Object(BTreeMap<Box<str>, Field>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scalar {
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Duration,
    Date,
    DateTime,
}

/// How a list is compared and concatenated (`x-kubernetes-list-type`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    Set,
    /// Elements are identified by the values of these properties.
    Map(Vec<Box<str>>),
}

/// A property of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub json_name: Box<str>,
    pub decl: DeclType,
    pub required: bool,
}

impl DeclType {
    fn new(name: &str, shape: Shape, max_elements: i64, min_serialized_size: i64) -> Self {
        Self { name: name.into(), shape, max_elements, min_serialized_size, nullable: false }
    }

    /// Returns the dynamic type.
    pub fn dynamic() -> Self {
        Self::new("dyn", Shape::Dyn, 0, 1)
    }

    pub fn bool() -> Self {
        Self::new("bool", Shape::Scalar(Scalar::Bool), 0, 4)
    }

    pub fn int() -> Self {
        Self::new("int", Shape::Scalar(Scalar::Int), 0, 1)
    }

    pub fn double() -> Self {
        Self::new("double", Shape::Scalar(Scalar::Double), 0, 1)
    }

    pub fn string(max_elements: i64) -> Self {
        Self::new("string", Shape::Scalar(Scalar::String), max_elements, 2)
    }

    pub fn timestamp() -> Self {
        Self::new("timestamp", Shape::Scalar(Scalar::DateTime), MAX_DATETIME, MIN_DATETIME)
    }

    pub fn list(element: DeclType, kind: ListKind, max_elements: i64) -> Self {
        Self::new("list", Shape::List { element: Arc::new(element), kind }, max_elements, 2)
    }

    pub fn map(element: DeclType, max_elements: i64) -> Self {
        Self::new("map", Shape::Map(Arc::new(element), None), max_elements, 2)
    }

    /// Returns a map type whose keys have a limited size.
    pub fn map_of(key: DeclType, element: DeclType, max_elements: i64) -> Self {
        Self::new("map", Shape::Map(Arc::new(element), Some(Arc::new(key))), max_elements, 2)
    }

    /// Returns a type of a function library, such as `kubernetes.Quantity`.
    pub fn opaque(name: &str) -> Self {
        Self::new(name, Shape::Opaque, 0, 8)
    }

    /// Returns an object type with this name, and with fields by their JSON names.
    pub fn object<'n>(name: &str, fields: impl IntoIterator<Item = (&'n str, DeclType)>) -> Self {
        let field = |(json_name, decl): (&str, DeclType)| {
            (json_name.into(), Field { json_name: json_name.into(), decl, required: false })
        };
        Self::new(name, Shape::Object(fields.into_iter().map(field).collect()), 0, 2)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the elements of a list, or of the values of a map.
    pub fn element(&self) -> Option<&DeclType> {
        match &self.shape {
            Shape::List { element, .. } | Shape::Map(element, _) => Some(element),
            _ => None,
        }
    }

    pub fn list_kind(&self) -> Option<&ListKind> {
        if let Shape::List { kind, .. } = &self.shape { Some(kind) } else { None }
    }

    pub fn is_map(&self) -> bool {
        matches!(self.shape, Shape::Map(..))
    }

    /// Returns the type of a map's keys, if it is more specific than string.
    pub fn key(&self) -> Option<&DeclType> {
        if let Shape::Map(_, key) = &self.shape { key.as_deref() } else { None }
    }

    pub fn is_object(&self) -> bool {
        matches!(self.shape, Shape::Object(_))
    }

    /// Returns a field by its name in expressions.
    pub fn field(&self, name: &str) -> Option<&Field> {
        if let Shape::Object(fields) = &self.shape { fields.get(name) } else { None }
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, &Field)> {
        let fields = if let Shape::Object(fields) = &self.shape { Some(fields) } else { None };
        fields.into_iter().flatten().map(|(n, f)| (&**n, f))
    }

    pub fn cel_type(&self) -> Type {
        match &self.shape {
            Shape::Dyn | Shape::IntOrString => Type::Dyn,
            Shape::Scalar(Scalar::Bool) => Type::Bool,
            Shape::Scalar(Scalar::Int) => Type::Int,
            Shape::Scalar(Scalar::Double) => Type::Double,
            Shape::Scalar(Scalar::String) => Type::String,
            Shape::Scalar(Scalar::Bytes) => Type::Bytes,
            Shape::Scalar(Scalar::Duration) => Type::Duration,
            Shape::Scalar(Scalar::Date | Scalar::DateTime) => Type::Timestamp,
            Shape::List { element, .. } => Type::list(element.cel_type()),
            Shape::Map(element, _) => Type::map(Type::String, element.cel_type()),
            Shape::Opaque => Type::Opaque(self.name.clone()),
            Shape::Object(_) => Type::Object(self.name.clone()),
        }
    }

    /// Returns the same type, with every object type in it named by its path below `name`.
    pub fn named(&self, name: &str) -> Self {
        let mut out = self.clone();
        match &mut out.shape {
            Shape::Object(fields) => {
                let own = if &*self.name == "object" { name } else { &self.name };
                out.name = own.into();
                for (field, f) in fields.iter_mut() {
                    f.decl = f.decl.named(&format!("{own}.{field}"));
                }
            }
            Shape::Map(element, _) => *element = Arc::new(element.named(&format!("{name}.@elem"))),
            Shape::List { element, .. } => *element = Arc::new(element.named(&format!("{name}.@idx"))),
            _ => {}
        }
        out
    }

    /// Calls `found` with every object type in it.
    pub(crate) fn each_object<'t>(&'t self, found: &mut impl FnMut(&'t DeclType)) {
        match &self.shape {
            Shape::Object(fields) => {
                found(self);
                fields.values().for_each(|f| f.decl.each_object(found));
            }
            Shape::Map(element, _) | Shape::List { element, .. } => element.each_object(found),
            _ => {}
        }
    }

    /// Returns the maximum number of values of this type in one request: the cardinality of rules below lists and
    /// maps without limits.
    pub fn max_cardinality(&self) -> u64 {
        u64::try_from(MAX_REQUEST_BYTES / (self.min_serialized_size + 1)).unwrap_or(1)
    }
}

fn number(schema: &Json, name: &str) -> Option<i64> {
    schema.get(name).and_then(|n| n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)))
}

fn flag(schema: &Json, name: &str) -> bool {
    schema.get(name).and_then(Json::as_bool).unwrap_or(false)
}

fn text<'s>(schema: &'s Json, name: &str) -> &'s str {
    schema.get(name).and_then(Json::as_str).unwrap_or("")
}

/// Returns the type of an OpenAPI v3 schema given as JSON (a structural schema, `type` is a string); `None` if rules
/// cannot access such data. `resource_root` is true at the root of a resource, which always has `apiVersion`, `kind`
/// and `metadata` with `name` and `generateName`.
pub fn declared_type(schema: &Json, resource_root: bool) -> Option<DeclType> {
    declared(schema, resource_root, 0)
}

fn declared(schema: &Json, root: bool, depth: usize) -> Option<DeclType> {
    if depth > DEEPEST {
        return None;
    }
    let nullable = flag(schema, "nullable");
    let out = if flag(schema, "x-kubernetes-int-or-string") {
        let max = number(schema, "maxLength").map_or(MAX_REQUEST_BYTES - 2, |n| n.max(0).saturating_mul(4));
        DeclType::new("dyn", Shape::IntOrString, max, 1)
    } else {
        match text(schema, "type") {
            "array" => list(schema, depth)?,
            "object" => object(schema, root, depth)?,
            "string" => string(schema),
            "boolean" => DeclType::bool(),
            "number" => DeclType::double(),
            "integer" => DeclType::int(),
            _ => return None,
        }
    };
    Some(DeclType { nullable, ..out })
}

fn list(schema: &Json, depth: usize) -> Option<DeclType> {
    let items = schema.get("items")?;
    let element = declared(items, flag(items, "x-kubernetes-embedded-resource"), depth + 1)?;
    let max = match number(schema, "maxItems") {
        Some(max) => max.max(0),
        None => (MAX_REQUEST_BYTES - 2) / (element.min_serialized_size + 1),
    };
    let kind = match text(schema, "x-kubernetes-list-type") {
        "set" => ListKind::Set,
        "map" => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
            ListKind::Map(keys.into_iter().flatten().filter_map(Json::as_str).map(Into::into).collect())
        }
        _ => ListKind::Atomic,
    };
    Some(DeclType::list(element, kind, max))
}

fn object(schema: &Json, root: bool, depth: usize) -> Option<DeclType> {
    let additional = schema.get("additionalProperties").filter(|a| a.is_object());
    if let Some(additional) = additional {
        let element = declared(additional, flag(additional, "x-kubernetes-embedded-resource"), depth + 1)?;
        let max = match number(schema, "maxProperties") {
            Some(max) => max.max(0),
            None => (MAX_REQUEST_BYTES - 2) / (element.min_serialized_size + 6),
        };
        return Some(DeclType::map(element, max));
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Json::as_array)
        .map(|r| r.iter().filter_map(Json::as_str).collect())
        .unwrap_or_default();
    let mut fields = BTreeMap::new();
    let mut min_size = 2;
    let properties = schema.get("properties").and_then(Json::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let embedded = flag(property, "x-kubernetes-embedded-resource");
        let Some(decl) = declared(property, embedded, depth + 1) else { continue };
        let required = required.contains(&name.as_str());
        if required && property.get("default").is_none_or(Json::is_null) {
            min_size += name.len() as i64 + decl.min_serialized_size + 4;
        }
        if let Some(escaped) = escaping::escape(name) {
            fields.insert(escaped.into(), Field { json_name: name.as_str().into(), decl, required });
        }
    }
    if root {
        add_object_meta(&mut fields);
    }
    Some(DeclType::new("object", Shape::Object(fields), 0, min_size))
}

/// Adds the fields that every object has, whatever its schema specifies.
fn add_object_meta(fields: &mut BTreeMap<Box<str>, Field>) {
    let text = || DeclType::string(MAX_REQUEST_BYTES - 2);
    let field = |name: &str, decl| Field { json_name: name.into(), decl, required: false };
    let is_text = |f: Option<&Field>| f.is_some_and(|f| f.decl.shape == Shape::Scalar(Scalar::String));
    let complete = is_text(fields.get("kind"))
        && is_text(fields.get("apiVersion"))
        && fields
            .get("metadata")
            .is_some_and(|m| is_text(m.decl.field("name")) && is_text(m.decl.field("generateName")));
    if complete {
        return;
    }
    fields.insert("kind".into(), field("kind", text()));
    fields.insert("apiVersion".into(), field("apiVersion", text()));
    let names = ["name", "generateName"].map(|n| (n.into(), field(n, text())));
    let metadata = DeclType::new("object", Shape::Object(names.into_iter().collect()), 0, 2);
    fields.insert("metadata".into(), field("metadata", metadata));
}

fn string(schema: &Json) -> DeclType {
    let scalar = |name, scalar, max, min| DeclType::new(name, Shape::Scalar(scalar), max, min);
    let max_length = number(schema, "maxLength").map(|n| n.max(0));
    match text(schema, "format") {
        "byte" => scalar("bytes", Scalar::Bytes, max_length.unwrap_or(MAX_REQUEST_BYTES - 2), 2),
        "duration" => scalar("duration", Scalar::Duration, MAX_DURATION, MIN_DURATION),
        "date" => scalar("timestamp", Scalar::Date, DATE, DATE),
        "date-time" => scalar("timestamp", Scalar::DateTime, MAX_DATETIME, MIN_DATETIME),
        _ => {
            let longest =
                schema.get("enum").and_then(Json::as_array).filter(|e| !e.is_empty()).map(|values| {
                    values.iter().filter_map(Json::as_str).map(str::len).max().unwrap_or(0) as i64
                });
            let max = max_length.map(|n| n.saturating_mul(4)).or(longest).unwrap_or(MAX_REQUEST_BYTES - 2);
            DeclType::string(max)
        }
    }
}

/// Converts JSON to a value of the declared type.
pub fn to_value<'a>(json: &'a Json, decl: &'a DeclType) -> Result<Value<'a>, EvalError> {
    from_json(json, Some(decl))
}

/// Converts JSON to a value without a type: objects become maps, numbers ints or doubles.
pub fn dynamic(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::Int(i),
            (None, Some(u)) => Value::Uint(u),
            _ => Value::Double(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::String(Str::Borrowed(s)),
        Json::Array(items) => Value::List(List::of_json(items, None)),
        Json::Object(entries) => Value::Map(Map::Json { entries, decl: None }),
    }
}

pub(crate) fn from_json<'a>(json: &'a Json, decl: Option<&'a DeclType>) -> Result<Value<'a>, EvalError> {
    let Some(decl) = decl else { return Ok(dynamic(json)) };
    let wrong =
        |wanted: &str| EvalError::new(format!("invalid data, expected {wanted}, got {}", go_type(json)));
    match (&decl.shape, json) {
        (Shape::Dyn | Shape::Opaque, _) => Ok(dynamic(json)),
        (_, Json::Null) if decl.nullable => Ok(Value::Null),
        (_, Json::Null) => Err(EvalError::new("invalid data, got null for schema with nullable=false")),
        (Shape::IntOrString, Json::String(s)) => Ok(Value::str(s)),
        (Shape::IntOrString, Json::Number(n)) if n.is_i64() => Ok(dynamic(json)),
        (Shape::IntOrString, _) => {
            Err(EvalError::new("invalid data, expected XIntOrString value to be either a string or integer"))
        }
        (Shape::Object(_), Json::Object(fields)) => Ok(Value::Object(Object::Json { fields, decl })),
        (Shape::Map(..), Json::Object(entries)) => Ok(Value::Map(Map::Json { entries, decl: Some(decl) })),
        (Shape::Object(_) | Shape::Map(..), _) => {
            Err(EvalError::new("invalid data, expected a map for the provided schema with type=object"))
        }
        (Shape::List { .. }, Json::Array(items)) => Ok(Value::List(List::of_json(items, Some(decl)))),
        (Shape::List { .. }, _) => {
            Err(EvalError::new("invalid data, expected an array for the provided schema with type=array"))
        }
        (Shape::Scalar(Scalar::Bool), Json::Bool(b)) => Ok(Value::Bool(*b)),
        (Shape::Scalar(Scalar::Bool), _) => Err(wrong("bool")),
        (Shape::Scalar(Scalar::Int), Json::Number(n)) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Ok(Value::Int(i)),
            (None, Some(f)) if f.fract() == 0.0 && f.abs() < 9.2e18 => Ok(Value::Int(f as i64)),
            _ => Err(wrong("int")),
        },
        (Shape::Scalar(Scalar::Int), _) => Err(wrong("int")),
        (Shape::Scalar(Scalar::Double), Json::Number(n)) => Ok(Value::Double(n.as_f64().unwrap_or(f64::NAN))),
        (Shape::Scalar(Scalar::Double), _) => Err(wrong("float")),
        (Shape::Scalar(scalar), Json::String(s)) => formatted(s, *scalar),
        (Shape::Scalar(_), _) => Err(wrong("string")),
    }
}

fn formatted(s: &str, scalar: Scalar) -> Result<Value<'_>, EvalError> {
    match scalar {
        Scalar::Duration => time::parse_duration(s)
            .or_else(|| word_duration(s))
            .map(Value::Duration)
            .ok_or_else(|| EvalError::new(format!("Invalid duration {s}: unable to parse {s} as duration"))),
        Scalar::Date => time::parse_date(s)
            .map(Value::Timestamp)
            .ok_or_else(|| EvalError::new(format!("Invalid date formatted string {s}: unable to parse {s}"))),
        Scalar::DateTime => s
            .parse()
            .ok()
            .or_else(|| time::parse_date(s))
            .and_then(time::in_range)
            .map(Value::Timestamp)
            .ok_or_else(|| {
                EvalError::new(format!("Invalid date-time formatted string {s}: unable to parse {s}"))
            }),
        Scalar::Bytes => STANDARD
            .decode(s)
            .map(|b| Value::Bytes(b.into()))
            .map_err(|e| EvalError::new(format!("Invalid byte formatted string {s}: {e}"))),
        _ => Ok(Value::str(s)),
    }
}

/// Parses the longer form of the `duration` format: `2 weeks`, `1 day`.
fn word_duration(s: &str) -> Option<i64> {
    const UNITS: &[(&[&str], i64)] = &[
        (&["ns", "nano", "nanos", "nanosecond", "nanoseconds"], 1),
        (&["us", "\u{b5}s", "micro", "micros", "microsecond", "microseconds"], 1_000),
        (&["ms", "milli", "millis", "millisecond", "milliseconds"], 1_000_000),
        (&["s", "sec", "secs", "second", "seconds"], 1_000_000_000),
        (&["m", "min", "mins", "minute", "minutes"], 60_000_000_000),
        (&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000_000),
        (&["d", "day", "days"], 86_400_000_000_000),
        (&["w", "wk", "wks", "week", "weeks"], 604_800_000_000_000),
    ];
    let s = s.trim();
    let split = s.find(|c: char| !c.is_ascii_digit()).filter(|n| *n > 0)?;
    let count: i64 = s[..split].parse().ok()?;
    let unit = s[split..].trim().to_lowercase();
    let (_, nanos) = UNITS.iter().find(|(names, _)| names.contains(&unit.as_str()))?;
    count.checked_mul(*nanos)
}

fn go_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(n) if n.is_i64() => "int64",
        Json::Number(_) => "float64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_become_types_with_limits() {
        let schema = json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "maxLength": 10},
                "kind-of": {"type": "string", "enum": ["a", "long"]},
                "ports": {"type": "array", "items": {"x-kubernetes-int-or-string": true}},
                "at": {"type": "string", "format": "date-time"},
                "labels": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string"}},
                "blob": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "any": {"x-kubernetes-preserve-unknown-fields": true},
            }
        });
        let decl = declared_type(&schema, true).unwrap().named("self");
        assert_eq!(decl.cel_type(), Type::object("self"));
        assert_eq!(decl.min_serialized_size, 2 + 4 + 2 + 4);
        assert_eq!(decl.field("name").unwrap().decl.max_elements, 40);
        assert_eq!(decl.field("kind__dash__of").unwrap().decl.max_elements, 4);
        let ports = &decl.field("ports").unwrap().decl;
        assert_eq!(
            (ports.cel_type(), ports.max_elements),
            (Type::list(Type::Dyn), (MAX_REQUEST_BYTES - 2) / 2)
        );
        assert_eq!(decl.field("labels").unwrap().decl.max_elements, 5);
        assert_eq!(decl.field("blob").unwrap().decl.cel_type(), Type::object("self.blob"));
        assert!(decl.field("any").is_none());
        assert_eq!(decl.field("metadata").unwrap().decl.cel_type(), Type::object("self.metadata"));
    }

    #[test]
    fn wrong_data_is_an_error_not_a_panic() {
        let decl = declared_type(&json!({"type": "string", "format": "duration"}), false).unwrap();
        assert!(matches!(to_value(&json!("1h"), &decl), Ok(Value::Duration(3_600_000_000_000))));
        assert!(matches!(to_value(&json!("2 days"), &decl), Ok(Value::Duration(_))));
        assert!(to_value(&json!("soon"), &decl).is_err());
        assert!(to_value(&json!(5), &decl).is_err());
        assert!(to_value(&Json::Null, &decl).is_err());
    }
}
