//! Sets of field paths in the form of FieldsV1: `{"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}}}}}`.
//!
//! A set is kept as the JSON that is stored, so that no conversion is needed and an operation with a small set
//! touches only the paths of that set. A node is a member of the set if it is empty or contains `.`; a node that is
//! not a member exists only as the parent of members.

use std::cmp::Ordering;

use serde_json::{Map, Value};

/// The children of a node by path element: `f:NAME`, `k:{KEYS}`, `v:VALUE`, `i:INDEX`.
pub(super) type Tree = Map<String, Value>;

const SELF: &str = ".";
/// The maximum nesting of a set: that of documents.
const MAX_DEPTH: usize = 127;

/// A set of paths to fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSet(pub(super) Tree);

/// The managed fields are malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid managed fields: {0}")]
pub struct FieldSetError(String);

impl FieldSetError {
    pub(super) fn new(message: &str) -> Self {
        Self(message.to_owned())
    }
}

impl FieldSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a set of paths of field names. As a filter, a path includes everything below it.
    pub fn of_names(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let elements: Vec<String> = path.iter().map(|name| field_element(name)).collect();
            set.insert(&elements);
        }
        set
    }

    /// Adds the path with these elements.
    pub fn insert(&mut self, path: &[String]) {
        let mut single = None;
        for (i, element) in path.iter().enumerate().rev() {
            let mut tree = Tree::new();
            tree.insert(element.clone(), node(i + 1 == path.len(), single.take().unwrap_or_default()));
            single = Some(tree);
        }
        if let Some(tree) = single {
            union(&mut self.0, tree);
        }
    }

    /// Parses FieldsV1. Path elements are converted to their canonical form; unknown kinds of elements are omitted.
    pub fn from_value(value: &Value) -> Result<Self, FieldSetError> {
        match value {
            Value::Object(map) => Ok(Self(normalize(map, 0)?)),
            other => Err(FieldSetError(other.to_string())),
        }
    }

    /// Returns the set as FieldsV1.
    pub fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the set has the path with these elements.
    pub fn contains(&self, path: &[String]) -> bool {
        let mut tree = &self.0;
        for element in path {
            match child(tree, element) {
                Some(next) => tree = next,
                None => return false,
            }
        }
        !path.is_empty() && is_member(tree)
    }

    /// Returns the paths as error messages show them, `.spec.containers[name="a"].image`, in order.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        collect_paths(&self.0, "", &mut paths);
        paths
    }
}

fn normalize(map: &Tree, depth: usize) -> Result<Tree, FieldSetError> {
    let mut tree = Tree::new();
    if depth > MAX_DEPTH {
        return Err(FieldSetError("nested too deeply".to_owned()));
    }
    for (key, value) in map {
        let Value::Object(below) = value else { return Err(FieldSetError(key.clone())) };
        if key == SELF {
            tree.insert(SELF.to_owned(), node(true, Tree::new()));
        } else if let Some(element) = canonical_element(key)? {
            tree.insert(element, Value::Object(normalize(below, depth + 1)?));
        }
    }
    // A single `.` means the same as an empty node.
    if tree.len() == 1 && tree.contains_key(SELF) {
        tree.clear();
    }
    Ok(tree)
}

fn canonical_element(key: &str) -> Result<Option<String>, FieldSetError> {
    let bad = || FieldSetError(key.to_owned());
    let (kind, rest) = key.split_once(':').ok_or_else(bad)?;
    Ok(match kind {
        "f" => Some(key.to_owned()),
        "i" => Some(format!("i:{}", rest.parse::<i64>().map_err(|_| bad())?)),
        "k" | "v" => {
            let value: Value = serde_json::from_str(rest).map_err(|_| bad())?;
            if kind == "k" && !value.is_object() {
                return Err(bad());
            }
            Some(format!("{kind}:{value}"))
        }
        _ => None,
    })
}

/// Returns the path element of a named field.
pub(super) fn field_element(name: &str) -> String {
    ["f:", name].concat()
}

pub(super) fn is_member(node: &Tree) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// Returns the node of a path element.
pub(super) fn child<'a>(tree: &'a Tree, element: &str) -> Option<&'a Tree> {
    tree.get(element).and_then(Value::as_object)
}

/// Returns the children of a node, without its own membership.
pub(super) fn children(tree: &Tree) -> impl Iterator<Item = (&String, &Tree)> {
    tree.iter().filter(|(k, _)| *k != SELF).filter_map(|(k, v)| Some((k, v.as_object()?)))
}

/// Creates a node; one that is not a member must have children.
pub(super) fn node(member: bool, mut below: Tree) -> Value {
    if member && !below.is_empty() {
        below.insert(SELF.to_owned(), Value::Object(Tree::new()));
    }
    Value::Object(below)
}

/// Adds a node under `element`, unless it is empty.
pub(super) fn attach(parent: &mut Tree, element: impl FnOnce() -> String, member: bool, below: Tree) {
    if member || !below.is_empty() {
        parent.insert(element(), node(member, below));
    }
}

/// Adds all paths of `b` to `a`.
pub(super) fn union(a: &mut Tree, b: Tree) {
    for (element, node_b) in b {
        let Value::Object(mut below_b) = node_b else { continue };
        match a.get_mut(&element) {
            Some(Value::Object(below_a)) => {
                let member = is_member(below_a) || is_member(&below_b);
                below_a.remove(SELF);
                below_b.remove(SELF);
                union(below_a, below_b);
                if member && !below_a.is_empty() {
                    below_a.insert(SELF.to_owned(), Value::Object(Tree::new()));
                }
            }
            _ => {
                a.insert(element, Value::Object(below_b));
            }
        }
    }
}

/// Whether a member of `b` removes only its own path from `a`, or everything below it, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Path,
    Below,
}

/// Removes the paths of `b` from `a`.
pub(super) fn subtract(a: &mut Tree, b: &Tree, reach: Reach) {
    for (element, below_b) in children(b) {
        let Some(Value::Object(below_a)) = a.get_mut(element) else { continue };
        let hit = is_member(below_b);
        if hit && reach == Reach::Below {
            a.remove(element);
            continue;
        }
        let member = is_member(below_a) && !hit;
        below_a.remove(SELF);
        subtract(below_a, below_b, reach);
        if !below_a.is_empty() {
            if member {
                below_a.insert(SELF.to_owned(), Value::Object(Tree::new()));
            }
        } else if !member {
            a.remove(element);
        }
    }
}

/// Returns the paths that are in both sets.
pub(super) fn intersection(a: &Tree, b: &Tree) -> Tree {
    let mut common = Tree::new();
    for (element, below_b) in children(b) {
        if let Some(below_a) = child(a, element) {
            let member = is_member(below_a) && is_member(below_b);
            attach(&mut common, || element.clone(), member, intersection(below_a, below_b));
        }
    }
    common
}

fn collect_paths(tree: &Tree, prefix: &str, paths: &mut Vec<String>) {
    let mut ordered: Vec<(Element<'_>, &Tree)> =
        children(tree).map(|(element, below)| (Element::parse(element), below)).collect();
    ordered.sort_by(|a, b| a.0.compare(&b.0));
    for (element, below) in &ordered {
        if is_member(below) {
            paths.push(format!("{prefix}{}", element.text()));
        }
    }
    for (element, below) in ordered {
        collect_paths(below, &format!("{prefix}{}", element.text()), paths);
    }
}

/// Formats a path element for error messages: `.image`, `[name="a"]`, `[="x"]`.
pub(super) fn element_text(element: &str) -> String {
    Element::parse(element).text()
}

/// A parsed path element.
enum Element<'a> {
    Field(&'a str),
    Key(Tree),
    Value(Value),
    Index(i64),
}

impl<'a> Element<'a> {
    fn parse(element: &'a str) -> Self {
        let (kind, rest) = element.split_once(':').unwrap_or(("f", element));
        let json = || serde_json::from_str::<Value>(rest).unwrap_or(Value::Null);
        match kind {
            "k" => match json() {
                Value::Object(keys) => Self::Key(keys),
                other => Self::Value(other),
            },
            "v" => Self::Value(json()),
            "i" => Self::Index(rest.parse().unwrap_or(0)),
            _ => Self::Field(rest),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Field(name) => format!(".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
                format!("[{}]", keys.join(","))
            }
            Self::Value(value) => format!("[={value}]"),
            Self::Index(index) => format!("[{index}]"),
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let pairs =
                    a.iter().zip(b).map(|((ka, va), (kb, vb))| ka.cmp(kb).then(compare_values(va, vb)));
                pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
            }
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// Orders numbers before strings before booleans, each by value.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        _ => value_rank(a).cmp(&value_rank(b)),
    }
}

fn value_rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a random set of paths with few names, so that sets overlap.
    fn random(rng: &mut fastrand::Rng) -> FieldSet {
        let names = ["f:a", "f:b", "k:{\"name\":\"x\"}", "v:1"];
        let mut set = FieldSet::new();
        for _ in 0..rng.usize(0..8) {
            let path: Vec<String> =
                (0..rng.usize(1..4)).map(|_| names[rng.usize(..names.len())].to_owned()).collect();
            set.insert(&path);
        }
        set
    }

    #[test]
    fn laws() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..5_000 {
            let (a, b) = (random(&mut rng), random(&mut rng));
            let mut both = a.clone();
            union(&mut both.0, b.0.clone());
            let mut minus = a.clone();
            subtract(&mut minus.0, &b.0, Reach::Path);
            let common = FieldSet(intersection(&a.0, &b.0));
            let sorted = |mut v: Vec<String>| {
                v.sort();
                v
            };
            let (in_a, in_b) = (a.paths(), b.paths());
            let mut expected = in_a.clone();
            expected.extend(in_b.iter().filter(|p| !in_a.contains(p)).cloned());
            assert_eq!(sorted(both.paths()), sorted(expected));
            let only_a: Vec<String> = in_a.iter().filter(|p| !in_b.contains(p)).cloned().collect();
            assert_eq!(minus.paths(), only_a);
            let shared: Vec<String> = in_a.iter().filter(|p| in_b.contains(p)).cloned().collect();
            assert_eq!(common.paths(), shared);
            assert_eq!(FieldSet::from_value(&a.to_value()), Ok(a.clone()));
            let mut gone = a.clone();
            subtract(&mut gone.0, &a.0, Reach::Path);
            assert!(gone.is_empty());
        }
    }

    #[test]
    fn recursive_difference_takes_what_is_below() {
        let value = serde_json::json!({"f:status": {"f:phase": {}}, "f:spec": {"f:a": {}}});
        let mut set = FieldSet::from_value(&value).unwrap();
        subtract(&mut set.0, &FieldSet::of_names(&[&["status"]]).0, Reach::Below);
        assert_eq!(set.paths(), [".spec.a"]);
    }

    #[test]
    fn reading_is_strict_and_canonical() {
        let read = |text: &str| FieldSet::from_value(&serde_json::from_str(text).unwrap());
        let set = read(r#"{"f:l":{"k:{ \"port\": 80, \"name\":\"a\"}":{".":{}},"q:x":{}}}"#).unwrap();
        assert_eq!(set.to_value().to_string(), r#"{"f:l":{"k:{\"name\":\"a\",\"port\":80}":{}}}"#);
        assert_eq!(set.paths(), [r#".l[name="a",port=80]"#]);
        for bad in
            ["[]", r#"{"f:a":1}"#, r#"{"plain":{}}"#, r#"{"k:[]":{}}"#, r#"{"v:{":{}}"#, r#"{"i:x":{}}"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_in_the_order_of_their_values() {
        let text = r#"{"f:p":{"k:{\"port\":443}":{},"k:{\"port\":80}":{"f:n":{}}},"f:a":{}}"#;
        let set = FieldSet::from_value(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(set.paths(), [".a", ".p[port=443]", ".p[port=80].n"]);
    }
}
