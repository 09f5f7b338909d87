//! Server-side apply and the tracking of field ownership (`metadata.managedFields`).
//!
//! Sources: `sigs.k8s.io/structured-merge-diff`, `k8s.io/apimachinery/pkg/util/managedfields`, KEP-555. Pure
//! functions on JSON objects: [`update`] for every write that is not an apply, [`apply`] for applies.
//!
//! Entries of other API versions are compared in the version of the request: in the groups served here, field paths
//! are the same in all versions.

mod compare;
mod conflict;
mod fields;
mod managers;
mod merge;
mod mutation;
mod node;
mod validate;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};
use serde_json::Value;

use crate::gvk::GroupVersionKind;
use crate::schema::{self, Struct};
use crate::status::StatusError;
use crate::structural::Schema;
use compare::{Difference, UNOWNED_METADATA, compare_objects};
use fields::{Reach, Tree, intersection, subtract, union};
use managers::{Entry, Identity};
use node::{Node, empty_object};

pub use conflict::Conflict;
pub use fields::{FieldSet, FieldSetError};
pub use mutation::mutate;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manager of a write, and the kind that it writes.
#[derive(Debug, Clone, Copy)]
pub struct Manager<'a> {
    /// The `fieldManager` of the request, or the first part of the user agent.
    pub name: &'a str,
    /// `status`, `scale` and so on; empty for the object itself.
    pub subresource: &'a str,
    /// The kind of the written object.
    pub kind: &'a GroupVersionKind,
    /// The schema of the kind; `None` for a custom resource.
    pub schema: Option<&'static Struct>,
    /// The schema of a custom resource; without one, its lists are atomic.
    pub custom: Option<&'a Schema>,
    /// Fields that this endpoint does not write: `status` on the object itself, `spec` on its status.
    pub reset: Option<&'a FieldSet>,
    pub now: Timestamp,
}

impl<'a> Manager<'a> {
    fn identity(&self, applied: bool, api_version: &'a str) -> Identity<'a> {
        let manager = if self.name.is_empty() { "unknown" } else { self.name };
        Identity { manager, applied, api_version, subresource: self.subresource }
    }

    fn filter(&self, set: &mut Tree) {
        if let Some(reset) = self.reset {
            subtract(set, &reset.0, Reach::Below);
        }
    }

    fn root(&self) -> Node<'a> {
        Node::root(self.schema, self.custom)
    }

    fn compare(&self, old: &Value, new: &Value) -> Difference {
        let mut difference = compare_objects(self.root(), old, new);
        self.filter(&mut difference.changed);
        self.filter(&mut difference.removed);
        difference
    }
}

/// Records the field ownership in `new` after a create, update or non-apply patch by this manager.
///
/// `live` is the stored object, `None` on create. Entries that a client sent are treated as upstream does: on the
/// object itself, an empty list resets all entries, and malformed entries are ignored.
pub fn update(live: Option<&Value>, new: &mut Value, by: &Manager<'_>) {
    if !new.get("metadata").is_some_and(Value::is_object) {
        return;
    }
    let sent = managers::take(new);
    let stored = live.and_then(managers::raw);
    let mut entries = match sent {
        Some(list) if Some(&list) == stored => managers::trusted(list),
        sent => current_entries(sent, stored, by.subresource),
    };
    drop_unknown_versions(&mut entries, by);
    if entries.is_empty() && live.is_some() {
        // Objects without managedFields start to track ownership only with an apply.
        return;
    }
    let empty;
    let old = match live {
        Some(live) => live,
        None => {
            empty = empty_object(by.schema);
            &empty
        }
    };
    record_update(&mut entries, old, new, by, by.name);
    managers::put(new, entries);
}

fn current_entries(sent: Option<Value>, stored: Option<&Value>, subresource: &str) -> Vec<Entry> {
    let from_stored = || stored.cloned().map(managers::trusted).unwrap_or_default();
    let Some(list) = sent.filter(|list| subresource.is_empty() && list.is_array()) else {
        return from_stored();
    };
    let reset = match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    };
    if reset {
        return Vec::new();
    }
    managers::decode(&list).unwrap_or_else(|_| from_stored())
}

/// Removes managers of versions that the kind does not have: their paths have no meaning any more.
fn drop_unknown_versions(entries: &mut Vec<Entry>, by: &Manager<'_>) {
    if by.schema.is_none() {
        return;
    }
    let known = |api_version: &str| {
        let kind = GroupVersionKind::from_api_version(api_version, &by.kind.kind);
        kind == *by.kind || (kind.group == by.kind.group && schema::for_kind(&kind).is_some())
    };
    entries.retain(|e| known(e.identity().api_version));
}

/// Makes the named manager the owner of the fields that differ, and removes them from all others.
fn record_update(entries: &mut Vec<Entry>, old: &Value, new: &Value, by: &Manager<'_>, name: &str) {
    let difference = by.compare(old, new);
    if difference.is_empty() {
        return;
    }
    for entry in entries.iter_mut() {
        subtract(entry.fields_mut(), &difference.changed, Reach::Path);
        subtract(entry.fields_mut(), &difference.removed, Reach::Path);
    }
    if !difference.changed.is_empty() {
        let api_version = by.kind.api_version();
        let writer = Manager { name, ..*by };
        let identity = writer.identity(false, &api_version);
        let entry = own_entry(entries, identity);
        union(entry.fields_mut(), difference.changed);
        entry.stamp(by.now);
    }
    entries.retain(|e| !e.is_empty());
    managers::cap(entries);
}

fn own_entry<'e>(entries: &'e mut Vec<Entry>, identity: Identity<'_>) -> &'e mut Entry {
    let place = entries.iter().position(|e| e.is(identity)).unwrap_or_else(|| {
        entries.push(Entry::new(identity));
        entries.len() - 1
    });
    &mut entries[place]
}

/// Returns the object after an apply by this manager.
///
/// `live` is the stored object, `None` if the apply creates it: the result then has only the applied fields; the
/// caller adds defaults and the server's metadata. Fails with the conflict (409) unless `force`, with 400 for a patch
/// of another kind or with managedFields, and, as upstream does, with 500 for a patch that does not fit the schema.
pub fn apply(
    live: Option<&Value>,
    patch: &Value,
    by: &Manager<'_>,
    force: bool,
) -> Result<Value, StatusError> {
    let empty;
    let live = match live {
        Some(live) => live,
        None => {
            empty = new_object(by);
            &empty
        }
    };
    let attempt = match try_apply(live, patch, by, force) {
        Err(ApplyError::Conflicts(conflicts)) if by.name == "kubectl" => {
            // A client-side apply owns the fields of its annotation that the object still has.
            match conflict::beyond_last_applied(live, conflicts, by) {
                conflicts if conflicts.is_empty() => try_apply(live, patch, by, true),
                conflicts => Err(ApplyError::Conflicts(conflicts)),
            }
        }
        other => other,
    };
    let mut object = attempt?;
    if by.name == "kubectl" {
        update_last_applied(&mut object, patch);
    }
    Ok(object)
}

/// Why an apply fails.
enum ApplyError {
    Refused(StatusError),
    Conflicts(Vec<Conflict>),
}

impl From<ApplyError> for StatusError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Refused(status) => status,
            ApplyError::Conflicts(conflicts) => {
                let mut status = StatusError::new(409, "Conflict", conflict::message(&conflicts));
                let cause = |c: &Conflict| StatusCause {
                    field: Some(c.path.clone()),
                    message: Some(format!("conflict with {}", c.manager)),
                    reason: Some("FieldManagerConflict".to_owned()),
                };
                let causes = Some(conflicts.iter().map(cause).collect());
                status.0.details = Some(StatusDetails { causes, ..StatusDetails::default() });
                status
            }
        }
    }
}

fn new_object(by: &Manager<'_>) -> Value {
    let mut object = empty_object(by.schema);
    if let Value::Object(map) = &mut object {
        map.insert("apiVersion".to_owned(), Value::from(by.kind.api_version()));
        map.insert("kind".to_owned(), Value::from(by.kind.kind.as_str()));
    }
    object
}

/// Formats a kind as Go prints it: `/v1, Kind=Pod`, `apps/v1, Kind=Deployment`.
fn go_kind(kind: &GroupVersionKind) -> String {
    format!("{}/{}, Kind={}", kind.group, kind.version, kind.kind)
}

fn check_patch(patch: &Value, by: &Manager<'_>) -> Result<(), StatusError> {
    let text = |key: &str| patch.get(key).and_then(Value::as_str).unwrap_or("");
    let kind = GroupVersionKind::from_api_version(text("apiVersion"), text("kind"));
    if kind != *by.kind {
        return Err(StatusError::bad_request(format!("invalid object type: {}", go_kind(&kind))));
    }
    if managers::raw(patch).is_some_and(|list| !list.is_null()) {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    validate::validate(by.root(), patch).map_err(|problems| {
        let meta = |key: &str| patch["metadata"][key].as_str().unwrap_or("");
        let object = format!("{}/{}; {}", meta("namespace"), meta("name"), go_kind(by.kind));
        StatusError::new(500, "", format!("failed to create typed patch object ({object}): {problems}"))
    })
}

fn try_apply(live: &Value, patch: &Value, by: &Manager<'_>, force: bool) -> Result<Value, ApplyError> {
    check_patch(patch, by).map_err(ApplyError::Refused)?;
    let mut entries = match managers::raw(live) {
        Some(list) => managers::decode(list)
            .map_err(|e| StatusError::new(500, "", format!("failed to decode managed fields: {e}")))
            .map_err(ApplyError::Refused)?,
        None => Vec::new(),
    };
    drop_unknown_versions(&mut entries, by);
    if entries.is_empty() {
        record_update(&mut entries, &empty_object(by.schema), live, by, "before-first-apply");
    }
    let root = by.root();
    let merged = merge::merge(root, live, patch);
    let mut set = merge::field_set(root, patch);
    by.filter(&mut set);
    let api_version = by.kind.api_version();
    let identity = by.identity(true, &api_version);
    let own = own_entry(&mut entries, identity);
    let last = own.fields().cloned().unwrap_or_default();
    let mut dropped = last.clone();
    subtract(&mut dropped, &set, Reach::Path);
    own.set_fields(set);
    own.set_api_version(&api_version);
    let mut object = if dropped.is_empty() { merged } else { prune(root, merged, &entries, &last) };
    let difference = by.compare(live, &object);
    let conflicts = conflict::find(&entries, identity, &difference.changed);
    if !force && !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    for entry in entries.iter_mut().filter(|e| !e.is(identity)) {
        subtract(entry.fields_mut(), &difference.changed, Reach::Path);
        subtract(entry.fields_mut(), &difference.removed, Reach::Path);
    }
    let own = own_entry(&mut entries, identity);
    strip_unowned(own.fields_mut());
    if !managers::equal_but_managed_fields(live, &object) {
        own.stamp(by.now);
    }
    entries.retain(|e| !e.is_empty());
    if let Value::Object(map) = &mut object {
        map.entry("metadata").or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    managers::put(&mut object, entries);
    Ok(object)
}

/// Removes the fields that are not recorded in managedFields, because the server sets them.
fn strip_unowned(set: &mut Tree) {
    let mut unowned = FieldSet::of_names(&[&["apiVersion"], &["kind"], &["metadata"]]);
    for name in UNOWNED_METADATA {
        unowned.insert(&["f:metadata".to_owned(), format!("f:{name}")]);
    }
    subtract(set, &unowned.0, Reach::Path);
}

/// Removes the fields that this manager applied last time and that now no manager owns. If it applies all of them
/// again, there is nothing to remove: a set of an object's fields includes all parents of its members.
fn prune(root: Node<'_>, merged: Value, entries: &[Entry], last: &Tree) -> Value {
    let named = |set: &Tree| merge::with_named_fields(root, set);
    let last = named(last);
    let in_merged = named(&merge::field_set(root, &merged));
    let without_last = merge::remove_fields(root, &merged, &last);
    let mut owned = Tree::new();
    for entry in entries {
        union(&mut owned, entry.fields().cloned().unwrap_or_default());
    }
    // First restores the fields that a manager owns.
    let mut unowned = in_merged.clone();
    subtract(&mut unowned, &named(&merge::field_set(root, &without_last)), Reach::Path);
    subtract(&mut unowned, &named(&owned), Reach::Path);
    let with_owned = merge::remove_fields(root, &merged, &unowned);
    // Then restores the fields that were removed only with a parent and that this manager never owned.
    let mut gone = in_merged;
    subtract(&mut gone, &named(&merge::field_set(root, &with_owned)), Reach::Path);
    merge::remove_fields(root, &merged, &intersection(&gone, &last))
}

/// Updates kubectl's annotation of a client-side apply, if the object has it.
fn update_last_applied(object: &mut Value, patch: &Value) {
    let annotation = object.get_mut("metadata").and_then(|m| m.get_mut("annotations"));
    let Some(annotation) = annotation.and_then(|a| a.get_mut(LAST_APPLIED)) else { return };
    if annotation.as_str().is_none_or(str::is_empty) {
        return;
    }
    let mut applied = patch.clone();
    if let Some(annotations) = applied.get_mut("metadata").and_then(|m| m.get_mut("annotations"))
        && let Some(annotations) = annotations.as_object_mut()
    {
        annotations.remove(LAST_APPLIED);
    }
    *annotation = Value::from(format!("{applied}\n"));
}

/// Reverts changes of managedFields times if nothing else changed, so that the write changes nothing.
pub fn keep_times(live: &Value, new: &mut Value) {
    managers::keep_times(live, new);
}

#[cfg(test)]
mod tests;
