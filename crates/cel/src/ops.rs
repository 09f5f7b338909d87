//! Operations on all types of values: equality, order, lookup.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::budget::Budget;
use crate::error::EvalError;
use crate::schema::ListKind;
use crate::value::{Items, Key, List, Map, Object, Value};

/// Returns the element or field; `None` if it does not exist.
pub fn lookup<'a>(value: &Value<'a>, key: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
    match (value, key) {
        (Value::Map(map), _) => map.get(key).transpose(),
        (Value::Object(object), Value::String(name)) => object.field(name),
        (Value::List(list), _) => {
            let index = index(key)?;
            usize::try_from(index).ok().and_then(|i| list.get(i)).transpose()
        }
        _ => Ok(None),
    }
}

/// Returns the error for a missing element or field.
pub fn missing(value: &Value<'_>, key: &Value<'_>) -> EvalError {
    match value {
        Value::List(_) => EvalError::new(format!("index out of bounds: {key}")),
        Value::Object(Object::Owned { .. }) => EvalError::new(format!("no such field '{key}'")),
        _ => EvalError::no_such_key(&key.to_string()),
    }
}

fn index(key: &Value<'_>) -> Result<i64, EvalError> {
    match key {
        Value::Int(i) => Ok(*i),
        Value::Uint(u) => {
            i64::try_from(*u).map_err(|_| EvalError::new(format!("unsupported index value {u} in list")))
        }
        Value::Double(d) if d.fract() == 0.0 && d.abs() < 9.2e18 => Ok(*d as i64),
        Value::Double(d) => Err(EvalError::new(format!("unsupported index value {d} in list"))),
        other => Err(EvalError::new(format!("unsupported index type '{}' in list", other.type_of().name()))),
    }
}

/// Returns the keys of a map, or the field names of an object.
pub fn keys<'a>(value: &Value<'a>) -> Vec<Value<'a>> {
    match value {
        Value::Map(map) => map.keys(),
        Value::Object(object) => object.names().into_iter().map(Value::String).collect(),
        _ => Vec::new(),
    }
}

/// Returns whether two values are equal: numbers by value; all other values of different types are unequal.
pub fn equal(a: &Value<'_>, b: &Value<'_>, budget: &mut Budget<'_>) -> Result<bool, EvalError> {
    budget.work(1)?;
    Ok(match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => equal(&a.value, &b.value, budget)?,
            _ => false,
        },
        (Value::Opaque(a), Value::Opaque(b)) => {
            let same_type = a.type_name() == b.type_name();
            match a.equal(b) {
                Some(equal) => equal,
                None if same_type => return Err(EvalError::NoSuchOverload),
                None => false,
            }
        }
        (Value::List(a), Value::List(b)) => lists_equal(a, b, budget)?,
        (Value::Map(_) | Value::Object(_), Value::Map(_) | Value::Object(_)) => maps_equal(a, b, budget)?,
        _ => match numbers(a, b) {
            Some(order) => order == Some(Ordering::Equal),
            None => false,
        },
    })
}

fn lists_equal(a: &List<'_>, b: &List<'_>, budget: &mut Budget<'_>) -> Result<bool, EvalError> {
    if a.len() != b.len() {
        return Ok(false);
    }
    match a.decl.and_then(|d| d.list_kind()) {
        Some(ListKind::Set) => return sets_equal(a, b, budget),
        Some(ListKind::Map(keys)) => return keyed_equal(a, b, keys, budget),
        _ => {}
    }
    for (x, y) in a.iter().zip(b.iter()) {
        if !equal(&x?, &y?, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the elements as JSON texts, by which they are compared.
fn texts(list: &List<'_>, budget: &mut Budget<'_>) -> Result<Vec<String>, EvalError> {
    budget.work(list.len())?;
    match &list.items {
        Items::Json(items) => Ok(items.iter().map(Json::to_string).collect()),
        Items::Owned(items) => items.iter().map(|v| Ok(v.to_json()?.to_string())).collect(),
    }
}

fn sets_equal(a: &List<'_>, b: &List<'_>, budget: &mut Budget<'_>) -> Result<bool, EvalError> {
    let a: BTreeSet<String> = texts(a, budget)?.into_iter().collect();
    let b: BTreeSet<String> = texts(b, budget)?.into_iter().collect();
    Ok(a == b)
}

/// Returns the identity of an element of a list that is a map by keys.
fn key_of(value: &Value<'_>, keys: &[Box<str>]) -> Result<String, EvalError> {
    let mut out = String::new();
    for key in keys {
        let escaped = crate::escaping::escape(key).unwrap_or_default();
        let part = lookup(value, &Value::string(escaped))?;
        out.push_str(&part.map_or(Ok(Json::Null), |p| p.to_json())?.to_string());
        out.push('\u{1}');
    }
    Ok(out)
}

fn keyed<'a>(
    list: &List<'a>,
    keys: &[Box<str>],
    budget: &mut Budget<'_>,
) -> Result<BTreeMap<String, Value<'a>>, EvalError> {
    budget.work(list.len())?;
    list.iter()
        .map(|item| {
            let item = item?;
            Ok((key_of(&item, keys)?, item))
        })
        .collect()
}

fn keyed_equal(
    a: &List<'_>,
    b: &List<'_>,
    keys: &[Box<str>],
    budget: &mut Budget<'_>,
) -> Result<bool, EvalError> {
    let (a, b) = (keyed(a, keys, budget)?, keyed(b, keys, budget)?);
    if a.len() != b.len() {
        return Ok(false);
    }
    for (key, x) in &a {
        let Some(y) = b.get(key) else { return Ok(false) };
        if !equal(x, y, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn maps_equal<'a>(a: &Value<'a>, b: &Value<'a>, budget: &mut Budget<'_>) -> Result<bool, EvalError> {
    if let (Value::Object(Object::Owned { name: a, .. }), Value::Object(Object::Owned { name: b, .. })) =
        (a, b)
        && a != b
    {
        return Ok(false);
    }
    let keys = keys(a);
    if keys.len() != self::keys(b).len() {
        return Ok(false);
    }
    for key in keys {
        let (Some(x), Some(y)) = (lookup(a, &key)?, lookup(b, &key)?) else { return Ok(false) };
        if !equal(&x, &y, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares numbers; `None` if one is not a number, `Some(None)` for NaN.
fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Option<Ordering>> {
    let whole = |v: &Value<'_>| match v {
        Value::Int(i) => Some(i128::from(*i)),
        Value::Uint(u) => Some(i128::from(*u)),
        _ => None,
    };
    Some(match (a, b) {
        (Value::Double(x), Value::Double(y)) => x.partial_cmp(y),
        (Value::Double(x), _) => compare_double(*x, whole(b)?),
        (_, Value::Double(y)) => compare_double(*y, whole(a)?).map(Ordering::reverse),
        _ => Some(whole(a)?.cmp(&whole(b)?)),
    })
}

fn compare_double(x: f64, y: i128) -> Option<Ordering> {
    if x.is_nan() {
        return None;
    }
    if x >= 1e20 {
        return Some(Ordering::Greater);
    }
    if x <= -1e20 {
        return Some(Ordering::Less);
    }
    let floor = x.floor() as i128;
    Some(floor.cmp(&y).then(if x.fract() == 0.0 { Ordering::Equal } else { Ordering::Greater }))
}

/// Returns the order of two values of comparable types.
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Ordering, EvalError> {
    Ok(match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
        (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
        _ => match numbers(a, b) {
            Some(order) => order.ok_or_else(|| EvalError::new("NaN values cannot be ordered"))?,
            None => return Err(EvalError::NoSuchOverload),
        },
    })
}

/// Returns whether a list contains a value, or a map a key.
pub fn contains<'a>(
    value: &Value<'a>,
    within: &Value<'a>,
    budget: &mut Budget<'_>,
) -> Result<bool, EvalError> {
    match within {
        Value::List(list) => {
            for item in list.iter() {
                if equal(&item?, value, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Map(Map::Open { entries, .. }) => {
            Ok(Key::lookup(value).is_some_and(|key| entries.contains_key(&key)))
        }
        Value::Map(_) | Value::Object(_) => Ok(lookup(within, value)?.is_some()),
        _ => Err(EvalError::NoSuchOverload),
    }
}

/// Concatenates two lists, as sets or as maps by keys if they are declared so.
pub fn concat<'a>(a: &List<'a>, b: &List<'a>, budget: &mut Budget<'_>) -> Result<List<'a>, EvalError> {
    budget.work(a.len() + b.len())?;
    let mut out = a.clone();
    match a.decl.and_then(|d| d.list_kind()) {
        Some(ListKind::Set) => {
            let mut seen: BTreeSet<String> = texts(a, budget)?.into_iter().collect();
            for (item, text) in b.iter().zip(texts(b, budget)?) {
                if seen.insert(text) {
                    out.push(item?)?;
                }
            }
            Ok(out)
        }
        Some(ListKind::Map(keys)) => {
            let mut items = a.to_vec()?;
            let mut places = BTreeMap::new();
            for (at, item) in items.iter().enumerate() {
                places.insert(key_of(item, keys)?, at);
            }
            for item in b.iter() {
                let item = item?;
                match places.get(&key_of(&item, keys)?) {
                    Some(at) => items[*at] = item,
                    None => {
                        places.insert(key_of(&item, keys)?, items.len());
                        items.push(item);
                    }
                }
            }
            Ok(List::new(items).declared(a.decl))
        }
        _ => {
            let mut items = a.to_vec()?;
            for item in b.iter() {
                items.push(item?);
            }
            Ok(List::new(items))
        }
    }
}

/// Returns whether a value is empty or zero, for `optional.ofNonZeroValue`.
pub fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null | Value::Optional(None) => true,
        Value::Bool(b) => !b,
        Value::Int(i) => *i == 0,
        Value::Uint(u) => *u == 0,
        Value::Double(d) => *d == 0.0,
        Value::Duration(d) => *d == 0,
        Value::String(s) => s.is_empty(),
        Value::Bytes(b) => b.is_empty(),
        Value::List(l) => l.is_empty(),
        Value::Map(m) => m.is_empty(),
        Value::Object(o) => o.names().is_empty(),
        _ => false,
    }
}

/// Returns an owned copy of a map's entries.
pub fn to_entries<'a>(map: &Map<'a>) -> Result<BTreeMap<Key<'a>, Value<'a>>, EvalError> {
    map.keys()
        .into_iter()
        .filter_map(|key| {
            let value = map.get(&key)?;
            Some(value.and_then(|v| Ok((Key::of(&key).ok_or(EvalError::NoSuchOverload)?, v))))
        })
        .collect()
}
