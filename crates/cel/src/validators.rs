//! Validation of well-typed expressions: constants that never work, lists of mixed types.

use crate::ast::{Element, Expr, Kind, Literal};
use crate::checker::Checked;
use crate::library::regex::is_pattern;
use crate::library::string_format::{Piece, pieces, refusal};
use crate::source::Issues;
use crate::time;
use crate::types::Type;

pub fn validate(tree: &Expr, checked: &Checked, source: &str) -> Result<(), Issues> {
    let mut issues = Issues::of(source);
    walk(tree, checked, false, &mut issues);
    if issues.is_empty() { Ok(()) } else { Err(issues) }
}

/// Validates a tree. `exempt` is true within the arguments of `format()`, whose list may be mixed.
fn walk(expr: &Expr, checked: &Checked, exempt: bool, issues: &mut Issues) {
    let mut below = exempt;
    match &expr.kind {
        Kind::Call { function, target, args } => {
            literal_argument(function, args, issues);
            if &**function == "format" {
                below = true;
                if let Some(target) = target {
                    format_call(expr, target, args, checked, issues);
                }
            }
        }
        Kind::List(elements) if !exempt => homogeneous(elements, checked, issues),
        Kind::Map(entries) if !exempt => {
            let mut first: Option<(Type, Type)> = None;
            for entry in entries {
                let key = checked.type_of(&entry.key).clone();
                let value = unwrapped(checked.type_of(&entry.value), entry.optional);
                let Some((k, v)) = &first else {
                    first = Some((key, value));
                    continue;
                };
                differs(k, &key, entry.key.at, issues);
                differs(v, &value, entry.value.at, issues);
            }
        }
        _ => {}
    }
    for child in expr.children() {
        walk(child, checked, below, issues);
    }
}

fn unwrapped(t: &Type, optional: bool) -> Type {
    match t {
        Type::Optional(inner) if optional => (**inner).clone(),
        other => other.clone(),
    }
}

fn differs(wanted: &Type, found: &Type, at: u32, issues: &mut Issues) -> bool {
    let differs = wanted != found;
    if differs {
        issues.report(at as usize, format!("expected type '{wanted}' but found '{found}'"));
    }
    differs
}

fn homogeneous(elements: &[Element], checked: &Checked, issues: &mut Issues) {
    let mut first: Option<Type> = None;
    for element in elements {
        let found = unwrapped(checked.type_of(&element.value), element.optional);
        match &first {
            None => first = Some(found),
            Some(wanted) => {
                if differs(wanted, &found, element.value.at, issues) {
                    return;
                }
            }
        }
    }
}

/// Checks the first argument of these functions, if it is a literal.
fn literal_argument(function: &str, args: &[Expr], issues: &mut Issues) {
    let Some(Expr { kind: Kind::Literal(Literal::String(text)), at, .. }) = args.first() else { return };
    let works = match function {
        "duration" => time::parse_duration(text).is_some(),
        "timestamp" => time::parse_timestamp(text).is_ok(),
        "matches" => is_pattern(text),
        _ => return,
    };
    if !works {
        issues.report(*at as usize, format!("invalid {function} argument"));
    }
}

/// Checks a constant format against the literal list of its arguments.
fn format_call(expr: &Expr, target: &Expr, args: &[Expr], checked: &Checked, issues: &mut Issues) {
    let (Kind::Literal(Literal::String(text)), [Expr { kind: Kind::List(elements), .. }]) =
        (&target.kind, args)
    else {
        return;
    };
    let pieces = match pieces(text) {
        Ok(pieces) => pieces,
        Err(why) => return issues.report(expr.at as usize, why),
    };
    let mut asked = 0;
    for piece in pieces {
        let Piece::Clause(clause) = piece else { continue };
        let Some(element) = elements.get(asked) else {
            return issues.report(expr.at as usize, format!("index {asked} out of range"));
        };
        asked += 1;
        let t = checked.type_of(&element.value);
        if !shows(clause.verb, t) {
            return issues.report(element.value.at as usize, refusal(clause.verb, t.name()));
        }
    }
    if elements.len() > asked {
        let given = elements.len();
        let message = format!("too many arguments supplied to string.format (expected {asked}, got {given})");
        issues.report(expr.at as usize, message);
    }
}

fn shows(verb: char, t: &Type) -> bool {
    match (verb, t) {
        (_, Type::Dyn) => true,
        ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint) => true,
        ('b', Type::Bool) | ('x' | 'X', Type::String | Type::Bytes) => true,
        ('f' | 'e', Type::Double | Type::String) => true,
        ('s', Type::Opaque(_) | Type::Object(_) | Type::Optional(_)) => false,
        ('s', _) => true,
        _ => false,
    }
}
