//! JSONPath as printer columns use it: fields, indexes, slices, wildcards, descent and filters. Missing keys match
//! nothing.

use serde_json::Value;

/// Limits the nesting of filters, and the steps of a path.
const MAX_STEPS: usize = 256;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// `[1]`, `[0:3]`, `[0:10:2]`, and lists of these or of names.
    Slice(Option<i64>, Option<i64>, i64),
    Union(Vec<JsonPath>),
    Wildcard,
    Descend,
    Filter(Operand, Option<(Operator, Operand)>),
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The text is not a valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSONPath: {0}")]
pub struct JsonPathError(String);

fn bad(why: impl Into<String>) -> JsonPathError {
    JsonPathError(why.into())
}

impl JsonPath {
    /// Parses `.spec.list[0]['a.b']`; a leading `$` or `@` means the root.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let mut steps = Vec::new();
        let mut rest = text.trim();
        rest = rest.strip_prefix(['$', '@']).unwrap_or(rest);
        while !rest.is_empty() {
            if steps.len() >= MAX_STEPS {
                return Err(bad("too long"));
            }
            if let Some(after) = rest.strip_prefix("..") {
                steps.push(Step::Descend);
                rest = after;
                if !rest.starts_with('[') {
                    rest = field(rest, &mut steps)?;
                }
            } else if let Some(after) = rest.strip_prefix('.') {
                rest = if after.is_empty() || after.starts_with('[') {
                    after
                } else {
                    field(after, &mut steps)?
                };
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after).ok_or_else(|| bad("unterminated array"))?;
                steps.push(bracket(after[..end].trim())?);
                rest = &after[end + 1..];
            } else {
                rest = field(rest, &mut steps)?;
            }
        }
        Ok(Self { steps })
    }

    /// Returns all values that the path matches.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        self.steps.iter().fold(vec![value], |found, step| {
            let mut next = Vec::new();
            found.into_iter().for_each(|v| walk(step, v, &mut next));
            next
        })
    }
}

fn field<'t>(text: &'t str, steps: &mut Vec<Step>) -> Result<&'t str, JsonPathError> {
    let (mut name, mut escaped, mut end) = (String::new(), false, text.len());
    for (i, c) in text.char_indices() {
        if escaped {
            name.push(c);
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if matches!(c, '.' | '[' | ' ' | '{' | '}' | ']') {
            end = i;
            break;
        } else {
            name.push(c);
        }
    }
    if name.is_empty() {
        return Err(bad(format!("unrecognized character in {text}")));
    }
    steps.push(if name == "*" { Step::Wildcard } else { Step::Field(name) });
    Ok(&text[end..])
}

/// Returns the position of the bracket that closes the one at the start.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(i),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn unquoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = text[1..].strip_suffix(quote)?;
    (!inner.contains(quote)).then(|| inner.to_owned())
}

fn bracket(inside: &str) -> Result<Step, JsonPathError> {
    if let Some(filter) = inside.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        return filter_step(filter.trim());
    }
    if inside == "*" {
        return Ok(Step::Wildcard);
    }
    let parts: Vec<&str> = inside.split(',').map(str::trim).collect();
    if parts.len() > 1 && unquoted(inside).is_none() {
        let paths: Result<Vec<JsonPath>, _> =
            parts.iter().map(|p| bracket(p).map(|step| JsonPath { steps: vec![step] })).collect();
        return Ok(Step::Union(paths?));
    }
    if let Some(name) = unquoted(inside) {
        return Ok(Step::Field(name));
    }
    let number = |text: &str| match text.trim() {
        "" => Ok(None),
        text => text.parse::<i64>().map(Some).map_err(|_| bad(format!("invalid array index {inside}"))),
    };
    let bounds: Vec<&str> = inside.split(':').collect();
    match bounds.as_slice() {
        [one] => {
            let index = number(one)?.ok_or_else(|| bad("empty array index"))?;
            let end = (index != -1).then(|| index.saturating_add(1));
            Ok(Step::Slice(Some(index), end, 1))
        }
        [start, end] => Ok(Step::Slice(number(start)?, number(end)?, 1)),
        [start, end, step] => match number(step)?.unwrap_or(1) {
            step if step > 0 => Ok(Step::Slice(number(start)?, number(end)?, step)),
            _ => Err(bad("step must be > 0")),
        },
        _ => Err(bad(format!("invalid array index {inside}"))),
    }
}

fn filter_step(text: &str) -> Result<Step, JsonPathError> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let mut quote = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            _ => {
                if let Some((sign, operator)) = OPERATORS.iter().find(|(sign, _)| text[i..].starts_with(sign))
                {
                    let (left, right) = (operand(&text[..i])?, operand(&text[i + sign.len()..])?);
                    return Ok(Step::Filter(left, Some((*operator, right))));
                }
            }
        }
    }
    Ok(Step::Filter(operand(text)?, None))
}

fn operand(text: &str) -> Result<Operand, JsonPathError> {
    let text = text.trim();
    if let Some(literal) = unquoted(text) {
        return Ok(Operand::Literal(literal.into()));
    }
    match serde_json::from_str::<Value>(text) {
        Ok(literal @ (Value::Number(_) | Value::Bool(_))) => Ok(Operand::Literal(literal)),
        _ if text.matches("?(").count() > 4 => Err(bad("too deeply nested")),
        _ => Ok(Operand::Path(JsonPath::parse(text)?)),
    }
}

fn walk<'v>(step: &Step, value: &'v Value, found: &mut Vec<&'v Value>) {
    match step {
        Step::Field(name) => found.extend(value.get(name)),
        Step::Slice(start, end, step) => {
            let Some(items) = value.as_array() else { return };
            let length = items.len() as i64;
            let place = |i: i64| if i < 0 { i + length } else { i };
            let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)));
            let mut at = start.max(0);
            while at < end.min(length) {
                found.extend(usize::try_from(at).ok().and_then(|i| items.get(i)));
                at = at.saturating_add(*step);
            }
        }
        Step::Union(paths) => paths.iter().for_each(|p| found.extend(p.find(value))),
        Step::Wildcard => children(value).for_each(|v| found.push(v)),
        Step::Descend => descend(value, found),
        Step::Filter(left, comparison) => {
            found.extend(children(value).filter(|item| holds(left, comparison.as_ref(), item)));
        }
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn descend<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
    found.push(value);
    children(value).for_each(|v| descend(v, found));
}

fn holds(left: &Operand, comparison: Option<&(Operator, Operand)>, item: &Value) -> bool {
    let first = |operand: &Operand| match operand {
        Operand::Literal(value) => Some(value.clone()),
        Operand::Path(path) => path.find(item).first().map(|v| (*v).clone()),
    };
    let Some(left) = first(left) else { return false };
    let Some((operator, right)) = comparison else { return true };
    let Some(right) = first(right) else { return false };
    let order = match (&left, &right) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
        (Value::String(a), Value::String(b)) => a.partial_cmp(b),
        (a, b) if a == b => Some(std::cmp::Ordering::Equal),
        _ => None,
    };
    match operator {
        Operator::Equal => order.is_some_and(|o| o.is_eq()),
        Operator::NotEqual => !order.is_some_and(|o| o.is_eq()),
        Operator::Less => order.is_some_and(|o| o.is_lt()),
        Operator::LessOrEqual => order.is_some_and(|o| o.is_le()),
        Operator::Greater => order.is_some_and(|o| o.is_gt()),
        Operator::GreaterOrEqual => order.is_some_and(|o| o.is_ge()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_where_they_should() {
        let value = json!({
            "spec": {"a.b": 1, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}, {"n": "z", "v": 3}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "False"}]},
        });
        for (path, expected) in [
            (".spec.list[0].n", json!(["x"])),
            (".spec.list[-1].n", json!(["z"])),
            (".spec.list[0:2].v", json!([1, 2])),
            (".spec.list[::2].v", json!([1, 3])),
            (".spec.list[*].v", json!([1, 2, 3])),
            (".spec.list[0,2].n", json!(["x", "z"])),
            (".spec['a.b']", json!([1])),
            (r".spec.a\.b", json!([1])),
            (".spec.missing.deep", json!([])),
            (".spec.list[7]", json!([])),
            ("..v", json!([1, 2, 3])),
            ("$.status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Old')].status", json!(["False"])),
            (".spec.list[?(@.v >= 2)].n", json!(["y", "z"])),
            (".spec.list[?(@.none)].n", json!([])),
        ] {
            let found = JsonPath::parse(path).unwrap();
            assert_eq!(json!(found.find(&value)), expected, "{path}");
        }
        for wrong in [".a[", ".a[x]", ".a[::0]", ".a[?(@.b == )"] {
            assert!(JsonPath::parse(wrong).is_err(), "{wrong}");
        }
    }
}
