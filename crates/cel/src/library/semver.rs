//! Semantic versions (semver.org 2.0).

use std::cmp::Ordering;
use std::sync::Arc;

use super::Opaque;
use super::registry::Function;
use crate::error::EvalError;
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

/// A version as a value, for those who give objects to expressions.
pub fn of<'a>(version: Semver) -> Value<'a> {
    Value::Opaque(Opaque::Semver(Arc::new(version)))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semver {
    numbers: [u64; 3],
    prerelease: Vec<Identifier>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Semver {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(r, b)| (r, Some(b)));
        let (patch, prerelease) = rest.split_once('-').map_or((rest, None), |(p, pre)| (p, Some(pre)));
        let numbers = [number(major, "Major")?, number(minor, "Minor")?, number(patch, "Patch")?];
        let prerelease = match prerelease {
            None => Vec::new(),
            Some(pre) => pre.split('.').map(identifier).collect::<Result<_, _>>()?,
        };
        for part in build.into_iter().flat_map(|b| b.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !is_plain(part) {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Self { numbers, prerelease })
    }

    /// With a `v` before it, missing numbers and leading zeros forgiven.
    fn parse_tolerant(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in parts.iter_mut().filter(|p| p.len() > 1) {
            let trimmed = part.trim_start_matches('0');
            let zero = !trimmed.starts_with(|c: char| c.is_ascii_digit());
            *part = if zero { format!("0{trimmed}") } else { trimmed.to_owned() };
        }
        if parts.len() < 3 {
            if parts.last().is_some_and(|p| p.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".to_owned());
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    pub fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.prerelease.is_empty(), other.prerelease.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => {
                    let pairs = self.prerelease.iter().zip(&other.prerelease);
                    let first = pairs.map(|(a, b)| a.compare(b)).find(|order| order.is_ne());
                    first.unwrap_or_else(|| self.prerelease.len().cmp(&other.prerelease.len()))
                }
            }
        })
    }
}

impl Identifier {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.cmp(b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
        }
    }
}

fn number(text: &str, name: &str) -> Result<u64, String> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {text:?}", name.to_lowercase()));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| {
        let why = if text.is_empty() { "invalid syntax" } else { "value out of range" };
        format!("strconv.ParseUint: parsing {text:?}: {why}")
    })
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {text:?}"));
        }
        return text.parse().map(Identifier::Number).map_err(|_| format!("value out of range: {text:?}"));
    }
    if !is_plain(text) {
        return Err(format!("Invalid character(s) found in prerelease {text:?}"));
    }
    Ok(Identifier::Text(text.to_owned()))
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
