//! String functions: parts, indexes, replacement. Indexes count characters.

use super::function::Function;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function { name: "charAt", overloads: &[("string_char_at_int", "string.(int)string")], call: char_at },
    Function {
        name: "indexOf",
        overloads: &[
            ("string_index_of_string", "string.(string)int"),
            ("string_index_of_string_int", "string.(string,int)int"),
        ],
        call: index_of,
    },
    Function {
        name: "lastIndexOf",
        overloads: &[
            ("string_last_index_of_string", "string.(string)int"),
            ("string_last_index_of_string_int", "string.(string,int)int"),
        ],
        call: last_index_of,
    },
    Function {
        name: "lowerAscii",
        overloads: &[("string_lower_ascii", "string.()string")],
        call: |args, _| mapped(args, str::to_ascii_lowercase),
    },
    Function {
        name: "upperAscii",
        overloads: &[("string_upper_ascii", "string.()string")],
        call: |args, _| mapped(args, str::to_ascii_uppercase),
    },
    Function {
        name: "trim",
        overloads: &[("string_trim", "string.()string")],
        call: |args, _| mapped(args, |s| s.trim().to_owned()),
    },
    Function {
        name: "replace",
        overloads: &[
            ("string_replace_string_string", "string.(string,string)string"),
            ("string_replace_string_string_int", "string.(string,string,int)string"),
        ],
        call: replace,
    },
    Function {
        name: "split",
        overloads: &[
            ("string_split_string", "string.(string)list<string>"),
            ("string_split_string_int", "string.(string,int)list<string>"),
        ],
        call: split,
    },
    Function {
        name: "substring",
        overloads: &[
            ("string_substring_int", "string.(int)string"),
            ("string_substring_int_int", "string.(int,int)string"),
        ],
        call: substring,
    },
    Function {
        name: "strings.quote",
        overloads: &[("strings_quote", "(string)string")],
        call: |args, _| mapped(args, quote),
    },
    Function {
        name: "join",
        overloads: &[
            ("list_join", "list<string>.()string"),
            ("list_join_string", "list<string>.(string)string"),
        ],
        call: join,
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// The maximum number of characters that one call may produce, whatever the budget.
const LONGEST: usize = 32 * 1024 * 1024;

fn mapped<'a>(args: &[Value<'a>], map: impl Fn(&str) -> String) -> Outcome<'a> {
    match args {
        [Value::String(s)] => Ok(Value::string(map(s))),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn out_of_range(index: i64) -> EvalError {
    EvalError::new(format!("index out of range: {index}"))
}

fn char_at<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let [Value::String(s), Value::Int(index)] = args else { return Err(EvalError::NoSuchOverload) };
    let at = usize::try_from(*index).map_err(|_| out_of_range(*index))?;
    match s.chars().nth(at) {
        Some(c) => Ok(Value::string(c.to_string())),
        None if s.chars().count() == at => Ok(Value::string("")),
        None => Err(out_of_range(*index)),
    }
}

/// Returns the first index of `part` in `text` that is not before the index `from`; indexes count characters.
fn find(text: &str, part: &str, from: usize) -> Option<usize> {
    let (start, _) = text.char_indices().nth(from)?;
    let at = text[start..].find(part)?;
    Some(from + text[start..start + at].chars().count())
}

fn index_of<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, 0),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, *from),
        _ => return Err(EvalError::NoSuchOverload),
    };
    let from_index = usize::try_from(from).map_err(|_| out_of_range(from))?;
    if part.is_empty() {
        return Ok(Value::Int(from.min(text.chars().count() as i64)));
    }
    Ok(Value::Int(find(text, part, from_index).map_or(-1, |at| at as i64)))
}

fn last_index_of<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let (text, part, from) = match args {
        [Value::String(text), Value::String(part)] => (text, part, None),
        [Value::String(text), Value::String(part), Value::Int(from)] => (text, part, Some(*from)),
        _ => return Err(EvalError::NoSuchOverload),
    };
    let length = text.chars().count();
    if let Some(from) = from.filter(|f| *f < 0) {
        return Err(out_of_range(from));
    }
    if part.is_empty() {
        return Ok(Value::Int(from.map_or(length as i64, |f| f.min(length as i64))));
    }
    let from = match from {
        Some(from) if from >= length as i64 => return Ok(Value::Int(-1)),
        Some(from) => from as usize,
        None => length,
    };
    // Finds the last match that starts at `from` or before.
    let end =
        text.char_indices().nth(from.saturating_add(part.chars().count())).map_or(text.len(), |(i, _)| i);
    let found = text[..end].rfind(&**part);
    Ok(Value::Int(found.map_or(-1, |at| text[..at].chars().count() as i64)))
}

fn replace<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (text, old, new, count) = match args {
        [Value::String(t), Value::String(o), Value::String(n)] => (t, o, n, -1),
        [Value::String(t), Value::String(o), Value::String(n), Value::Int(count)] => (t, o, n, *count),
        _ => return Err(EvalError::NoSuchOverload),
    };
    let most = if old.is_empty() { text.chars().count() + 1 } else { text.matches(&**old).count() };
    let count = usize::try_from(count).map_or(most, |c| c.min(most));
    let length = text.len() + count.saturating_mul(new.len());
    budget.work(length / 10)?;
    if length > LONGEST {
        return Err(EvalError::CostLimitExceeded);
    }
    Ok(Value::string(text.replacen(&**old, new, count)))
}

fn split<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (text, separator, count) = match args {
        [Value::String(t), Value::String(s)] => (t, s, -1),
        [Value::String(t), Value::String(s), Value::Int(count)] => (t, s, *count),
        _ => return Err(EvalError::NoSuchOverload),
    };
    budget.work(text.len())?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match (count, separator.is_empty()) {
        (0, _) => Vec::new(),
        (_, false) => text.splitn(count, &**separator).collect(),
        (_, true) => characters(text, count),
    };
    Ok(Value::strings(parts.into_iter().map(str::to_owned)))
}

/// Splits into characters; the last part has the rest.
fn characters(text: &str, count: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if parts.len() + 1 == count {
            parts.push(rest);
            break;
        }
        let (first, after) = rest.split_at(c.len_utf8());
        parts.push(first);
        rest = after;
    }
    parts
}

fn substring<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Value::String(t), Value::Int(start)] => (t, *start, None),
        [Value::String(t), Value::Int(start), Value::Int(end)] => (t, *start, Some(*end)),
        _ => return Err(EvalError::NoSuchOverload),
    };
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(EvalError::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let length = text.chars().count() as i64;
    let end = end.unwrap_or(length);
    for index in [start, end] {
        if index < 0 || index > length {
            return Err(out_of_range(index));
        }
    }
    let (skip, take) = (start as usize, (end - start) as usize);
    Ok(Value::string(text.chars().skip(skip).take(take).collect::<String>()))
}

fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

fn join<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return Err(EvalError::NoSuchOverload),
    };
    let mut out = String::new();
    for (n, item) in list.iter().enumerate() {
        let item = item?;
        let Value::String(part) = &item else {
            return Err(EvalError::new(format!("join: invalid input: {item}")));
        };
        if n > 0 {
            out.push_str(separator);
        }
        out.push_str(part);
        budget.work((part.len() + separator.len()) / 10 + 1)?;
        if out.len() > LONGEST {
            return Err(EvalError::CostLimitExceeded);
        }
    }
    Ok(Value::string(out))
}
