//! Functions by which comprehensions with two variables build maps.

use super::function::Function;
use crate::error::EvalError;
use crate::ops;
use crate::value::{Key, Map, Value};

pub const FUNCTIONS: &[Function] = &[Function {
    name: "cel.@mapInsert",
    overloads: &[
        ("@mapInsert_map_key_value", "(map<K,V>,K,V)map<K,V>"),
        ("@mapInsert_map_map", "(map<K,V>,map<K,V>)map<K,V>"),
    ],
    call: |args, _| match args {
        [map, rest @ ..] => insert(map.clone(), rest.to_vec()),
        [] => Err(EvalError::NoSuchOverload),
    },
}];

/// Adds to the map a key and its value, or the entries of another map.
pub fn insert<'a>(map: Value<'a>, added: Vec<Value<'a>>) -> Result<Value<'a>, EvalError> {
    let Value::Map(map) = map else { return Err(EvalError::NoSuchOverload) };
    let added: Vec<(Value<'a>, Value<'a>)> = match added.as_slice() {
        [key, value] => vec![(key.clone(), value.clone())],
        [entries @ (Value::Map(_) | Value::Object(_))] => {
            let mut pairs = Vec::new();
            for key in ops::keys(entries) {
                if let Some(value) = ops::lookup(entries, &key)? {
                    pairs.push((key, value));
                }
            }
            pairs
        }
        _ => return Err(EvalError::NoSuchOverload),
    };
    let mut map = map.into_owned()?;
    for (key, value) in added {
        let Some(own) = Key::of(&key) else { return Err(EvalError::new("unsupported key type")) };
        if !map.insert_new(own, value) {
            return Err(EvalError::new(format!("insert failed: key {key} already exists")));
        }
    }
    Ok(Value::Map(Map::from(map)))
}
