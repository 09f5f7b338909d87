//! Optional values: creation, tests, access.

use super::function::Function;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::ops;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function { name: "optional.of", overloads: &[("optional_of", "(V)optional<V>")], call: of },
    Function {
        name: "optional.ofNonZeroValue",
        overloads: &[("optional_ofNonZeroValue", "(V)optional<V>")],
        call: of_non_zero,
    },
    Function {
        name: "optional.none",
        overloads: &[("optional_none", "()optional<V>")],
        call: |_, _| Ok(Value::none()),
    },
    Function { name: "value", overloads: &[("optional_value", "optional<V>.()V")], call: value },
    Function { name: "hasValue", overloads: &[("optional_hasValue", "optional<V>.()bool")], call: has_value },
    Function {
        name: "or",
        overloads: &[("optional_or_optional", "optional<V>.(optional<V>)optional<V>")],
        call: built_in,
    },
    Function {
        name: "orValue",
        overloads: &[("optional_orValue_value", "optional<V>.(V)V")],
        call: built_in,
    },
    Function { name: "last", overloads: &[("list_last", "list<V>.()optional<V>")], call: last },
    Function { name: "first", overloads: &[("list_first", "list<V>.()optional<V>")], call: first },
    Function {
        name: "optional.unwrap",
        overloads: &[("optional_unwrap", "(list<optional<V>>)list<V>")],
        call: unwrap,
    },
    Function {
        name: "unwrapOpt",
        overloads: &[("optional_unwrapOpt", "list<optional<V>>.()list<V>")],
        call: unwrap,
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Placeholder of functions that the evaluator implements.
fn built_in<'a>(_: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    Err(EvalError::NoSuchOverload)
}

fn of<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    args.first().cloned().map(Value::some).ok_or(EvalError::NoSuchOverload)
}

fn of_non_zero<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let value = args.first().ok_or(EvalError::NoSuchOverload)?;
    Ok(if ops::is_zero(value) { Value::none() } else { Value::some(value.clone()) })
}

fn value<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match args {
        [Value::Optional(Some(held))] => Ok(held.value.clone()),
        [Value::Optional(None)] => Err(EvalError::new("optional.none() dereference")),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn has_value<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match args {
        [Value::Optional(held)] => Ok(Value::Bool(held.is_some())),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn at<'a>(args: &[Value<'a>], index: impl Fn(usize) -> usize) -> Outcome<'a> {
    let [Value::List(list)] = args else { return Err(EvalError::NoSuchOverload) };
    match list.get(index(list.len())) {
        Some(item) => Ok(Value::some(item?)),
        None => Ok(Value::none()),
    }
}

fn last<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    at(args, |len| len.wrapping_sub(1))
}

fn first<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    at(args, |_| 0)
}

fn unwrap<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let [Value::List(list)] = args else { return Err(EvalError::NoSuchOverload) };
    budget.work(list.len())?;
    let mut out = Vec::new();
    for item in list.iter() {
        match item? {
            Value::Optional(Some(held)) => out.push(held.value.clone()),
            Value::Optional(None) => {}
            other => return Err(EvalError::new(format!("value {other} is not optional"))),
        }
    }
    Ok(Value::list(out))
}
