//! Parses the paths that a file names: those of its `use` items, and those that begin with `crate`, `self`,
//! `super` or a child.

/// One path: its segments, and the name that a `use` gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub path: Vec<String>,
    pub name: String,
    /// Whether it is a `pub use`, so that others reach it through this module.
    pub public: bool,
}

/// Returns all paths of a file's `use` items, and the code without these items.
pub fn uses(code: &str) -> (Vec<Named>, String) {
    let (mut found, mut rest) = (Vec::new(), String::with_capacity(code.len()));
    let mut from = 0;
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].chars().next_back();
        if at < from || before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let Some(length) = code[at..].find(';') else { break };
        let line = code[..at].rsplit(['\n', ';', '}', '{']).next().unwrap_or("");
        let public = line.trim_start().starts_with("pub");
        tree(&code[at + "use ".len()..at + length], &[], public, &mut found);
        rest.push_str(&code[from..at]);
        from = at + length + 1;
    }
    rest.push_str(code.get(from..).unwrap_or(""));
    (found, rest)
}

fn tree(text: &str, before: &[String], public: bool, found: &mut Vec<Named>) {
    let text = text.trim();
    let segments = |text: &str| {
        let own = text.split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned);
        before.iter().cloned().chain(own).collect::<Vec<_>>()
    };
    let Some(open) = text.find('{') else {
        let (path, name) = match text.split_once(" as ") {
            Some((path, name)) => (segments(path), name.trim().to_owned()),
            None => {
                let path = segments(text);
                let name = path.last().cloned().unwrap_or_default();
                (path, name)
            }
        };
        if !path.is_empty() {
            found.push(Named { path, name, public });
        }
        return;
    };
    let before = segments(&text[..open]);
    let inner = text[open + 1..].strip_suffix('}').unwrap_or(&text[open + 1..]);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                tree(&inner[from..at], &before, public, found);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !inner[from..].trim().is_empty() {
        tree(&inner[from..], &before, public, found);
    }
}

/// Returns the paths of two and more segments in the code.
pub fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("::") {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let first = rest[..at].rsplit(|c| !is_word(c)).next().unwrap_or("");
        let mut path = vec![first.to_owned()];
        rest = &rest[at..];
        while let Some(after) = rest.strip_prefix("::") {
            let end = after.find(|c| !is_word(c)).unwrap_or(after.len());
            path.push(after[..end].to_owned());
            rest = &after[end..];
        }
        path.retain(|segment| !segment.is_empty());
        if !first.is_empty() && path.len() > 1 {
            found.push(path);
        }
    }
    found
}

#[test]
fn trees_are_taken_apart() {
    let (found, rest) = uses("pub use a::{b, c::{self, d as e}};\nuse super::*; x::y::z(1, Q::R);");
    let shown: Vec<_> = found.iter().map(|n| format!("{} as {}", n.path.join("::"), n.name)).collect();
    assert_eq!(shown, ["a::b as b", "a::c::self as self", "a::c::d as e", "super::* as *"]);
    assert!(found[0].public && !found[3].public);
    assert_eq!(paths(&rest), [vec!["x", "y", "z"], vec!["Q", "R"]]);
}
