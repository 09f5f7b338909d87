//! Validates an applied configuration against the schema, with upstream's error texts.

use std::collections::HashSet;

use serde_json::Value;

use super::node::{ListKind, Node};
use crate::patch::strategic::go_text;
use crate::schema::Type;
use crate::structural::Schema;

/// A problem: path and message.
struct Problem(String, String);

/// Validates an applied configuration; the error is one text with all problems.
pub(super) fn validate(root: Node<'_>, value: &Value) -> Result<(), String> {
    let mut problems = Vec::new();
    check(root, value, "", &mut problems);
    let text = |Problem(path, message): &Problem| {
        if path.is_empty() { message.clone() } else { format!("{path}: {message}") }
    };
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(text(one)),
        many => {
            let lines: Vec<String> = many.iter().map(|p| format!("  {}", text(p))).collect();
            Err(format!("errors:\n{}", lines.join("\n")))
        }
    }
}

fn check(node: Node<'_>, value: &Value, path: &str, problems: &mut Vec<Problem>) {
    let mut complain = |message: String| problems.push(Problem(path.to_owned(), message));
    if value.is_null() {
        return;
    }
    match node {
        Node::Deduced | Node::Typed(Type::Any) => {}
        Node::Custom(schema) if schema.ty != "object" => check_custom(node, schema, value, path, problems),
        Node::CustomObject
        | Node::Custom(_)
        | Node::CustomResource(_)
        | Node::Typed(Type::Struct(_) | Type::Map(_)) => match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let path = format!("{path}.{name}");
                    if !node.takes(name) {
                        problems.push(Problem(path, "field not declared in schema".to_owned()));
                        return;
                    }
                    check(node.member(name), value, &path, problems);
                }
            }
            other => complain(format!("expected map, got &{{{}}}", go_text(other))),
        },
        Node::Typed(Type::List(list)) => match value {
            Value::Array(items) => check_items(node, list.kind.into(), items, path, problems),
            other => complain(format!("expected list, got &{{{}}}", go_text(other))),
        },
        Node::Typed(ty) => {
            if let Some(message) = wrong_scalar(ty, value) {
                complain(message);
            }
        }
    }
}

/// Checks a value of a custom resource that is not an object.
fn check_custom(node: Node<'_>, schema: &Schema, value: &Value, path: &str, problems: &mut Vec<Problem>) {
    let message = match (schema.ty.as_str(), value) {
        ("array", Value::Array(items)) => {
            let kind = match node.shape(Some(value)) {
                super::node::Shape::List(kind) => kind,
                _ => ListKind::Atomic,
            };
            return check_items(node, kind, items, path, problems);
        }
        ("array", other) => Some(format!("expected list, got &{{{}}}", go_text(other))),
        ("boolean", value) => wrong_scalar(Type::Bool, value),
        ("integer" | "number", value) => wrong_scalar(Type::Float64, value),
        ("string", value) => wrong_scalar(Type::String, value),
        (_, value) if schema.int_or_string => wrong_scalar(Type::IntOrString, value),
        _ => None,
    };
    problems.extend(message.map(|message| Problem(path.to_owned(), message)));
}

fn check_items(node: Node<'_>, kind: ListKind<'_>, items: &[Value], path: &str, problems: &mut Vec<Problem>) {
    let mut seen = HashSet::new();
    for (i, item) in items.iter().enumerate() {
        let shown = if kind == ListKind::Atomic {
            format!("[{i}]")
        } else {
            match node.item(kind, item) {
                Ok(element) => {
                    let shown = super::fields::element_text(&element);
                    if !seen.insert(element) {
                        let message = format!("duplicate entries for key {shown}");
                        problems.push(Problem(path.to_owned(), message));
                    }
                    shown
                }
                Err(message) => {
                    problems.push(Problem(path.to_owned(), format!("element {i}: {message}")));
                    return;
                }
            }
        };
        check(node.element(), item, &format!("{path}{shown}"), problems);
    }
}

fn wrong_scalar(ty: Type, value: &Value) -> Option<String> {
    match ty {
        Type::Bool => (!value.is_boolean()).then(|| format!("expected boolean, got &{{{}}}", go_text(value))),
        Type::Int32 | Type::Int64 | Type::Float64 => {
            (!value.is_number()).then(|| format!("expected numeric (int or float), got {}", go_type(value)))
        }
        Type::Quantity | Type::IntOrString => (value.is_array() || value.is_object())
            .then(|| format!("expected any scalar, got &{{{}}}", go_text(value))),
        _ => (!value.is_string())
            .then(|| format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value))),
    }
}

/// Returns the type of a decoded value as Go's `%T` prints it.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats a decoded value as Go's `%#v` prints it.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(list) => {
            format!("[]interface {{}}{{{}}}", list.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let members: Vec<String> =
                map.iter().map(|(k, v)| format!("{}:{}", Value::from(k.as_str()), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", members.join(", "))
        }
        scalar => scalar.to_string(),
    }
}
