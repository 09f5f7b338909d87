//! Typed merging: merges an applied configuration into the live object, and removes fields from it.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::fields::{Tree, attach, child, children, field_element, is_member, node as set_node};
use super::node::{ListKind, Node, Shape, elements, members};

/// Returns the live value with the applied value merged into it.
pub(super) fn merge(node: Node<'_>, live: &Value, applied: &Value) -> Value {
    let shape = node.shape(Some(applied));
    if shape != node.shape(Some(live)) {
        return applied.clone();
    }
    match shape {
        Shape::Map => {
            let (live_members, applied_members) = (members(Some(live)), members(Some(applied)));
            let empty = |m: Option<&Map<String, Value>>| m.is_none_or(Map::is_empty);
            if empty(live_members) && empty(applied_members) {
                return applied.clone();
            }
            let mut merged = live_members.cloned().unwrap_or_default();
            for (name, value) in applied_members.into_iter().flatten() {
                let value = match merged.get(name) {
                    Some(live) => merge(node.member(name), live, value),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        Shape::List(kind) => {
            let (live_items, applied_items) = (elements(Some(live)), elements(Some(applied)));
            if live_items.is_empty() && applied_items.is_empty() {
                return applied.clone();
            }
            Value::Array(merge_lists(node, kind, live_items, applied_items))
        }
        Shape::Leaf => applied.clone(),
    }
}

/// A list with the identities of its elements; elements without identity are omitted.
struct Indexed<'a> {
    items: Vec<(String, &'a Value)>,
    /// The index of each element; `None` if it is repeated.
    places: HashMap<String, Option<usize>>,
}

impl<'a> Indexed<'a> {
    fn new(node: Node<'_>, kind: ListKind<'_>, list: &'a [Value]) -> Self {
        let items: Vec<(String, &Value)> =
            list.iter().filter_map(|v| Some((node.item(kind, v).ok()?, v))).collect();
        let mut places = HashMap::with_capacity(items.len());
        for (i, (element, _)) in items.iter().enumerate() {
            places.entry(element.clone()).and_modify(|place| *place = None).or_insert(Some(i));
        }
        Self { items, places }
    }

    fn has(&self, element: &str) -> bool {
        self.places.contains_key(element)
    }
}

/// Merges two lists. Elements of both keep the applied order; the other live elements keep their position relative to
/// their neighbours.
fn merge_lists(node: Node<'_>, kind: ListKind<'_>, live: &[Value], applied: &[Value]) -> Vec<Value> {
    let live = Indexed::new(node, kind, live);
    let applied = Indexed::new(node, kind, applied);
    let merged_item = |(element, value): &(String, &Value)| match live.places.get(element) {
        Some(Some(i)) => merge(node.element(), live.items[*i].1, value),
        // A repeated element has no single value to merge into.
        _ => (*value).clone(),
    };
    let mut shared = applied.items.iter().map(|(e, _)| e).filter(|e| live.has(e));
    let mut next_shared = shared.next();
    let mut done: std::collections::HashSet<&str> = std::collections::HashSet::new();
    let mut result = Vec::with_capacity(live.items.len().max(applied.items.len()));
    let (mut l, mut a) = (0, 0);
    while l < live.items.len() || a < applied.items.len() {
        if let (Some((left, _)), Some(right)) = (live.items.get(l), applied.items.get(a)) {
            if *left == right.0 {
                done.insert(left);
                result.push(merged_item(right));
                l += 1;
                a += 1;
                next_shared = shared.next();
                continue;
            }
            if applied.has(left) && next_shared.is_some_and(|next| next != left) {
                // The applied list adds it at its own position.
                l += 1;
                continue;
            }
        }
        if let Some((left, value)) = live.items.get(l) {
            if !applied.has(left) {
                result.push((*value).clone());
                l += 1;
                continue;
            }
            if done.contains(left.as_str()) {
                l += 1;
            }
        }
        if let Some(right) = applied.items.get(a) {
            done.insert(&right.0);
            result.push(merged_item(right));
            a += 1;
            if next_shared == Some(&right.0) {
                next_shared = shared.next();
            }
        }
    }
    result
}

/// Returns all fields that a value sets.
pub(super) fn field_set(node: Node<'_>, value: &Value) -> Tree {
    set_below(node, value).1
}

/// Returns whether the path itself is set as a whole, and the fields that are set below it.
fn set_below(node: Node<'_>, value: &Value) -> (bool, Tree) {
    let mut below = Tree::new();
    match node.shape(Some(value)) {
        Shape::Leaf => return (true, below),
        Shape::Map => {
            for (name, value) in members(Some(value)).into_iter().flatten() {
                let (leaf, deeper) = set_below(node.member(name), value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                let member = leaf || empty || !node.names(name);
                attach(&mut below, || field_element(name), member, deeper);
            }
        }
        Shape::List(kind) => {
            for (element, value) in
                elements(Some(value)).iter().filter_map(|v| Some((node.item(kind, v).ok()?, v)))
            {
                // A repeated element is owned as a whole.
                let repeated = below.contains_key(&element);
                let deeper = if repeated { Tree::new() } else { set_below(node.element(), value).1 };
                below.insert(element, set_node(true, deeper));
            }
        }
    }
    (false, below)
}

/// Returns the value without the fields of the set. A map or list that becomes empty is replaced by null.
pub(super) fn remove_fields(node: Node<'_>, value: &Value, set: &Tree) -> Value {
    match node.shape(Some(value)) {
        Shape::Leaf => match value {
            Value::Array(_) | Value::Object(_) => Value::Null,
            scalar => scalar.clone(),
        },
        Shape::Map => {
            let mut kept = Map::new();
            for (name, value) in members(Some(value)).into_iter().flatten() {
                match child(set, &field_element(name)) {
                    Some(below) if is_member(below) => {}
                    Some(below) => {
                        kept.insert(name.clone(), remove_fields(node.member(name), value, below));
                    }
                    None => {
                        kept.insert(name.clone(), value.clone());
                    }
                }
            }
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Shape::List(kind) => {
            let mut kept = Vec::new();
            for value in elements(Some(value)) {
                let element = node.item(kind, value).unwrap_or_default();
                match child(set, &element) {
                    Some(below) if is_member(below) => {}
                    Some(below) => kept.push(remove_fields(node.element(), value, below)),
                    None => kept.push(value.clone()),
                }
            }
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
    }
}

/// Returns the set with every field of the schema above a member as a member, too.
pub(super) fn with_named_fields(node: Node<'_>, set: &Tree) -> Tree {
    let mut all = Tree::new();
    for (element, below) in children(set) {
        let name = element.strip_prefix("f:");
        let next = match name {
            Some(name) => node.member(name),
            None => node.element(),
        };
        let member = is_member(below) || name.is_some_and(|name| node.names(name));
        attach(&mut all, || element.clone(), member, with_named_fields(next, below));
    }
    all
}
