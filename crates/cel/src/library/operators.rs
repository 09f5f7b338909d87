//! Arithmetic, comparisons, `in`, `size()`, and string predicates.

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp};

use super::function::Function;
use crate::ast::operator;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::ops;
use crate::time;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function { name: operator::CONDITIONAL, overloads: &[("conditional", "(bool,A,A)A")], call: built_in },
    Function { name: operator::AND, overloads: &[("logical_and", "(bool,bool)bool")], call: built_in },
    Function { name: operator::OR, overloads: &[("logical_or", "(bool,bool)bool")], call: built_in },
    Function { name: operator::NOT, overloads: &[("logical_not", "(bool)bool")], call: not },
    Function {
        name: operator::NOT_STRICTLY_FALSE,
        overloads: &[("not_strictly_false", "(bool)bool")],
        call: built_in,
    },
    Function { name: operator::EQUALS, overloads: &[("equals", "(A,A)bool")], call: equals },
    Function { name: operator::NOT_EQUALS, overloads: &[("not_equals", "(A,A)bool")], call: not_equals },
    Function {
        name: operator::ADD,
        overloads: &[
            ("add_bytes", "(bytes,bytes)bytes"),
            ("add_double", "(double,double)double"),
            ("add_duration_duration", "(duration,duration)duration"),
            ("add_duration_timestamp", "(duration,timestamp)timestamp"),
            ("add_timestamp_duration", "(timestamp,duration)timestamp"),
            ("add_int64", "(int,int)int"),
            ("add_list", "(list<A>,list<A>)list<A>"),
            ("add_string", "(string,string)string"),
            ("add_uint64", "(uint,uint)uint"),
        ],
        call: add,
    },
    Function {
        name: operator::SUBTRACT,
        overloads: &[
            ("subtract_double", "(double,double)double"),
            ("subtract_duration_duration", "(duration,duration)duration"),
            ("subtract_int64", "(int,int)int"),
            ("subtract_timestamp_duration", "(timestamp,duration)timestamp"),
            ("subtract_timestamp_timestamp", "(timestamp,timestamp)duration"),
            ("subtract_uint64", "(uint,uint)uint"),
        ],
        call: subtract,
    },
    Function {
        name: operator::MULTIPLY,
        overloads: &[
            ("multiply_double", "(double,double)double"),
            ("multiply_int64", "(int,int)int"),
            ("multiply_uint64", "(uint,uint)uint"),
        ],
        call: multiply,
    },
    Function {
        name: operator::DIVIDE,
        overloads: &[
            ("divide_double", "(double,double)double"),
            ("divide_int64", "(int,int)int"),
            ("divide_uint64", "(uint,uint)uint"),
        ],
        call: divide,
    },
    Function {
        name: operator::MODULO,
        overloads: &[("modulo_int64", "(int,int)int"), ("modulo_uint64", "(uint,uint)uint")],
        call: modulo,
    },
    Function {
        name: operator::NEGATE,
        overloads: &[("negate_double", "(double)double"), ("negate_int64", "(int)int")],
        call: negate,
    },
    Function {
        name: operator::INDEX,
        overloads: &[
            ("index_list", "(list<A>,int)A"),
            ("index_map", "(map<A,B>,A)B"),
            ("optional_list_index_int", "(optional<list<V>>,int)optional<V>"),
            ("optional_map_index_value", "(optional<map<K,V>>,K)optional<V>"),
        ],
        call: built_in,
    },
    Function {
        name: operator::OPT_INDEX,
        overloads: &[
            ("list_optindex_optional_int", "(list<V>,int)optional<V>"),
            ("optional_list_optindex_optional_int", "(optional<list<V>>,int)optional<V>"),
            ("map_optindex_optional_value", "(map<K,V>,K)optional<V>"),
            ("optional_map_optindex_optional_value", "(optional<map<K,V>>,K)optional<V>"),
        ],
        call: built_in,
    },
    Function {
        name: operator::IN,
        overloads: &[("in_list", "(A,list<A>)bool"), ("in_map", "(A,map<A,B>)bool")],
        call: within,
    },
    Function {
        name: operator::LESS,
        overloads: &[
            ("less_bool", "(bool,bool)bool"),
            ("less_int64", "(int,int)bool"),
            ("less_int64_double", "(int,double)bool"),
            ("less_int64_uint64", "(int,uint)bool"),
            ("less_uint64", "(uint,uint)bool"),
            ("less_uint64_double", "(uint,double)bool"),
            ("less_uint64_int64", "(uint,int)bool"),
            ("less_double", "(double,double)bool"),
            ("less_double_int64", "(double,int)bool"),
            ("less_double_uint64", "(double,uint)bool"),
            ("less_string", "(string,string)bool"),
            ("less_bytes", "(bytes,bytes)bool"),
            ("less_timestamp", "(timestamp,timestamp)bool"),
            ("less_duration", "(duration,duration)bool"),
        ],
        call: less,
    },
    Function {
        name: operator::LESS_EQUALS,
        overloads: &[
            ("less_equals_bool", "(bool,bool)bool"),
            ("less_equals_int64", "(int,int)bool"),
            ("less_equals_int64_double", "(int,double)bool"),
            ("less_equals_int64_uint64", "(int,uint)bool"),
            ("less_equals_uint64", "(uint,uint)bool"),
            ("less_equals_uint64_double", "(uint,double)bool"),
            ("less_equals_uint64_int64", "(uint,int)bool"),
            ("less_equals_double", "(double,double)bool"),
            ("less_equals_double_int64", "(double,int)bool"),
            ("less_equals_double_uint64", "(double,uint)bool"),
            ("less_equals_string", "(string,string)bool"),
            ("less_equals_bytes", "(bytes,bytes)bool"),
            ("less_equals_timestamp", "(timestamp,timestamp)bool"),
            ("less_equals_duration", "(duration,duration)bool"),
        ],
        call: less_equals,
    },
    Function {
        name: operator::GREATER,
        overloads: &[
            ("greater_bool", "(bool,bool)bool"),
            ("greater_int64", "(int,int)bool"),
            ("greater_int64_double", "(int,double)bool"),
            ("greater_int64_uint64", "(int,uint)bool"),
            ("greater_uint64", "(uint,uint)bool"),
            ("greater_uint64_double", "(uint,double)bool"),
            ("greater_uint64_int64", "(uint,int)bool"),
            ("greater_double", "(double,double)bool"),
            ("greater_double_int64", "(double,int)bool"),
            ("greater_double_uint64", "(double,uint)bool"),
            ("greater_string", "(string,string)bool"),
            ("greater_bytes", "(bytes,bytes)bool"),
            ("greater_timestamp", "(timestamp,timestamp)bool"),
            ("greater_duration", "(duration,duration)bool"),
        ],
        call: greater,
    },
    Function {
        name: operator::GREATER_EQUALS,
        overloads: &[
            ("greater_equals_bool", "(bool,bool)bool"),
            ("greater_equals_int64", "(int,int)bool"),
            ("greater_equals_int64_double", "(int,double)bool"),
            ("greater_equals_int64_uint64", "(int,uint)bool"),
            ("greater_equals_uint64", "(uint,uint)bool"),
            ("greater_equals_uint64_double", "(uint,double)bool"),
            ("greater_equals_uint64_int64", "(uint,int)bool"),
            ("greater_equals_double", "(double,double)bool"),
            ("greater_equals_double_int64", "(double,int)bool"),
            ("greater_equals_double_uint64", "(double,uint)bool"),
            ("greater_equals_string", "(string,string)bool"),
            ("greater_equals_bytes", "(bytes,bytes)bool"),
            ("greater_equals_timestamp", "(timestamp,timestamp)bool"),
            ("greater_equals_duration", "(duration,duration)bool"),
        ],
        call: greater_equals,
    },
    Function {
        name: "size",
        overloads: &[
            ("size_bytes", "(bytes)int"),
            ("bytes_size", "bytes.()int"),
            ("size_list", "(list<A>)int"),
            ("list_size", "list<A>.()int"),
            ("size_map", "(map<A,B>)int"),
            ("map_size", "map<A,B>.()int"),
            ("size_string", "(string)int"),
            ("string_size", "string.()int"),
        ],
        call: size,
    },
    Function {
        name: "contains",
        overloads: &[("contains_string", "string.(string)bool")],
        call: |args, _| strings(args, |a, b| a.contains(b)),
    },
    Function {
        name: "startsWith",
        overloads: &[("starts_with_string", "string.(string)bool")],
        call: |args, _| strings(args, |a, b| a.starts_with(b)),
    },
    Function {
        name: "endsWith",
        overloads: &[("ends_with_string", "string.(string)bool")],
        call: |args, _| strings(args, |a, b| a.ends_with(b)),
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Placeholder of operators that the evaluator implements.
fn built_in<'a>(_: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    Err(EvalError::NoSuchOverload)
}

fn not<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match args {
        [Value::Bool(b)] => Ok(Value::Bool(!b)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn pair<'v, 'a>(args: &'v [Value<'a>]) -> Result<(&'v Value<'a>, &'v Value<'a>), EvalError> {
    if let [a, b] = args { Ok((a, b)) } else { Err(EvalError::NoSuchOverload) }
}

fn equals<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (a, b) = pair(args)?;
    ops::equal(a, b, budget).map(Value::Bool)
}

fn not_equals<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (a, b) = pair(args)?;
    ops::equal(a, b, budget).map(|equal| Value::Bool(!equal))
}

fn within<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (a, b) = pair(args)?;
    ops::contains(a, b, budget).map(Value::Bool)
}

fn ordered<'a>(args: &[Value<'a>], right: impl Fn(Ordering) -> bool) -> Outcome<'a> {
    let (a, b) = pair(args)?;
    ops::compare(a, b).map(|order| Value::Bool(right(order)))
}

fn less<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    ordered(args, Ordering::is_lt)
}

fn less_equals<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    ordered(args, Ordering::is_le)
}

fn greater<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    ordered(args, Ordering::is_gt)
}

fn greater_equals<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    ordered(args, Ordering::is_ge)
}

fn size<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match args {
        [Value::Opaque(_)] => Err(EvalError::NoSuchOverload),
        [one] => one.size().map(|n| Value::Int(n as i64)).ok_or(EvalError::NoSuchOverload),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn strings<'a>(args: &[Value<'a>], right: impl Fn(&str, &str) -> bool) -> Outcome<'a> {
    match args {
        [Value::String(a), Value::String(b)] => Ok(Value::Bool(right(a, b))),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn int<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Int).ok_or_else(|| EvalError::new("integer overflow"))
}

fn uint<'a>(result: Option<u64>) -> Outcome<'a> {
    result.map(Value::Uint).ok_or_else(|| EvalError::new("unsigned integer overflow"))
}

fn duration<'a>(result: Option<i64>) -> Outcome<'a> {
    result.map(Value::Duration).ok_or_else(|| EvalError::new("duration overflow"))
}

fn shifted<'a>(t: Timestamp, nanos: Option<i64>) -> Outcome<'a> {
    let shifted = nanos.and_then(|n| t.checked_add(SignedDuration::from_nanos(n)).ok());
    shifted.and_then(time::in_range).map(Value::Timestamp).ok_or_else(|| EvalError::new("timestamp overflow"))
}

/// Adds two values; `sum()` uses it, too.
pub fn add<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    match pair(args)? {
        (Value::Int(a), Value::Int(b)) => int(a.checked_add(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_add(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => {
            budget.work((a.len() + b.len()) / 10)?;
            Ok(Value::string(format!("{}{}", &**a, &**b)))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.work((a.len() + b.len()) / 10)?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_add(*b)),
        (Value::Timestamp(t), Value::Duration(d)) | (Value::Duration(d), Value::Timestamp(t)) => {
            shifted(*t, Some(*d))
        }
        (Value::List(a), Value::List(b)) => ops::concat(a, b, budget).map(Value::List),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn subtract<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match pair(args)? {
        (Value::Int(a), Value::Int(b)) => int(a.checked_sub(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_sub(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_sub(*b)),
        (Value::Timestamp(a), Value::Duration(b)) => shifted(*a, b.checked_neg()),
        (Value::Timestamp(a), Value::Timestamp(b)) => {
            duration(i64::try_from(a.as_nanosecond() - b.as_nanosecond()).ok())
        }
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn multiply<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match pair(args)? {
        (Value::Int(a), Value::Int(b)) => int(a.checked_mul(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_mul(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn divide<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match pair(args)? {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            Err(EvalError::new("division by zero"))
        }
        (Value::Int(a), Value::Int(b)) => int(a.checked_div(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_div(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn modulo<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match pair(args)? {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => {
            Err(EvalError::new("modulus by zero"))
        }
        (Value::Int(a), Value::Int(b)) => int(a.checked_rem(*b)),
        (Value::Uint(a), Value::Uint(b)) => uint(a.checked_rem(*b)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn negate<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match args {
        [Value::Int(i)] => int(i.checked_neg()),
        [Value::Double(d)] => Ok(Value::Double(-d)),
        _ => Err(EvalError::NoSuchOverload),
    }
}
