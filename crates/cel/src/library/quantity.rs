//! Quantities such as `1.5Gi`.

use std::sync::Arc;

use knarr_apimachinery::quantity::{Format, Quantity};

use super::function::Function;
use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "quantity",
        overloads: &[("string_to_quantity", "(string)kubernetes.Quantity")],
        call: |args, _| match args {
            [Value::String(s)] => Quantity::parse(s).map(of).map_err(|e| EvalError::new(e.to_string())),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "isQuantity",
        overloads: &[("is_quantity_string", "(string)bool")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Bool(Quantity::parse(s).is_ok())),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "sign",
        overloads: &[("quantity_sign", "(kubernetes.Quantity)int")],
        call: |args, _| one(args, |q| Ok(Value::Int(q.signum().into()))),
    },
    Function {
        name: "isGreaterThan",
        overloads: &[("quantity_is_greater_than", "kubernetes.Quantity.(kubernetes.Quantity)bool")],
        call: |args, _| two(args, |a, b| Ok(Value::Bool(a > b))),
    },
    Function {
        name: "isLessThan",
        overloads: &[("quantity_is_less_than", "kubernetes.Quantity.(kubernetes.Quantity)bool")],
        call: |args, _| two(args, |a, b| Ok(Value::Bool(a < b))),
    },
    Function {
        name: "compareTo",
        overloads: &[("quantity_compare_to", "kubernetes.Quantity.(kubernetes.Quantity)int")],
        call: |args, _| two(args, |a, b| Ok(Value::Int(a.cmp(b) as i64))),
    },
    Function {
        name: "asApproximateFloat",
        overloads: &[("quantity_get_float", "kubernetes.Quantity.()double")],
        call: |args, _| one(args, |q| Ok(Value::Double(q.as_f64()))),
    },
    Function {
        name: "asInteger",
        overloads: &[("quantity_get_int", "kubernetes.Quantity.()int")],
        call: |args, _| {
            one(args, |q| {
                whole(q).map(Value::Int).ok_or_else(|| EvalError::new("cannot convert value to integer"))
            })
        },
    },
    Function {
        name: "isInteger",
        overloads: &[("quantity_is_integer", "kubernetes.Quantity.()bool")],
        call: |args, _| one(args, |q| Ok(Value::Bool(whole(q).is_some()))),
    },
    Function {
        name: "add",
        overloads: &[
            ("quantity_add", "kubernetes.Quantity.(kubernetes.Quantity)kubernetes.Quantity"),
            ("quantity_add_int", "kubernetes.Quantity.(int)kubernetes.Quantity"),
        ],
        call: |args, _| changed(args, Quantity::add),
    },
    Function {
        name: "sub",
        overloads: &[
            ("quantity_sub", "kubernetes.Quantity.(kubernetes.Quantity)kubernetes.Quantity"),
            ("quantity_sub_int", "kubernetes.Quantity.(int)kubernetes.Quantity"),
        ],
        call: |args, _| changed(args, Quantity::sub),
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Returns a quantity as a value, for callers that pass objects to expressions.
pub fn of<'a>(quantity: Quantity) -> Value<'a> {
    Value::Opaque(Opaque::Quantity(Arc::new(quantity)))
}

fn one<'a>(args: &[Value<'a>], f: impl Fn(&Quantity) -> Outcome<'a>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Quantity(q))] => f(q),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn two<'a>(args: &[Value<'a>], f: impl Fn(&Quantity, &Quantity) -> Outcome<'a>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Quantity(a)), Value::Opaque(Opaque::Quantity(b))] => f(a, b),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn changed<'a>(args: &[Value<'a>], f: impl Fn(&mut Quantity, &Quantity)) -> Outcome<'a> {
    let (mut out, other) = match args {
        [Value::Opaque(Opaque::Quantity(a)), Value::Opaque(Opaque::Quantity(b))] => {
            ((**a).clone(), (**b).clone())
        }
        [Value::Opaque(Opaque::Quantity(a)), Value::Int(i)] => {
            ((**a).clone(), Quantity::new(*i, Format::DecimalExponent))
        }
        _ => return Err(EvalError::NoSuchOverload),
    };
    f(&mut out, &other);
    Ok(of(out))
}

fn whole(quantity: &Quantity) -> Option<i64> {
    const NANOS: i128 = 1_000_000_000;
    let nanos = quantity.nanos();
    if nanos % NANOS == 0 { i64::try_from(nanos / NANOS).ok() } else { None }
}
