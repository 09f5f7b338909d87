//! Regular expressions with RE2's syntax; matching is linear in the length of the text.

use regex::{Regex, RegexBuilder};

use super::function::Function;
use crate::error::EvalError;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "matches",
        overloads: &[("matches", "(string,string)bool"), ("matches_string", "string.(string)bool")],
        call: |args, _| compiled("matches", args),
    },
    Function {
        name: "find",
        overloads: &[("string_find_string", "string.(string)string")],
        call: |args, _| compiled("find", args),
    },
    Function {
        name: "findAll",
        overloads: &[
            ("string_find_all_string", "string.(string)list<string>"),
            ("string_find_all_string_int", "string.(string,int)list<string>"),
        ],
        call: |args, _| compiled("findAll", args),
    },
];

/// The maximum size of a compiled pattern in bytes.
const SIZE_LIMIT: usize = 4 << 20;
/// The maximum count of a repetition.
const MOST_REPEATS: u32 = 1000;

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern(Regex);

impl Pattern {
    pub fn new(pattern: &str) -> Result<Self, EvalError> {
        if repeats_too_often(pattern) {
            return Err(EvalError::new(format!("error parsing regexp: invalid repeat count: `{pattern}`")));
        }
        let built = RegexBuilder::new(pattern).size_limit(SIZE_LIMIT).dfa_size_limit(SIZE_LIMIT).build();
        built.map(Self).map_err(|e| EvalError::new(problem(pattern, &e)))
    }
}

/// Returns whether the pattern has a count such as `{2000}` that RE2 refuses.
fn repeats_too_often(pattern: &str) -> bool {
    pattern.split('{').skip(1).any(|part| {
        let inner = part.split('}').next().unwrap_or("");
        inner.len() < 12 && inner.split(',').any(|n| n.parse::<u32>().is_ok_and(|n| n > MOST_REPEATS))
    })
}

/// Returns the error with Go's text, as far as possible.
fn problem(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let reason = if text.contains("unclosed group") {
        "missing closing )"
    } else if text.contains("unopened group") {
        "unexpected )"
    } else if text.contains("unclosed character class") {
        "missing closing ]"
    } else if text.contains("repetition operator missing expression") {
        "missing argument to repetition operator"
    } else if text.contains("unrecognized escape") || text.contains("backreferences") {
        "invalid escape sequence"
    } else if text.contains("look-around") || text.contains("unrecognized flag") {
        "invalid or unsupported Perl syntax"
    } else if text.contains("invalid character class range") {
        "invalid character class range"
    } else {
        "expression too large or invalid"
    };
    format!("error parsing regexp: {reason}: `{pattern}`")
}

fn compiled<'a>(function: &str, args: &[Value<'a>]) -> Outcome<'a> {
    let [_, Value::String(pattern), ..] = args else { return Err(EvalError::NoSuchOverload) };
    let pattern = Pattern::new(pattern).map_err(|e| match function {
        "matches" => e,
        _ => EvalError::new(format!("Illegal regex: {e}")),
    })?;
    call(function, &pattern, args)
}

/// Calls a function with a compiled pattern.
pub fn call<'a>(function: &str, pattern: &Pattern, args: &[Value<'a>]) -> Outcome<'a> {
    match (function, args) {
        ("matches", [Value::String(s), _]) => Ok(Value::Bool(pattern.0.is_match(s))),
        ("find", [Value::String(s), _]) => Ok(Value::string(pattern.0.find(s).map_or("", |m| m.as_str()))),
        ("findAll", [Value::String(s), _, rest @ ..]) => {
            let most = match rest {
                [] => usize::MAX,
                [Value::Int(n)] => usize::try_from(*n).unwrap_or(usize::MAX),
                _ => return Err(EvalError::NoSuchOverload),
            };
            Ok(Value::strings(pattern.0.find_iter(s).take(most).map(|m| m.as_str().to_owned())))
        }
        _ => Err(EvalError::NoSuchOverload),
    }
}

/// Returns whether this is a valid pattern, for the check of constants.
pub fn is_pattern(pattern: &str) -> bool {
    Pattern::new(pattern).is_ok()
}
