//! The functions of the language: their overloads and implementations.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::function::Call;
use super::list::LIBRARIES;
use crate::types::Type;

/// One overload of a function.
#[derive(Debug, Clone)]
pub struct Overload {
    pub function: &'static str,
    pub id: &'static str,
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
    pub params: Vec<Arc<str>>,
}

static OVERLOADS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let mut all: HashMap<&'static str, Vec<Overload>> = HashMap::new();
    for function in LIBRARIES.iter().flat_map(|l| l.iter()) {
        let parsed = function.overloads.iter().filter_map(|(id, s)| parse(function.name, id, s));
        all.entry(function.name).or_default().extend(parsed);
    }
    all
});

static CALLS: LazyLock<HashMap<&'static str, Vec<Call>>> = LazyLock::new(|| {
    let mut all: HashMap<&'static str, Vec<Call>> = HashMap::new();
    for function in LIBRARIES.iter().flat_map(|l| l.iter()) {
        all.entry(function.name).or_default().push(function.call);
    }
    all
});

/// Returns the overloads of every function.
pub fn functions() -> &'static HashMap<&'static str, Vec<Overload>> {
    &OVERLOADS
}

/// Returns the implementations of a function; the first that accepts the values is used.
pub fn calls(name: &str) -> &'static [Call] {
    CALLS.get(name).map_or(&[], Vec::as_slice)
}

fn parse(function: &'static str, id: &'static str, signature: &str) -> Option<Overload> {
    let open = if signature.starts_with('(') { 0 } else { signature.find(".(")? + 1 };
    let close = open + signature[open..].find(')')?;
    let mut args = Vec::new();
    if open > 0 {
        args.push(parse_type(&signature[..open - 1])?);
    }
    for arg in split(&signature[open + 1..close]) {
        args.push(parse_type(arg)?);
    }
    let result = parse_type(&signature[close + 1..])?;
    let mut params = Vec::new();
    args.iter().chain([&result]).for_each(|t| collect_params(t, &mut params));
    Some(Overload { function, id, member: open > 0, args, result, params })
}

/// Splits at commas outside of angle brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut from) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    if from < text.len() {
        out.push(&text[from..]);
    }
    out
}

fn parse_type(text: &str) -> Option<Type> {
    if let Some((name, rest)) = text.split_once('<') {
        let inner = split(rest.strip_suffix('>')?);
        let first = parse_type(inner.first()?)?;
        return Some(match name {
            "list" => Type::list(first),
            "optional" => Type::optional(first),
            "type" => Type::type_of(first),
            _ => Type::map(first, parse_type(inner.get(1)?)?),
        });
    }
    Some(match text {
        "dyn" => Type::Dyn,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        _ if text.len() == 1 => Type::Param(text.into()),
        _ => Type::named(text).unwrap_or_else(|| Type::Opaque(text.into())),
    })
}

fn collect_params(t: &Type, found: &mut Vec<Arc<str>>) {
    match t {
        Type::Param(name) if !found.contains(name) => found.push(name.clone()),
        Type::List(e) | Type::Optional(e) | Type::Type(Some(e)) => collect_params(e, found),
        Type::Map(e) => {
            collect_params(&e.0, found);
            collect_params(&e.1, found);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_read() {
        for function in LIBRARIES.iter().flat_map(|l| l.iter()) {
            for (id, signature) in function.overloads {
                assert!(parse(function.name, id, signature).is_some(), "{}: {signature}", function.name);
            }
        }
        let overload = parse("f", "id", "list<A>.(map<K,list<V>>,int)optional<A>").unwrap();
        assert_eq!(overload.args.len(), 3);
        assert_eq!(overload.params.len(), 3);
        assert_eq!(overload.args[1].to_string(), "map(K, list(V))");
    }

    #[test]
    fn overload_ids_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for overload in functions().values().flatten() {
            assert!(seen.insert(overload.id), "{}", overload.id);
        }
    }
}
