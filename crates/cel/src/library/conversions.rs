//! Conversions between types.

use jiff::Timestamp;

use super::function::Function;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::time;
use crate::types::Type;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function { name: "type", overloads: &[("type", "(A)type<A>")], call: type_of },
    Function {
        name: "bool",
        overloads: &[("bool_to_bool", "(bool)bool"), ("string_to_bool", "(string)bool")],
        call: to_bool,
    },
    Function {
        name: "bytes",
        overloads: &[("bytes_to_bytes", "(bytes)bytes"), ("string_to_bytes", "(string)bytes")],
        call: to_bytes,
    },
    Function {
        name: "double",
        overloads: &[
            ("double_to_double", "(double)double"),
            ("int64_to_double", "(int)double"),
            ("string_to_double", "(string)double"),
            ("uint64_to_double", "(uint)double"),
        ],
        call: to_double,
    },
    Function {
        name: "duration",
        overloads: &[
            ("duration_to_duration", "(duration)duration"),
            ("string_to_duration", "(string)duration"),
        ],
        call: to_duration,
    },
    Function {
        name: "dyn",
        overloads: &[("to_dyn", "(A)dyn")],
        call: |args, _| args.first().cloned().ok_or(EvalError::NoSuchOverload),
    },
    Function {
        name: "int",
        overloads: &[
            ("int64_to_int64", "(int)int"),
            ("double_to_int64", "(double)int"),
            ("duration_to_int64", "(duration)int"),
            ("string_to_int64", "(string)int"),
            ("timestamp_to_int64", "(timestamp)int"),
            ("uint64_to_int64", "(uint)int"),
        ],
        call: to_int,
    },
    Function {
        name: "string",
        overloads: &[
            ("string_to_string", "(string)string"),
            ("bool_to_string", "(bool)string"),
            ("bytes_to_string", "(bytes)string"),
            ("double_to_string", "(double)string"),
            ("duration_to_string", "(duration)string"),
            ("int64_to_string", "(int)string"),
            ("timestamp_to_string", "(timestamp)string"),
            ("uint64_to_string", "(uint)string"),
        ],
        call: to_string,
    },
    Function {
        name: "timestamp",
        overloads: &[
            ("timestamp_to_timestamp", "(timestamp)timestamp"),
            ("int64_to_timestamp", "(int)timestamp"),
            ("string_to_timestamp", "(string)timestamp"),
        ],
        call: to_timestamp,
    },
    Function {
        name: "uint",
        overloads: &[
            ("uint64_to_uint64", "(uint)uint"),
            ("double_to_uint64", "(double)uint"),
            ("int64_to_uint64", "(int)uint"),
            ("string_to_uint64", "(string)uint"),
        ],
        call: to_uint,
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

fn one<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v Value<'a>, EvalError> {
    if let [one] = args { Ok(one) } else { Err(EvalError::NoSuchOverload) }
}

fn type_of<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    Ok(Value::Type(match one(args)? {
        Value::Type(_) => Type::Type(None),
        value => value.type_of(),
    }))
}

fn syntax(function: &str, text: &str) -> EvalError {
    EvalError::new(format!("strconv.{function}: parsing {text:?}: invalid syntax"))
}

fn to_bool<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    Ok(Value::Bool(match one(args)? {
        Value::Bool(b) => *b,
        Value::String(s) => match &**s {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
            "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
            other => {
                return Err(EvalError::new(format!(
                    "type conversion error from 'string' to 'bool': {other}"
                )));
            }
        },
        _ => return Err(EvalError::NoSuchOverload),
    }))
}

fn to_bytes<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match one(args)? {
        Value::Bytes(b) => Ok(Value::Bytes(b.clone())),
        Value::String(s) => Ok(Value::Bytes(s.as_bytes().into())),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn to_double<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    Ok(Value::Double(match one(args)? {
        Value::Double(d) => *d,
        Value::Int(i) => *i as f64,
        Value::Uint(u) => *u as f64,
        Value::String(s) => s.parse().map_err(|_| syntax("ParseFloat", s))?,
        _ => return Err(EvalError::NoSuchOverload),
    }))
}

fn to_duration<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match one(args)? {
        Value::Duration(d) => Ok(Value::Duration(*d)),
        Value::String(s) => time::parse_duration(s)
            .map(Value::Duration)
            .ok_or_else(|| EvalError::new(format!("time: invalid duration {:?}", &**s))),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn to_int<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let overflow = || EvalError::new("integer overflow");
    Ok(Value::Int(match one(args)? {
        Value::Int(i) => *i,
        Value::Uint(u) => i64::try_from(*u).map_err(|_| overflow())?,
        Value::Double(d) if *d > i64::MIN as f64 && *d < i64::MAX as f64 => *d as i64,
        Value::Double(_) => return Err(overflow()),
        Value::Duration(n) => *n,
        Value::Timestamp(t) => t.as_second(),
        Value::String(s) => s.parse().map_err(|_| syntax("ParseInt", s))?,
        _ => return Err(EvalError::NoSuchOverload),
    }))
}

fn to_uint<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let overflow = || EvalError::new("unsigned integer overflow");
    Ok(Value::Uint(match one(args)? {
        Value::Uint(u) => *u,
        Value::Int(i) => u64::try_from(*i).map_err(|_| overflow())?,
        Value::Double(d) if *d >= 0.0 && *d < u64::MAX as f64 => *d as u64,
        Value::Double(_) => return Err(overflow()),
        Value::String(s) => s.parse().map_err(|_| syntax("ParseUint", s))?,
        _ => return Err(EvalError::NoSuchOverload),
    }))
}

/// Formats a double as Go's `%g` does.
pub fn double_string(d: f64) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let exponent = if d == 0.0 { 0 } else { d.abs().log10().floor() as i32 };
    if (-4..21).contains(&exponent) {
        return format!("{d}");
    }
    let text = format!("{d:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

fn to_string<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    Ok(Value::string(match one(args)? {
        Value::String(s) => return Ok(Value::String(s.clone())),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => u.to_string(),
        Value::Double(d) => double_string(*d),
        Value::Bytes(b) => String::from_utf8(b.to_vec())
            .map_err(|_| EvalError::new("invalid UTF-8 in bytes, cannot convert to string"))?,
        Value::Timestamp(t) => t.to_string(),
        Value::Duration(n) => time::duration_string(*n),
        _ => return Err(EvalError::NoSuchOverload),
    }))
}

fn to_timestamp<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match one(args)? {
        Value::Timestamp(t) => Ok(Value::Timestamp(*t)),
        Value::Int(i) => Timestamp::from_second(*i)
            .ok()
            .and_then(time::in_range)
            .map(Value::Timestamp)
            .ok_or_else(|| EvalError::new("timestamp overflow")),
        Value::String(s) => time::parse_timestamp(s).map(Value::Timestamp),
        _ => Err(EvalError::NoSuchOverload),
    }
}
