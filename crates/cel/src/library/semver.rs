//! Semantic versions (semver.org 2.0).

use std::cmp::Ordering;
use std::sync::Arc;

use super::function::Function;
use crate::error::EvalError;
use crate::opaque::Opaque;
pub use crate::opaque::semver::Semver;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "semver",
        overloads: &[
            ("string_to_semver", "(string)kubernetes.Semver"),
            ("string_bool_to_semver", "(string,bool)kubernetes.Semver"),
        ],
        call: |args, _| {
            let version = parse_args(args)?.map_err(EvalError::new)?;
            Ok(of(version))
        },
    },
    Function {
        name: "isSemver",
        overloads: &[("is_semver_string", "(string)bool"), ("is_semver_string_bool", "(string,bool)bool")],
        call: |args, _| Ok(Value::Bool(parse_args(args)?.is_ok())),
    },
    Function {
        name: "isGreaterThan",
        overloads: &[("semver_is_greater_than", "kubernetes.Semver.(kubernetes.Semver)bool")],
        call: |args, _| two(args).map(|order| Value::Bool(order.is_gt())),
    },
    Function {
        name: "isLessThan",
        overloads: &[("semver_is_less_than", "kubernetes.Semver.(kubernetes.Semver)bool")],
        call: |args, _| two(args).map(|order| Value::Bool(order.is_lt())),
    },
    Function {
        name: "compareTo",
        overloads: &[("semver_compare_to", "kubernetes.Semver.(kubernetes.Semver)int")],
        call: |args, _| two(args).map(|order| Value::Int(order as i64)),
    },
    Function {
        name: "major",
        overloads: &[("semver_major", "kubernetes.Semver.()int")],
        call: |args, _| part(args, 0),
    },
    Function {
        name: "minor",
        overloads: &[("semver_minor", "kubernetes.Semver.()int")],
        call: |args, _| part(args, 1),
    },
    Function {
        name: "patch",
        overloads: &[("semver_patch", "kubernetes.Semver.()int")],
        call: |args, _| part(args, 2),
    },
];

/// Returns a version as a value, for callers that pass objects to expressions.
pub fn of<'a>(version: Semver) -> Value<'a> {
    Value::Opaque(Opaque::Semver(Arc::new(version)))
}

fn parse_args(args: &[Value<'_>]) -> Result<Result<Semver, String>, EvalError> {
    match args {
        [Value::String(s)] | [Value::String(s), Value::Bool(false)] => Ok(Semver::parse(s)),
        [Value::String(s), Value::Bool(true)] => Ok(Semver::parse_tolerant(s)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn two(args: &[Value<'_>]) -> Result<Ordering, EvalError> {
    match args {
        [Value::Opaque(Opaque::Semver(a)), Value::Opaque(Opaque::Semver(b))] => Ok(a.compare(b)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn part<'a>(args: &[Value<'a>], index: usize) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Opaque(Opaque::Semver(v))] => Ok(Value::Int(v.numbers[index] as i64)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered() {
        let order =
            ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0"];
        for pair in order.windows(2) {
            let (a, b) = (Semver::parse(pair[0]).unwrap(), Semver::parse(pair[1]).unwrap());
            assert_eq!(a.compare(&b), Ordering::Less, "{pair:?}");
        }
        for bad in ["", "1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.x", "v1.2.3", "1.2.3+a_b"] {
            assert!(Semver::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Semver::parse_tolerant("v01.2").unwrap().numbers, [1, 2, 0]);
        assert!(Semver::parse_tolerant("1.2-rc").is_err());
    }
}
