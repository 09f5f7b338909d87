//! Calculates the difference of two versions of an object, as sets of field paths.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{Tree, attach, field_element, node as set_node};
use super::node::{ListKind, Node, Shape, elements, members};

/// Members of metadata that are not recorded in managedFields: the server sets them.
pub(super) const UNOWNED_METADATA: &[&str] = &[
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];
const UNOWNED_ROOT: &[&str] = &["apiVersion", "kind"];
/// Up to this length, comparing keys pairwise is cheaper than building an index.
const SHORT_LIST: usize = 16;

/// The paths that differ.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// Paths that are new or have another value.
    pub(super) changed: Tree,
    pub(super) removed: Tree,
}

impl Difference {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// The difference at one path: of the path itself, and below it.
#[derive(Default)]
struct Level {
    below: Difference,
    changed: bool,
    removed: bool,
}

/// Compares two objects; ignores the fields that are not recorded in managedFields.
pub(super) fn compare_objects(root: Node<'_>, old: &Value, new: &Value) -> Difference {
    let mut top = Difference::default();
    zip_members(members(Some(old)), members(Some(new)), |name, old, new| {
        if UNOWNED_ROOT.contains(&name) || old == new {
            return;
        }
        let node = root.member(name);
        if name != "metadata" {
            add(&mut top, || field_element(name), compare(node, old, new));
            return;
        }
        let mut level = Level::default();
        zip_members(members(old), members(new), |name, old, new| {
            if !UNOWNED_METADATA.contains(&name) && old != new {
                add(&mut level.below, || field_element(name), compare(node.member(name), old, new));
            }
        });
        add(&mut top, || "f:metadata".to_owned(), level);
    });
    top
}

fn add(parent: &mut Difference, element: impl Fn() -> String, level: Level) {
    attach(&mut parent.changed, &element, level.changed, level.below.changed);
    attach(&mut parent.removed, &element, level.removed, level.below.removed);
}

fn compare(node: Node<'_>, old: Option<&Value>, new: Option<&Value>) -> Level {
    let mut level = Level::default();
    if let (None, Some(new)) = (old, new) {
        level.changed = true;
        level.below.changed = all_below(node, new);
        return level;
    }
    let new_shape = node.shape(new.or(old));
    let old_shape = node.shape(old.or(new));
    if old_shape != new_shape {
        // Happens only without a schema: a map became a scalar or list, or vice versa.
        compare_members(node, members(old), members(new), &mut level.below);
        level.changed = true;
        return level;
    }
    match new_shape {
        Shape::Map
            if members(old).is_some_and(|m| !m.is_empty()) || members(new).is_some_and(|m| !m.is_empty()) =>
        {
            compare_members(node, members(old), members(new), &mut level.below);
        }
        Shape::List(kind) if !elements(old).is_empty() || !elements(new).is_empty() => {
            compare_lists(node, kind, elements(old), elements(new), &mut level.below);
        }
        _ => {
            level.changed = new.is_some() && old != new;
            level.removed = new.is_none();
            return level;
        }
    }
    level.changed = old.is_none();
    level.removed = new.is_none();
    level
}

/// Returns every path below a value that did not exist before.
fn all_below(node: Node<'_>, value: &Value) -> Tree {
    let mut all = Tree::new();
    match node.shape(Some(value)) {
        Shape::Map => {
            for (name, value) in members(Some(value)).into_iter().flatten() {
                all.insert(field_element(name), set_node(true, all_below(node.member(name), value)));
            }
        }
        Shape::List(kind) => add_items(node, kind, elements(Some(value)), &mut all),
        Shape::Leaf => {}
    }
    all
}

fn add_items(node: Node<'_>, kind: ListKind<'_>, items: &[Value], all: &mut Tree) {
    for item in items {
        let Ok(element) = node.item(kind, item) else { continue };
        // A repeated element is owned as a whole.
        let below = if all.contains_key(&element) { Tree::new() } else { all_below(node.element(), item) };
        all.insert(element, set_node(true, below));
    }
}

fn compare_members(
    node: Node<'_>,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    below: &mut Difference,
) {
    zip_members(old, new, |name, old, new| {
        if old != new {
            add(below, || field_element(name), compare(node.member(name), old, new));
        }
    });
}

/// Calls `each` for every name in either map, in order.
fn zip_members<'a>(
    old: Option<&'a Map<String, Value>>,
    new: Option<&'a Map<String, Value>>,
    mut each: impl FnMut(&'a str, Option<&'a Value>, Option<&'a Value>),
) {
    let mut old = old.into_iter().flatten().peekable();
    let mut new = new.into_iter().flatten().peekable();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let left = if order.is_le() { old.next() } else { None };
        let right = if order.is_ge() { new.next() } else { None };
        if let Some((name, _)) = left.or(right) {
            each(name, left.map(|(_, v)| v), right.map(|(_, v)| v));
        }
    }
}

fn compare_lists(node: Node<'_>, kind: ListKind<'_>, old: &[Value], new: &[Value], below: &mut Difference) {
    if old == new {
        return;
    }
    if old.is_empty() {
        return add_items(node, kind, new, &mut below.changed);
    }
    if same_items(kind, old, new) {
        for (old, new) in old.iter().zip(new).filter(|(old, new)| old != new) {
            if let Ok(element) = node.item(kind, new) {
                add(below, || element.clone(), compare(node.element(), Some(old), Some(new)));
            }
        }
        return;
    }
    let mut items: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in old {
        if let Ok(element) = node.item(kind, item) {
            items.entry(element).or_default().0.push(item);
        }
    }
    for item in new {
        if let Ok(element) = node.item(kind, item) {
            items.entry(element).or_default().1.push(item);
        }
    }
    for (element, (old, new)) in items {
        let item = node.element();
        let level = match (old.as_slice(), new.as_slice()) {
            (&[old], &[new]) if old == new => continue,
            (&[] | &[_], &[] | &[_]) => compare(item, old.first().copied(), new.first().copied()),
            // Repeated elements are owned as a whole.
            (&[_, _, ..], &[_, _, ..]) => Level { changed: old != new, ..Level::default() },
            (&[_, _, ..], _) => {
                let new = new.first().copied();
                let level = new.map(|new| compare(item, None, Some(new))).unwrap_or_default();
                Level { removed: true, ..level }
            }
            (_, _) => {
                let old = old.first().copied();
                let level = old.map(|old| compare(item, Some(old), None)).unwrap_or_default();
                Level { changed: true, ..level }
            }
        };
        add(below, || element.clone(), level);
    }
}

/// Returns whether both lists have the same elements in the same order without repetition: the common case, which
/// needs no index.
fn same_items(kind: ListKind<'_>, old: &[Value], new: &[Value]) -> bool {
    let ListKind::Map(keys) = kind else { return false };
    let same = |a: &Value, b: &Value| keys.sorted().iter().all(|k| a.get(k) == b.get(k));
    old.len() == new.len()
        && old.len() <= SHORT_LIST
        && old.iter().zip(new).all(|(a, b)| same(a, b))
        && (1..old.len()).all(|i| !old[..i].iter().any(|a| same(a, &old[i])))
}
