//! The states of migrations and their conditions, with upstream's messages.

use jiff::Timestamp;
use k8s_openapi::api::storagemigration::v1::StorageVersionMigration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use knarr_api::kind::Kind;

pub const RUNNING: &str = "Running";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

fn conditions(migration: &StorageVersionMigration) -> &[Condition] {
    migration.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

/// Returns whether the migration has this condition with status True.
pub fn is(migration: &StorageVersionMigration, state: &str) -> bool {
    conditions(migration).iter().any(|c| c.type_ == state && c.status == "True")
}

/// Returns whether the migration has succeeded or failed.
pub fn is_over(migration: &StorageVersionMigration) -> bool {
    is(migration, SUCCEEDED) || is(migration, FAILED)
}

/// Returns group and plural of the resource.
pub fn resource(migration: &StorageVersionMigration) -> (String, String) {
    let resource = migration.spec.as_ref().map(|s| s.resource.clone()).unwrap_or_default();
    (resource.group, resource.resource)
}

/// Sets a condition; the time is that of its last change of status.
pub fn set(
    migration: &mut StorageVersionMigration,
    state: &str,
    holds: bool,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let generation = migration.metadata.generation;
    let status = if holds { "True" } else { "False" };
    let list = migration.status.get_or_insert_default().conditions.get_or_insert_default();
    let known = list.iter().position(|c| c.type_ == state);
    let since = known.filter(|at| list[*at].status == status).map(|at| list[at].last_transition_time.clone());
    let next = Condition {
        type_: state.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: if holds { None } else { generation },
        last_transition_time: since.unwrap_or(Time(now)),
    };
    match known {
        Some(at) => list[at] = next,
        None => list.push(next),
    }
}

/// Describes the progress of a migration: `left` of `all` objects are still to be rewritten.
pub fn progress(left: usize, all: usize, error: Option<&str>) -> String {
    let mut text = "The migration is running".to_owned();
    match (left, all) {
        (_, 0) => {}
        (0, all) => text.push_str(&format!(", {all} objects verified migrated")),
        (left, all) => text.push_str(&format!(", {left}/{all} objects not yet migrated")),
    }
    if let Some(error) = error {
        text.push_str(&format!("; transient error: {error}"));
    }
    text
}

/// Decides what to do about the migrations of one resource: finished ones are removed, and the oldest waiting one may
/// run if none is running.
pub fn turns(
    all: &[std::sync::Arc<StorageVersionMigration>],
) -> (Vec<&StorageVersionMigration>, Option<&StorageVersionMigration>) {
    let over = all.iter().filter(|m| is(m, RUNNING) && is_over(m)).map(|m| &**m).collect();
    if all.iter().any(|m| is(m, RUNNING) && !is_over(m)) {
        return (over, None);
    }
    let waiting = all.iter().filter(|m| !is(m, RUNNING) && !is_over(m));
    let age = |m: &StorageVersionMigration| m.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let next = waiting.min_by(|a, b| age(a).cmp(&age(b)).then_with(|| a.name().cmp(b.name())));
    (over, next.map(|m| &**m))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn migration(name: &str, states: &[&str]) -> Arc<StorageVersionMigration> {
        let mut migration: StorageVersionMigration = serde_json::from_value(json!({"metadata": {"name": name,
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"resource": {"group": "", "resource": "pods"}}}))
        .unwrap();
        for state in states {
            set(&mut migration, state, true, "R", String::new(), Timestamp::UNIX_EPOCH);
        }
        Arc::new(migration)
    }

    #[test]
    fn one_migration_of_a_resource_runs_at_a_time() {
        for (all, over, next) in [
            (vec![migration("b", &[]), migration("a", &[])], vec![], Some("a")),
            (vec![migration("a", &[]), migration("b", &[RUNNING])], vec![], None),
            (vec![migration("a", &[]), migration("b", &[RUNNING, FAILED])], vec!["b"], Some("a")),
            (vec![migration("a", &[SUCCEEDED])], vec![], None),
        ] {
            let (ended, waiting) = turns(&all);
            assert_eq!(ended.iter().map(|m| m.name()).collect::<Vec<_>>(), over);
            assert_eq!(waiting.map(|m| m.name()), next);
        }
    }

    #[test]
    fn progress_in_words() {
        assert_eq!(progress(0, 0, None), "The migration is running");
        assert_eq!(progress(0, 3, None), "The migration is running, 3 objects verified migrated");
        assert_eq!(
            progress(2, 3, Some("slow down")),
            "The migration is running, 2/3 objects not yet migrated; transient error: slow down"
        );
    }
}
