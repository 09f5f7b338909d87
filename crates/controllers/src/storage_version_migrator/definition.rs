//! The definition of a custom resource that is migrated: its condition StorageMigrating, and its stored versions.

use std::sync::Arc;

use knarr_client::{Client, Patch, Result};
use serde_json::{Value, json};

use super::get;
use crate::context::Context;

/// The field manager of definitions' statuses; the name is upstream's.
const FIELD_MANAGER: &str = "migration-runner-controller";
const CONDITION: &str = "StorageMigrating";

fn path(group: &str, plural: &str) -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}")
}

/// Returns the status to apply at the end. Stored versions are cleaned up after a success, unless the definition has
/// changed since.
fn ended(definition: &Value, success: bool, now: &Value) -> Value {
    let generation = &definition["metadata"]["generation"];
    let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
    let known = { conditions }.find(|c| c["type"] == CONDITION);
    let unchanged = known.is_some_and(|c| c["observedGeneration"] == *generation);
    let (reason, message) = match (success, unchanged) {
        (false, _) => ("MigrationFailed", "The migration has failed".to_owned()),
        (true, true) => (
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated".to_owned(),
        ),
        (true, false) => (
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
                .to_owned(),
        ),
    };
    let mut status = json!({"conditions": [{"type": CONDITION, "status": "False", "reason": reason,
        "message": message, "lastTransitionTime": now, "observedGeneration": generation}]});
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    if let Some(stored) = { versions }.find(|v| v["storage"] == true).filter(|_| success && unchanged) {
        status["storedVersions"] = json!([stored["name"]]);
    }
    status
}

async fn apply(cx: &Context, path: String, definition: &Value, status: Value) -> Result<()> {
    let client = Client::new(Arc::clone(cx.client.transport()), Arc::clone(&cx.clock), FIELD_MANAGER);
    let metadata = json!({"name": definition["metadata"]["name"],
        "resourceVersion": definition["metadata"]["resourceVersion"]});
    let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": metadata, "status": status});
    client.patch_path(format!("{path}/status"), &Patch::Apply { object, force: true }).await.map(drop)
}

fn time(cx: &Context) -> Value {
    json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(cx.clock.now()))
}

/// Records the start of a migration in the definition, if the resource is a custom one.
pub async fn begin(cx: &Context, group: &str, plural: &str, migration: &str) -> Result<()> {
    let path = path(group, plural);
    let Some(definition) = get(&cx.client, path.clone()).await? else { return Ok(()) };
    let message = format!("Migration {migration} is running");
    let status = json!({"conditions": [{"type": CONDITION, "status": "True", "reason": "MigrationRunning",
        "message": message, "lastTransitionTime": time(cx),
        "observedGeneration": definition["metadata"]["generation"]}]});
    apply(cx, path, &definition, status).await
}

/// Records the end of a migration in the definition.
pub async fn finish(cx: &Context, group: &str, plural: &str, success: bool) -> Result<()> {
    let path = path(group, plural);
    let Some(definition) = get(&cx.client, path.clone()).await? else { return Ok(()) };
    let status = ended(&definition, success, &time(cx));
    apply(cx, path, &definition, status).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_versions_are_cleaned_up_when_nothing_changed() {
        let definition = |observed: i64| {
            json!({"metadata": {"generation": 2}, "spec": {"versions": [
                {"name": "v1", "storage": false}, {"name": "v2", "storage": true}]},
                "status": {"conditions": [{"type": CONDITION, "status": "True", "observedGeneration": observed}],
                    "storedVersions": ["v1", "v2"]}})
        };
        for (observed, success, stored, reason) in [
            (2, true, json!(["v2"]), "MigrationSucceeded"),
            (1, true, Value::Null, "MigrationSucceeded"),
            (2, false, Value::Null, "MigrationFailed"),
        ] {
            let status = ended(&definition(observed), success, &Value::Null);
            assert_eq!(status["storedVersions"], stored, "{observed} {success}");
            assert_eq!(status["conditions"][0]["reason"], reason);
        }
    }
}
