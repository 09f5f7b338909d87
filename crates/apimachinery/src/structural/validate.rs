//! Validation of values against a schema, with the results and messages of upstream's OpenAPI validation.

use serde_json::{Map, Value};

use super::outcome::{Failure, Outcome};
use super::{Additional, Correlation, Schema, format, number};
use crate::field::{ErrorList, Path};

/// Validates a value. `base` is its path; paths within the schema are relative to it.
pub fn validate(value: &Value, schema: &Schema, base: &Path) -> ErrorList {
    node(value, schema, "", None).into_errors(base)
}

/// Does the same as [`validate`], but ignores errors in values that an update leaves unchanged (ratcheting).
pub fn validate_update(value: &Value, old: Option<&Value>, schema: &Schema, base: &Path) -> ErrorList {
    let Some(old) = old else { return validate(value, schema, base) };
    let correlation = Correlation::new(value, old, schema);
    ratcheted(value, schema, "", &correlation).into_errors(base)
}

fn ratcheted(value: &Value, schema: &Schema, path: &str, correlation: &Correlation<'_>) -> Outcome {
    let mut found = node(value, schema, path, Some(correlation));
    if !found.is_valid() && correlation.is_unchanged() {
        found.failures.clear();
    }
    found
}

/// Validates a member or element, with its old value if it can be correlated.
fn below(value: &Value, schema: &Schema, path: &str, before: Option<Correlation<'_>>) -> Outcome {
    match before {
        Some(correlation) => ratcheted(value, schema, path, &correlation),
        None => node(value, schema, path, None),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn node(value: &Value, schema: &Schema, path: &str, before: Option<&Correlation<'_>>) -> Outcome {
    let mut found = Outcome::default();
    if value.is_null() {
        check_type(value, schema, path, &mut found);
        check_enum(value, schema, path, &mut found);
        return found;
    }
    let format = format::effective(schema);
    if !types(schema).is_empty() || !format.is_empty() {
        check_type(value, schema, path, &mut found);
        found.checks += 1;
    }
    found.merge(combinations(value, schema, path, before));
    found.checks += 1;
    if let Value::String(text) = value {
        check_string(text, schema, path, &mut found);
        found.checks += 1;
        if format::is_known(format) {
            if !format::matches(format, text) {
                found.fail(Failure::wrong_type(path, format, text));
            }
            found.checks += 1;
        }
    }
    if value.is_number() {
        number::check(value, schema, path, &mut found);
        found.checks += 1;
    }
    if let Value::Array(items) = value {
        check_list(items, schema, path, before, &mut found);
        found.checks += 1;
    }
    check_enum(value, schema, path, &mut found);
    found.checks += 1;
    if let Value::Object(map) = value {
        check_object(map, schema, path, before, &mut found);
        found.checks += 1;
    }
    found.checks += 1;
    found
}

/// Returns the permitted types.
fn types(schema: &Schema) -> &[&str] {
    if schema.int_or_string {
        return &["integer", "string"];
    }
    match schema.ty.as_str() {
        "object" => &["object"],
        "array" => &["array"],
        "string" => &["string"],
        "integer" => &["integer"],
        "number" => &["number"],
        "boolean" => &["boolean"],
        _ => &[],
    }
}

fn check_type(value: &Value, schema: &Schema, path: &str, found: &mut Outcome) {
    found.checks += 1;
    let types = types(schema);
    let name = type_name(value);
    if value.is_null() {
        if !types.is_empty() && !schema.nullable {
            found.fail(Failure::wrong_type(path, &types.join(","), "null"));
        }
        return;
    }
    let format = format::effective(schema);
    let has = |ty: &str| types.contains(&ty);
    let whole_float = name == "number" && has("integer") && value.as_f64().is_some_and(number::is_whole);
    let int_as_number = name == "integer" && has("number");
    let fits = has(name) || whole_float || int_as_number;
    let texts = matches!(value, Value::String(_) | Value::Array(_));
    if !texts && !format.is_empty() && !fits {
        let own = match name {
            "integer" => "int64",
            "number" => "float64",
            _ => "",
        };
        if own != format {
            found.fail(Failure::wrong_type(path, format, own));
        }
        return;
    }
    if texts && !format.is_empty() && !has("number") && !has("integer") {
        return;
    }
    if !fits {
        found.fail(Failure::wrong_type(path, &types.join(","), name));
    }
}

fn check_enum(value: &Value, schema: &Schema, path: &str, found: &mut Outcome) {
    if !schema.enumeration.is_empty() && !schema.enumeration.iter().any(|e| same(e, value)) {
        found.fail(Failure::enumeration(path, value, &schema.enumeration));
    }
}

/// Compares values; 1 and 1.0 are equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        _ => a == b,
    }
}

fn check_string(text: &str, schema: &Schema, path: &str, found: &mut Outcome) {
    let limits = &schema.limits;
    let count = text.chars().count() as i64;
    if let Some(max) = limits.max_length
        && count > max
    {
        return found.fail(Failure::too_long(path, max));
    }
    if let Some(min) = limits.min_length
        && count < min
    {
        let why = format!("should be at least {min} chars long");
        return found.fail(Failure::invalid(path, text.into(), &why));
    }
    let Some(pattern) = &schema.pattern else { return };
    let why = match pattern.regex() {
        Ok(regex) if regex.is_match(text) => return,
        Ok(_) => format!("should match '{}'", pattern.text),
        Err(error) => format!("should match '{}, but pattern is invalid: {error}'", pattern.text),
    };
    found.fail(Failure::invalid(path, text.into(), &why));
}

fn check_list(
    items: &[Value],
    schema: &Schema,
    path: &str,
    before: Option<&Correlation<'_>>,
    found: &mut Outcome,
) {
    if let Some(schema) = schema.items.as_deref() {
        let correlated = before.map(Correlation::items);
        for (i, item) in items.iter().enumerate() {
            let before = correlated.as_ref().and_then(|items| items.get(i));
            found.merge(below(item, schema, &format!("{path}[{i}]"), before));
        }
    }
    let limits = &schema.limits;
    if let Some(min) = limits.min_items
        && (items.len() as i64) < min
    {
        let why = format!("should have at least {min} items");
        found.fail(Failure::invalid(path, items.len().into(), &why));
    }
    if let Some(max) = limits.max_items
        && items.len() as i64 > max
    {
        found.fail(Failure::too_many(path, items.len(), max));
    }
    if limits.unique_items && (1..items.len()).any(|i| items[..i].contains(&items[i])) {
        found.fail(Failure::invalid(path, "".into(), "shouldn't contain duplicates"));
    }
    found.checks += 1;
}

fn check_object(
    map: &Map<String, Value>,
    schema: &Schema,
    path: &str,
    before: Option<&Correlation<'_>>,
    found: &mut Outcome,
) {
    let limits = &schema.limits;
    if let Some(min) = limits.min_properties
        && (map.len() as i64) < min
    {
        let why = format!("should have at least {min} properties");
        found.fail(Failure::invalid(path, map.len().into(), &why));
    }
    if let Some(max) = limits.max_properties
        && map.len() as i64 > max
    {
        found.fail(Failure::too_many(path, map.len(), max));
    }
    for (key, value) in map {
        let known = schema.properties.get(key);
        let (member, at) = match (known, &schema.additional) {
            (Some(property), _) => {
                (property, if path.is_empty() { key.clone() } else { format!("{path}.{key}") })
            }
            (None, Some(Additional::Schema(additional))) => (&**additional, format!("{path}.{key}")),
            (None, Some(Additional::Allowed(false))) => {
                found.fail(Failure::forbidden_property(path, key));
                continue;
            }
            _ => continue,
        };
        let type_meta = path.is_empty() && matches!(key.as_str(), "kind" | "apiVersion");
        let before = before.filter(|_| !type_meta).and_then(|b| b.key(key));
        found.merge(below(value, member, &at, before));
    }
    for name in schema.required.iter().filter(|name| !map.contains_key(*name)) {
        found.fail(Failure::required(format!("{path}.{name}")));
    }
}

/// Validates `anyOf`, `oneOf`, `allOf` and `not`.
fn combinations(value: &Value, schema: &Schema, path: &str, before: Option<&Correlation<'_>>) -> Outcome {
    let mut found = Outcome::default();
    let shown = crate::schema::validate::quote(path);
    if !schema.any_of.is_empty() {
        let (valid, best) = try_all(&schema.any_of, value, path, before, true);
        if valid == 0 {
            found.fail(Failure::combination(format!("{shown} must validate at least one schema (anyOf)")));
        }
        found.merge(best);
    }
    if !schema.one_of.is_empty() {
        let (valid, best) = try_all(&schema.one_of, value, path, before, false);
        if valid != 1 {
            let why = match valid {
                0 => "Found none valid".to_owned(),
                n => format!("Found {n} valid alternatives"),
            };
            let message = format!("{shown} must validate one and only one schema (oneOf). {why}");
            found.fail(Failure::combination(message));
        }
        if valid < 2 {
            found.merge(best);
        }
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for one in &schema.all_of {
            let result = node(value, one, path, before);
            valid += usize::from(result.is_valid());
            found.merge(result);
        }
        if valid != schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            found.fail(Failure::combination(format!("{shown} must validate all the schemas (allOf){none}")));
        }
    }
    if let Some(not) = schema.not.as_deref()
        && node(value, not, path, before).is_valid()
    {
        found.fail(Failure::combination(format!("{shown} must not validate the schema (not)")));
    }
    found.checks += 1;
    found
}

/// Returns the number of alternatives that match, and the result of the first match or else of the closest one.
fn try_all(
    alternatives: &[Schema],
    value: &Value,
    path: &str,
    before: Option<&Correlation<'_>>,
    first_is_enough: bool,
) -> (usize, Outcome) {
    let (mut valid, mut best): (usize, Option<Outcome>) = (0, None);
    for alternative in alternatives {
        let result = node(value, alternative, path, before);
        if result.is_valid() {
            valid += 1;
            if valid == 1 {
                best = Some(result);
            }
            if first_is_enough {
                break;
            }
        } else if valid == 0 && best.as_ref().is_none_or(|b| result.checks > b.checks) {
            best = Some(result);
        }
    }
    (valid, best.unwrap_or_default())
}
