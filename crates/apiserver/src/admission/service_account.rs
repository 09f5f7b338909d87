//! ServiceAccount: every pod runs as one, and finds its token, the CA and its namespace in a volume.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::authn::service_account::find;
use crate::server::Inner;

pub struct ServiceAccount;

const DEFAULT: &str = "default";
const MIRROR: &str = "kubernetes.io/config.mirror";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// The default account is made by a controller right after its namespace: it is worth a short wait.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);
/// Rotated hourly; the odd seven seconds mark a token that was not asked for.
const TOKEN_SECONDS: i64 = 3607;

#[async_trait]
impl Plugin for ServiceAccount {
    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
        if !attributes.is("", "pods") || is_mirror(&attributes.object) {
            return Ok(());
        }
        let spec = &mut attributes.object["spec"];
        if spec["serviceAccountName"].as_str().unwrap_or("").is_empty() {
            spec["serviceAccountName"] = DEFAULT.into();
            spec["serviceAccount"] = DEFAULT.into();
        }
        let name = spec["serviceAccountName"].as_str().unwrap_or("").to_owned();
        let account = account(attributes, server, &name).await?;
        let spec = &mut attributes.object["spec"];
        let automount = spec["automountServiceAccountToken"].as_bool();
        if automount.or(account.automount_service_account_token).unwrap_or(true) {
            mount(spec, &names::random_suffix(&mut fastrand::Rng::new(), 5));
        }
        if spec["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
            && let Some(secrets) = account.image_pull_secrets.as_ref().filter(|s| !s.is_empty())
        {
            spec["imagePullSecrets"] = secrets.iter().map(|s| json!({"name": s.name})).collect();
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Inner) -> Result<(), StatusError> {
        if !attributes.is("", "pods") || !is_mirror(&attributes.object) {
            return Ok(());
        }
        let spec = &attributes.object["spec"];
        if !spec["serviceAccountName"].as_str().unwrap_or("").is_empty() {
            return Err(attributes.forbidden("a mirror pod may not reference service accounts"));
        }
        let refers = spec["volumes"].as_array().into_iter().flatten().any(|v| {
            let sources = v["projected"]["sources"].as_array();
            !v["secret"].is_null()
                || sources.into_iter().flatten().any(|s| !s["serviceAccountToken"].is_null())
        });
        if refers {
            return Err(attributes.forbidden("a mirror pod may not reference secrets"));
        }
        Ok(())
    }
}

pub fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR).is_some()
}

async fn account(
    attributes: &Attributes<'_>,
    server: &Inner,
    name: &str,
) -> Result<Arc<core::ServiceAccount>, StatusError> {
    let attempts = if name == DEFAULT { ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            server.clock.sleep(PAUSE).await;
        }
        if let Some(found) = find(server, "serviceaccounts", attributes.namespace, name).await {
            return found.typed().map_err(StatusError::internal);
        }
    }
    Err(attributes.forbidden(&format!(
        "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
        attributes.namespace
    )))
}

/// Mounts the token volume where nothing is mounted yet; makes it if it is needed.
fn mount(spec: &mut Value, suffix: &str) {
    let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
    let existing = volumes
        .iter()
        .filter_map(|v| v["name"].as_str())
        .find(|n| n.starts_with(VOLUME_PREFIX))
        .map(str::to_owned);
    let name = existing.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let mounts = &mut container["volumeMounts"];
            let taken = mounts.as_array().is_some_and(|m| m.iter().any(|m| m["mountPath"] == MOUNT_PATH));
            if taken {
                continue;
            }
            needed = true;
            if !mounts.is_array() {
                *mounts = json!([]);
            }
            if let Value::Array(mounts) = mounts {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
            }
        }
        if spec[list].is_null()
            && let Some(spec) = spec.as_object_mut()
        {
            spec.remove(list);
        }
    }
    if needed && existing.is_none() {
        let volumes: Vec<Value> = volumes.into_iter().chain([volume(&name)]).collect();
        spec["volumes"] = volumes.into();
    }
}

fn volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_mounted_where_nothing_is() {
        let mut spec = json!({"containers": [
            {"name": "a"},
            {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}]});
        mount(&mut spec, "abcde");
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-abcde");
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        assert_eq!(spec["volumes"][0]["name"], "kube-api-access-abcde");
        assert_eq!(spec.get("initContainers"), None);
        let before = spec.clone();
        mount(&mut spec, "fghij");
        assert_eq!(spec, before);
        let mut none = json!({"containers": [{"volumeMounts": [{"mountPath": MOUNT_PATH}]}]});
        mount(&mut none, "abcde");
        assert_eq!(none.get("volumes").cloned().unwrap_or_default(), Value::Null);
    }
}
