//! Limits of numbers, compared and formatted as in Go.

use serde_json::Value;

use super::outcome::{Failure, Outcome};
use super::{Limits, Schema};

/// Formats a float as Go's `%v` does.
pub(super) fn go_float(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    number.to_string()
}

/// Returns whether a float is a whole number that JSON can represent.
pub(super) fn is_whole(number: f64) -> bool {
    number.is_finite() && number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0
}

fn bound(value: &Value, bound: f64) -> (f64, String) {
    // An integer is compared with the limit truncated to an integer.
    if value.is_i64() { (bound.trunc(), (bound as i64).to_string()) } else { (bound, go_float(bound)) }
}

pub(super) fn check(value: &Value, schema: &Schema, path: &str, found: &mut Outcome) {
    found.checks += 1;
    let Some(number) = value.as_f64() else { return };
    let limits: &Limits = &schema.limits;
    range(value, schema, path, found);
    if let Some(factor) = limits.multiple_of {
        multiple_of(value, number, factor, path, found);
    }
    if let Some(maximum) = limits.maximum {
        let (limit, text) = bound(value, maximum);
        if number > limit || limits.exclusive_maximum && number >= limit {
            let or_equal = if limits.exclusive_maximum { "" } else { " or equal to" };
            let why = format!("should be less than{or_equal} {text}");
            found.fail(Failure::invalid(path, value.clone(), &why));
        }
    }
    if let Some(minimum) = limits.minimum {
        let (limit, text) = bound(value, minimum);
        if number < limit || limits.exclusive_minimum && number <= limit {
            let or_equal = if limits.exclusive_minimum { "" } else { " or equal to" };
            let why = format!("should be greater than{or_equal} {text}");
            found.fail(Failure::invalid(path, value.clone(), &why));
        }
    }
}

fn multiple_of(value: &Value, number: f64, factor: f64, path: &str, found: &mut Outcome) {
    if factor <= 0.0 {
        found.fail(Failure::combination(format!(
            "factor MultipleOf declared for {path} must be positive: {}",
            go_float(factor)
        )));
        return;
    }
    let (fits, text) = match (value.as_i64(), factor as i64) {
        (Some(int), whole) if whole != 0 => (int % whole == 0, whole.to_string()),
        _ => (is_whole(number / factor), go_float(factor)),
    };
    if !fits {
        found.fail(Failure::invalid(path, value.clone(), &format!("should be a multiple of {text}")));
    }
}

/// Checks that the number fits the type and format of the schema.
fn range(value: &Value, schema: &Schema, path: &str, found: &mut Outcome) {
    if schema.int_or_string || schema.ty != "integer" {
        return;
    }
    let fits = match (value.as_i64(), schema.format.as_str()) {
        (Some(int), "int32") => i32::try_from(int).is_ok(),
        (Some(_), _) => true,
        (None, _) => value.as_f64().is_some_and(is_whole),
    };
    if !fits {
        let format = match schema.format.as_str() {
            format @ ("int32" | "int64") => format!("with format {format}"),
            _ => "(default format)".to_owned(),
        };
        found.fail(Failure::combination(format!("Checked value must be of type integer {format} in {path}")));
    }
}
