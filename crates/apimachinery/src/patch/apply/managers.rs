//! `metadata.managedFields`: one entry per manager, operation, version and subresource.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::fields::{FieldSet, FieldSetError, Tree, union};

/// The maximum number of separate entries for updates; the oldest beyond it are merged into one.
const MAX_UPDATE_MANAGERS: usize = 10;
const OLD_UPDATES_MANAGER: &str = "ancient-changes";

/// The identity of a manager: one name may update and apply, in several versions and subresources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity<'a> {
    pub(super) manager: &'a str,
    pub(super) applied: bool,
    /// Ignored for applied entries: the manager keeps its fields across versions.
    pub(super) api_version: &'a str,
    pub(super) subresource: &'a str,
}

/// One entry of managedFields, as JSON.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry(Map<String, Value>);

impl Entry {
    pub(super) fn new(identity: Identity<'_>) -> Self {
        let mut map = Map::new();
        let mut set = |key: &str, value: &str| map.insert(key.to_owned(), Value::from(value));
        set("manager", identity.manager);
        set("operation", if identity.applied { "Apply" } else { "Update" });
        set("apiVersion", identity.api_version);
        set("fieldsType", "FieldsV1");
        if !identity.subresource.is_empty() {
            set("subresource", identity.subresource);
        }
        Self(map)
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or("")
    }

    pub(super) fn identity(&self) -> Identity<'_> {
        Identity {
            manager: self.text("manager"),
            applied: self.text("operation") == "Apply",
            api_version: self.text("apiVersion"),
            subresource: self.text("subresource"),
        }
    }

    pub(super) fn is(&self, other: Identity<'_>) -> bool {
        let own = self.identity();
        own.manager == other.manager
            && own.applied == other.applied
            && own.subresource == other.subresource
            && (own.applied || own.api_version == other.api_version)
    }

    pub(super) fn fields(&self) -> Option<&Tree> {
        self.0.get("fieldsV1").and_then(Value::as_object)
    }

    pub(super) fn fields_mut(&mut self) -> &mut Tree {
        let value = self.0.entry("fieldsV1").or_insert_with(|| Value::Object(Tree::new()));
        if !value.is_object() {
            *value = Value::Object(Tree::new());
        }
        match value {
            Value::Object(tree) => tree,
            _ => unreachable!("made an object just above"),
        }
    }

    pub(super) fn set_fields(&mut self, fields: Tree) {
        self.0.insert("fieldsV1".to_owned(), Value::Object(fields));
    }

    pub(super) fn set_api_version(&mut self, api_version: &str) {
        self.0.insert("apiVersion".to_owned(), Value::from(api_version));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields().is_none_or(Map::is_empty)
    }

    pub(super) fn stamp(&mut self, now: Timestamp) {
        let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
        self.0.insert("time".to_owned(), Value::from(seconds.to_string()));
    }

    fn seconds(&self) -> i64 {
        self.text("time").parse::<Timestamp>().map_or(0, Timestamp::as_second)
    }

    /// Returns whether the entries are equal except for their times.
    fn same_but_time(&self, other: &Entry) -> bool {
        let without_time = |e: &Entry| {
            let mut map = e.0.clone();
            map.remove("time");
            map
        };
        without_time(self) == without_time(other)
    }

    /// Returns the manager as conflict messages show it.
    pub(super) fn shown(&self) -> String {
        let identity = self.identity();
        let mut text = Value::from(identity.manager).to_string();
        if !identity.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", Value::from(identity.subresource)));
        }
        if !identity.applied {
            text.push_str(&format!(" using {}", identity.api_version));
        }
        text
    }
}

/// Returns the list in an object's metadata.
pub(super) fn raw(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Removes the list from an object's metadata and returns it.
pub(super) fn take(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// Sorts the entries and writes them into an object's metadata; removes the list if there are none.
pub(super) fn put(object: &mut Value, mut entries: Vec<Entry>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
        return;
    }
    let later = |a: &Entry, b: &Entry| {
        let (x, y) = (a.identity(), b.identity());
        (!x.applied).cmp(&!y.applied).then_with(|| a.seconds().cmp(&b.seconds())).then_with(|| {
            (x.manager, x.api_version, x.subresource).cmp(&(y.manager, y.api_version, y.subresource))
        })
    };
    entries.sort_by(later);
    let list = entries.into_iter().map(|e| Value::Object(e.0)).collect();
    metadata.insert("managedFields".to_owned(), Value::Array(list));
}

/// Decodes a list that a client sent. On an error, the caller ignores the whole list.
pub(super) fn decode(list: &Value) -> Result<Vec<Entry>, FieldSetError> {
    let mut entries: Vec<Entry> = Vec::new();
    for item in list.as_array().into_iter().flatten() {
        let known = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or("");
        let applied = match known("operation") {
            "Apply" => true,
            "Update" => false,
            _ => return Err(FieldSetError::new("operation must be `Apply` or `Update`")),
        };
        if known("apiVersion").is_empty() {
            return Err(FieldSetError::new("apiVersion must not be empty"));
        }
        if known("fieldsType") != "FieldsV1" {
            return Err(FieldSetError::new("fieldsType must be FieldsV1"));
        }
        let identity = Identity {
            manager: known("manager"),
            applied,
            api_version: known("apiVersion"),
            subresource: known("subresource"),
        };
        let mut entry = Entry::new(identity);
        let fields = match item.get("fieldsV1") {
            None | Some(Value::Null) => Tree::new(),
            Some(fields) => FieldSet::from_value(fields)?.0,
        };
        entry.set_fields(fields);
        if let Some(time) = item.get("time").filter(|t| t.is_string()) {
            entry.0.insert("time".to_owned(), time.clone());
        }
        match entries.iter_mut().find(|e| e.is(identity)) {
            Some(earlier) => *earlier = entry,
            None => entries.push(entry),
        }
    }
    Ok(entries)
}

/// Reads a list that this module has written.
pub(super) fn trusted(list: Value) -> Vec<Entry> {
    let Value::Array(list) = list else { return Vec::new() };
    list.into_iter()
        .filter_map(|item| match item {
            Value::Object(map) => Some(Entry(map)),
            _ => None,
        })
        .collect()
}

/// Merges the oldest entries for updates, per version, so that at most ten remain if the versions permit it.
pub(super) fn cap(entries: &mut Vec<Entry>) {
    let mut updaters: Vec<usize> = (0..entries.len()).filter(|i| !entries[*i].identity().applied).collect();
    let mut excess = updaters.len().saturating_sub(MAX_UPDATE_MANAGERS);
    if excess == 0 {
        return;
    }
    updaters.sort_by_cached_key(|i| (entries[*i].seconds(), identifier(&entries[*i])));
    let mut first_of_version: Vec<(String, usize)> = Vec::new();
    let mut gone: Vec<usize> = Vec::new();
    for i in updaters {
        if excess == 0 {
            break;
        }
        let version = entries[i].identity().api_version.to_owned();
        let Some((_, first)) = first_of_version.iter().find(|(v, _)| *v == version) else {
            first_of_version.push((version, i));
            continue;
        };
        let first = *first;
        let bucket = bucket_for(entries, first, &version, &gone);
        if bucket == i {
            continue;
        }
        let (fields, time) =
            (entries[i].fields().cloned().unwrap_or_default(), entries[i].0.get("time").cloned());
        union(entries[bucket].fields_mut(), fields);
        match time {
            Some(time) => entries[bucket].0.insert("time".to_owned(), time),
            None => entries[bucket].0.remove("time"),
        };
        gone.push(i);
        excess -= 1;
    }
    let mut place = 0;
    entries.retain(|_| {
        place += 1;
        !gone.contains(&(place - 1))
    });
}

/// Returns the entry that collects old updates of a version: the existing one, or the oldest entry, renamed.
fn bucket_for(entries: &mut [Entry], first: usize, version: &str, gone: &[usize]) -> usize {
    let identity =
        Identity { manager: OLD_UPDATES_MANAGER, applied: false, api_version: version, subresource: "" };
    if let Some(found) = (0..entries.len()).find(|i| !gone.contains(i) && entries[*i].is(identity)) {
        return found;
    }
    let fields = entries[first].fields().cloned().unwrap_or_default();
    entries[first] = Entry::new(identity);
    entries[first].set_fields(fields);
    first
}

/// Returns the text by which upstream sorts managers: the entry as JSON, without the version if it is ignored.
pub(super) fn identifier(entry: &Entry) -> String {
    let identity = entry.identity();
    let operation = if identity.applied { "Apply" } else { "Update" };
    let mut text = format!("{{\"manager\":{},\"operation\":\"{operation}\"", Value::from(identity.manager));
    if !identity.applied {
        text.push_str(&format!(",\"apiVersion\":{}", Value::from(identity.api_version)));
    }
    if !identity.subresource.is_empty() {
        text.push_str(&format!(",\"subresource\":{}", Value::from(identity.subresource)));
    }
    text.push('}');
    text
}

/// Restores the old times of entries that did not change, if the rest of the object did not change, either.
pub(super) fn keep_times(old: &Value, new: &mut Value) {
    let (Some(Value::Array(before)), Some(Value::Array(after))) = (raw(old), raw(new)) else { return };
    let entry = |v: &Value| v.as_object().cloned().map(Entry);
    let same = before.len() == after.len()
        && before.iter().zip(after).all(|(a, b)| match (entry(a), entry(b)) {
            (Some(a), Some(b)) => a.same_but_time(&b),
            _ => false,
        });
    if same && before != after && equal_but_managed_fields(old, new) {
        let before = Value::Array(before.clone());
        if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("managedFields".to_owned(), before);
        }
    }
}

/// Returns whether two objects are equal except for `metadata.managedFields`.
pub(super) fn equal_but_managed_fields(a: &Value, b: &Value) -> bool {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return a == b };
    let same_metadata = |a: &Value, b: &Value| match (a, b) {
        (Value::Object(a), Value::Object(b)) => a
            .iter()
            .filter(|(k, _)| *k != "managedFields")
            .eq(b.iter().filter(|(k, _)| *k != "managedFields")),
        _ => a == b,
    };
    a.len() == b.len()
        && a.iter().zip(b).all(|((ka, va), (kb, vb))| {
            ka == kb && if ka == "metadata" { same_metadata(va, vb) } else { va == vb }
        })
}
