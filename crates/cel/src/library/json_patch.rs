//! Escaping of keys in the paths of JSON patches.

use super::function::Function;
use crate::error::EvalError;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[Function {
    name: "jsonpatch.escapeKey",
    overloads: &[("string_jsonpatch_escapeKey_string", "(string)string")],
    call: |args, _| match args {
        [Value::String(s)] => Ok(Value::string(s.replace('~', "~0").replace('/', "~1"))),
        _ => Err(EvalError::NoSuchOverload),
    },
}];
