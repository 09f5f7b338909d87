//! Conversion of values to JSON, for results that become part of an object.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::value::{Map, Object, Value};

/// The maximum number of parts of one value: lists that contain each other twice grow exponentially.
const MOST_PARTS: usize = 1_000_000;

/// Converts a value. Timestamps and durations become strings, bytes base64, optionals their values.
pub fn to_json(value: &Value<'_>) -> Result<Json, EvalError> {
    convert(value, &mut 0)
}

fn convert(value: &Value<'_>, parts: &mut usize) -> Result<Json, EvalError> {
    *parts += 1;
    if *parts > MOST_PARTS {
        return Err(EvalError::CostLimitExceeded);
    }
    Ok(match value {
        Value::Null | Value::Optional(None) => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(i) => Json::from(*i),
        Value::Uint(u) => Json::from(*u),
        Value::Double(d) => {
            let finite = serde_json::Number::from_f64(*d);
            Json::from(finite.ok_or_else(|| unsupported("a number that is not finite"))?)
        }
        Value::String(s) => Json::from(&**s),
        Value::Bytes(b) => Json::from(STANDARD.encode(b)),
        Value::Timestamp(t) => Json::from(t.to_string()),
        Value::Duration(n) => Json::from(crate::time::duration_string(*n)),
        Value::List(list) => {
            let items: Result<Vec<Json>, EvalError> =
                list.iter().map(|item| convert(&item?, parts)).collect();
            Json::Array(items?)
        }
        Value::Map(Map::Json { entries, .. }) => copied(entries, parts)?,
        Value::Object(Object::Json { fields, .. }) => copied(fields, parts)?,
        Value::Map(Map::Owned { entries, .. } | Map::Open { entries, .. }) => {
            let entries: Result<_, EvalError> = entries
                .iter()
                .map(|(key, value)| Ok((key.value().to_string(), convert(value, parts)?)))
                .collect();
            Json::Object(entries?)
        }
        Value::Object(Object::Owned { fields, .. }) => {
            let fields: Result<_, EvalError> =
                fields.iter().map(|(name, value)| Ok((name.to_string(), convert(value, parts)?))).collect();
            Json::Object(fields?)
        }
        Value::Optional(Some(inner)) => convert(&inner.value, parts)?,
        Value::Opaque(Opaque::Quantity(q)) => Json::from(q.to_string()),
        Value::Opaque(Opaque::Ip(ip)) => Json::from(ip.to_string()),
        Value::Opaque(Opaque::Cidr(cidr)) => Json::from(cidr.to_string()),
        Value::Type(_) | Value::Opaque(_) => return Err(unsupported(value.type_of().name())),
    })
}

/// Copies a part of an object, and counts the values in it as parts.
fn copied(entries: &serde_json::Map<String, Json>, parts: &mut usize) -> Result<Json, EvalError> {
    fn count(json: &Json) -> usize {
        match json {
            Json::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Json::Object(entries) => 1 + entries.values().map(count).sum::<usize>(),
            _ => 1,
        }
    }
    *parts += entries.values().map(count).sum::<usize>();
    if *parts > MOST_PARTS { Err(EvalError::CostLimitExceeded) } else { Ok(Json::Object(entries.clone())) }
}

fn unsupported(what: &str) -> EvalError {
    EvalError::new(format!("unsupported conversion of {what} to JSON"))
}
