//! Set operations on lists.

use super::function::Function;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::ops;
use crate::value::{List, Value};

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "sets.contains",
        overloads: &[("list_sets_contains_list", "(list<T>,list<T>)bool")],
        call: |args, budget| both(args, |a, b| within(b, a, budget)),
    },
    Function {
        name: "sets.equivalent",
        overloads: &[("list_sets_equivalent_list", "(list<T>,list<T>)bool")],
        call: |args, budget| both(args, |a, b| Ok(within(b, a, budget)? && within(a, b, budget)?)),
    },
    Function {
        name: "sets.intersects",
        overloads: &[("list_sets_intersects_list", "(list<T>,list<T>)bool")],
        call: |args, budget| both(args, |a, b| intersect(a, b, budget)),
    },
];

fn both<'a>(
    args: &[Value<'a>],
    right: impl FnOnce(&List<'a>, &List<'a>) -> Result<bool, EvalError>,
) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::List(a), Value::List(b)] => right(a, b).map(Value::Bool),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn within<'a>(part: &List<'a>, whole: &List<'a>, budget: &mut Budget<'_>) -> Result<bool, EvalError> {
    let whole = Value::List(whole.clone());
    for item in part.iter() {
        if !ops::contains(&item?, &whole, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersect<'a>(a: &List<'a>, b: &List<'a>, budget: &mut Budget<'_>) -> Result<bool, EvalError> {
    let b = Value::List(b.clone());
    for item in a.iter() {
        if ops::contains(&item?, &b, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}
