//! `'%s is %d'.format([a, b])`.

use super::conversions::double_string;
use super::function::Function;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::time;
use crate::value::{List, Value};

pub const FUNCTIONS: &[Function] =
    &[Function { name: "format", overloads: &[("string_format", "string.(list<dyn>)string")], call: format }];

/// The default and the maximum number of decimals.
const PRECISION: usize = 6;
const MOST_DECIMALS: usize = 1000;

/// One clause of a format: `%.2f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clause {
    pub verb: char,
    pub precision: Option<usize>,
}

/// A piece of a format: literal text or a clause.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'f> {
    Text(&'f str),
    Clause(Clause),
}

/// Splits a format into its pieces.
pub fn pieces(format: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut out = Vec::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        if at > 0 {
            out.push(Piece::Text(&rest[..at]));
        }
        rest = &rest[at + 1..];
        if rest.starts_with('%') {
            out.push(Piece::Text(&rest[..1]));
            rest = &rest[1..];
            continue;
        }
        if rest.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        let (clause, after) =
            clause(rest).map_err(|why| format!("could not parse formatting clause: {why}"))?;
        out.push(Piece::Clause(clause));
        rest = after;
    }
    if !rest.is_empty() {
        out.push(Piece::Text(rest));
    }
    Ok(out)
}

fn clause(text: &str) -> Result<(Clause, &str), String> {
    let (precision, rest) = match text.strip_prefix('.') {
        None => (None, text),
        Some(after) => {
            let digits = after.find(|c: char| !c.is_ascii_digit());
            let Some(digits) = digits else {
                return Err(
                    "error while parsing precision: could not find end of precision specifier".to_owned()
                );
            };
            let precision: usize = after[..digits].parse().map_err(|_| {
                format!(
                    "error while parsing precision: error while converting precision to integer: \
                     strconv.Atoi: parsing {:?}: invalid syntax",
                    &after[..digits]
                )
            })?;
            if precision > MOST_DECIMALS {
                return Err(format!(
                    "error while parsing precision: precision {precision} exceeds maximum allowed precision \
                     {MOST_DECIMALS}"
                ));
            }
            (Some(precision), &after[digits..])
        }
    };
    match rest.chars().next() {
        Some(verb @ ('s' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o')) => {
            Ok((Clause { verb, precision }, &rest[1..]))
        }
        Some(other) => Err(format!("unrecognized formatting clause \"{other}\"")),
        None => Err("unexpected end of string".to_owned()),
    }
}

/// Returns the error for a value that a clause cannot format.
pub fn refusal(verb: char, type_name: &str) -> String {
    let rule = match verb {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
             and timestamps"
        }
    };
    format!("error during formatting: {rule}, was given {type_name}")
}

fn format<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Result<Value<'a>, EvalError> {
    let [Value::String(text), Value::List(list)] = args else { return Err(EvalError::NoSuchOverload) };
    let mut out = String::new();
    let mut index = 0;
    for piece in pieces(text).map_err(EvalError::new)? {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Clause(clause) => {
                let Some(arg) = list.get(index) else {
                    return Err(EvalError::new(format!("index {index} out of range")));
                };
                index += 1;
                let before = out.len();
                show(&arg?, clause, &mut out, budget)?;
                budget.work((out.len() - before) / 10 + 1)?;
            }
        }
    }
    Ok(Value::string(out))
}

fn show(
    value: &Value<'_>,
    clause: Clause,
    out: &mut String,
    budget: &mut Budget<'_>,
) -> Result<(), EvalError> {
    let refuse = || EvalError::new(refusal(clause.verb, value.type_of().name()));
    match (clause.verb, value) {
        ('s', _) => return text(value, false, out, budget),
        ('d', Value::Int(i)) => out.push_str(&i.to_string()),
        ('d', Value::Uint(u)) => out.push_str(&u.to_string()),
        ('f' | 'e', _) => {
            let number = match value {
                Value::Double(d) => *d,
                Value::String(s) => match &**s {
                    "NaN" => f64::NAN,
                    "Infinity" => f64::INFINITY,
                    "-Infinity" => f64::NEG_INFINITY,
                    _ => return Err(refuse()),
                },
                _ => return Err(refuse()),
            };
            let precision = clause.precision.unwrap_or(PRECISION);
            let shown =
                if clause.verb == 'f' { fixed(number, precision) } else { scientific(number, precision) };
            out.push_str(&shown);
        }
        ('b', Value::Bool(b)) => out.push(if *b { '1' } else { '0' }),
        ('b', _) => out.push_str(&radix(value, |n| format!("{n:b}")).ok_or_else(refuse)?),
        ('o', _) => out.push_str(&radix(value, |n| format!("{n:o}")).ok_or_else(refuse)?),
        ('x' | 'X', _) => {
            let hex = match value {
                Value::String(s) => bytes_hex(s.as_bytes()),
                Value::Bytes(b) => bytes_hex(b),
                _ => radix(value, |n| format!("{n:x}")).ok_or_else(refuse)?,
            };
            out.push_str(&if clause.verb == 'X' { hex.to_uppercase() } else { hex });
        }
        _ => return Err(refuse()),
    }
    Ok(())
}

fn bytes_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Formats an integer in another base, with a minus sign if needed.
fn radix(value: &Value<'_>, digits: impl Fn(u64) -> String) -> Option<String> {
    match value {
        Value::Int(i) if *i < 0 => Some(format!("-{}", digits(i.unsigned_abs()))),
        Value::Int(i) => Some(digits(i.unsigned_abs())),
        Value::Uint(u) => Some(digits(*u)),
        _ => None,
    }
}

fn special(number: f64) -> Option<String> {
    if number.is_nan() {
        Some("NaN".to_owned())
    } else if number.is_infinite() {
        Some(if number > 0.0 { "∞" } else { "-∞" }.to_owned())
    } else {
        None
    }
}

/// Formats a number with decimals, and with commas between thousands as in American English.
fn fixed(number: f64, precision: usize) -> String {
    if let Some(special) = special(number) {
        return special;
    }
    let plain = format!("{number:.precision$}");
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), None), |(w, f)| (w, Some(f)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |d| ("-", d));
    let mut out = sign.to_owned();
    for (n, c) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// Formats a number as `1.052033×10⁰³`.
fn scientific(number: f64, precision: usize) -> String {
    if let Some(special) = special(number) {
        return special;
    }
    let plain = format!("{number:.precision$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(("", exponent), |d| ("\u{207b}", d));
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let raised: String = format!("{digits:0>2}")
        .chars()
        .filter_map(|c| c.to_digit(10).and_then(|d| RAISED.get(d as usize)))
        .collect();
    format!("{mantissa}×10{sign}{raised}")
}

/// Formats a value as `%s` does; strings within a list or map are quoted.
fn text(value: &Value<'_>, within: bool, out: &mut String, budget: &mut Budget<'_>) -> Result<(), EvalError> {
    budget.work(1)?;
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(&b.to_string()),
        Value::Int(i) => out.push_str(&i.to_string()),
        Value::Uint(u) => out.push_str(&u.to_string()),
        Value::Double(d) if within && d.is_finite() => out.push_str(&format!("{d:.PRECISION$}")),
        Value::Double(d) => out.push_str(&double_string(*d)),
        Value::String(s) if within => out.push_str(&format!("{:?}", &**s)),
        Value::String(s) => out.push_str(s),
        Value::Bytes(b) => {
            let s = String::from_utf8(b.to_vec())
                .map_err(|_| EvalError::new("invalid UTF-8 in bytes, cannot convert to string"))?;
            out.push_str(&if within { format!("b{s:?}") } else { s });
        }
        Value::Timestamp(t) if within => out.push_str(&format!("timestamp(\"{t}\")")),
        Value::Timestamp(t) => out.push_str(&t.to_string()),
        Value::Duration(n) if within => {
            out.push_str(&format!("duration(\"{}\")", time::duration_string(*n)));
        }
        Value::Duration(n) => out.push_str(&time::duration_string(*n)),
        Value::Type(t) => out.push_str(t.name()),
        Value::List(list) => return list_text(list, out, budget),
        Value::Map(_) | Value::Object(_) => return map_text(value, out, budget),
        _ => return Err(EvalError::new(refusal('s', value.type_of().name()))),
    }
    Ok(())
}

fn list_text(list: &List<'_>, out: &mut String, budget: &mut Budget<'_>) -> Result<(), EvalError> {
    out.push('[');
    for (n, item) in list.iter().enumerate() {
        if n > 0 {
            out.push_str(", ");
        }
        text(&item?, true, out, budget)?;
    }
    out.push(']');
    Ok(())
}

fn map_text(map: &Value<'_>, out: &mut String, budget: &mut Budget<'_>) -> Result<(), EvalError> {
    let mut pairs = Vec::new();
    for key in crate::ops::keys(map) {
        let mut shown = String::new();
        text(&key, true, &mut shown, budget)?;
        if let Some(value) = crate::ops::lookup(map, &key)? {
            pairs.push((shown, value));
        }
    }
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    out.push('{');
    for (n, (key, value)) in pairs.iter().enumerate() {
        if n > 0 {
            out.push_str(", ");
        }
        out.push_str(key);
        out.push(':');
        text(value, true, out, budget)?;
    }
    out.push('}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_in_american_english() {
        assert_eq!(fixed(1234567.891, 2), "1,234,567.89");
        assert_eq!(fixed(-12.5, 0), "-12");
        assert_eq!(scientific(1052.032911275, 6), "1.052033×10⁰³");
        assert_eq!(scientific(0.0123, 1), "1.2×10\u{207b}⁰²");
    }

    #[test]
    fn formats_are_cut() {
        let f = |verb, precision| Piece::Clause(Clause { verb, precision });
        assert_eq!(
            pieces("a %s%%%.2f"),
            Ok(vec![Piece::Text("a "), f('s', None), Piece::Text("%"), f('f', Some(2))])
        );
        assert!(
            pieces("%").is_err()
                && pieces("%.2").is_err()
                && pieces("%z").is_err()
                && pieces("%.9999f").is_err()
        );
    }
}
