//! Conflicts: fields that an apply would change although another manager owns them.

use serde_json::Value;

use super::compare::compare_objects;
use super::fields::{FieldSet, Reach, Tree, intersection, subtract};
use super::managers::{Entry, Identity, identifier};
use super::{LAST_APPLIED, Manager, merge};

/// One field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The manager as messages show it: `"kubectl" using apps/v1`.
    pub manager: String,
    /// `.spec.replicas`
    pub path: String,
}

/// Returns the changed fields that other managers own, by manager and path.
pub(super) fn find(entries: &[Entry], own: Identity<'_>, changed: &Tree) -> Vec<Conflict> {
    if changed.is_empty() {
        return Vec::new();
    }
    let mut others: Vec<&Entry> = entries.iter().filter(|e| !e.is(own)).collect();
    others.sort_by_cached_key(|e| identifier(e));
    let mut conflicts = Vec::new();
    for entry in others {
        let Some(fields) = entry.fields() else { continue };
        let common = FieldSet(intersection(fields, changed));
        let manager = entry.shown();
        conflicts.extend(common.paths().into_iter().map(|path| Conflict { manager: manager.clone(), path }));
    }
    conflicts
}

/// Returns the message of the 409, as upstream formats it.
pub(super) fn message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.path);
    }
    let mut lines: Vec<String> = Vec::new();
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.path));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Removes the conflicts about fields that still have the value that kubectl's client-side apply has set.
pub(super) fn beyond_last_applied(live: &Value, conflicts: Vec<Conflict>, by: &Manager<'_>) -> Vec<Conflict> {
    let annotation = live["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or("");
    let Ok(applied) = serde_json::from_str::<Value>(annotation) else { return conflicts };
    if applied["apiVersion"].as_str() != Some(by.kind.api_version().as_str())
        || super::validate::validate(by.root(), &applied).is_err()
    {
        return conflicts;
    }
    let mut allowed = merge::field_set(by.root(), &applied);
    let difference = compare_objects(by.root(), &applied, live);
    subtract(&mut allowed, &difference.changed, Reach::Path);
    subtract(&mut allowed, &difference.removed, Reach::Path);
    let allowed: std::collections::BTreeSet<String> = FieldSet(allowed).paths().into_iter().collect();
    conflicts.into_iter().filter(|c| !allowed.contains(&c.path)).collect()
}
