//! ServiceAccount: sets the service account of each pod, and mounts its token, the CA and its namespace in a volume.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;
use knarr_auth::authn::service_account::find;

pub struct ServiceAccount;

const DEFAULT: &str = "default";
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// A controller creates the default account right after its namespace, so a short wait is worth it.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);
/// The lifetime of the token, about one hour; the odd seven seconds mark a token that no user requested.
const TOKEN_SECONDS: i64 = 3607;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if !is_creation(attributes) || is_mirror(&attributes.object) {
            return Ok(());
        }
        let spec = &mut attributes.object["spec"];
        if spec["serviceAccountName"].as_str().unwrap_or("").is_empty() {
            spec["serviceAccountName"] = DEFAULT.into();
            spec["serviceAccount"] = DEFAULT.into();
        }
        let name = spec["serviceAccountName"].as_str().unwrap_or("").to_owned();
        let account = account(attributes, context, &name).await?;
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

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let update = attributes.operation == Operation::Update;
        let debugged = update && attributes.is_part("", "pods", "ephemeralcontainers");
        if !is_creation(attributes) && !debugged {
            return Ok(());
        }
        let pod = &attributes.object;
        if is_mirror(pod) && !debugged {
            return mirror_refusal(pod).map_or(Ok(()), |why| Err(attributes.forbidden(why)));
        }
        let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or("");
        if name.is_empty() {
            let (namespace, own) = (attributes.namespace, attributes.own_name());
            let why = format!("no service account specified for pod {namespace}/{own}");
            return Err(attributes.forbidden(&why));
        }
        let account = account(attributes, context, name).await?;
        let annotations = account.metadata.annotations.as_ref();
        let enforced = annotations.and_then(|a| a.get(ENFORCE_SECRETS));
        // The values that Go parses as true.
        if !matches!(enforced.map(String::as_str), Some("1" | "t" | "T" | "true" | "TRUE" | "True")) {
            return Ok(());
        }
        let lists: &[_] = if debugged {
            &[("ephemeralContainers", "ephemeral container")]
        } else {
            &[("initContainers", "init container"), ("containers", "container")]
        };
        match forbidden_secret(pod, &account, lists, !debugged) {
            Some(why) => Err(attributes.forbidden(&why)),
            None => Ok(()),
        }
    }
}

fn is_creation(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create && attributes.is("", "pods")
}

fn mirror_refusal(pod: &Value) -> Option<&'static str> {
    let spec = &pod["spec"];
    if !spec["serviceAccountName"].as_str().unwrap_or("").is_empty() {
        return Some("a mirror pod may not reference service accounts");
    }
    let volumes = spec["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let sources = || volumes.iter().flat_map(|v| v["projected"]["sources"].as_array().into_iter().flatten());
    let refers = volumes.iter().any(|v| !v["secret"].is_null())
        || sources().any(|s| !s["secret"].is_null())
        || spec["imagePullSecrets"].as_array().is_some_and(|s| !s.is_empty())
        || containers(pod, &ALL_LISTS).any(|(c, _)| secrets_of(c).next().is_some());
    if refers {
        return Some("a mirror pod may not reference secrets");
    }
    sources()
        .any(|s| !s["serviceAccountToken"].is_null())
        .then_some("a mirror pod may not use ServiceAccountToken volume projections")
}

const ALL_LISTS: [(&str, &str); 3] = [
    ("initContainers", "init container"),
    ("containers", "container"),
    ("ephemeralContainers", "ephemeral container"),
];

fn containers<'v>(
    pod: &'v Value,
    lists: &[(&'static str, &'static str)],
) -> impl Iterator<Item = (&'v Value, &'static str)> {
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    lists.iter().flat_map(move |(name, word)| list(name).map(move |c| (c, *word)))
}

/// Returns the references of a container's environment to secrets: a description and the secret's name.
fn secrets_of(container: &Value) -> impl Iterator<Item = (String, &str)> {
    let items = |field: &str| container[field].as_array().into_iter().flatten();
    let env = items("env").filter(|e| e["valueFrom"]["secretKeyRef"].is_object()).map(|e| {
        let how = format!("envVar {}", e["name"].as_str().unwrap_or(""));
        (how, e["valueFrom"]["secretKeyRef"]["name"].as_str().unwrap_or(""))
    });
    let from = items("envFrom").filter(|e| e["secretRef"].is_object());
    env.chain(from.map(|e| ("envFrom".to_owned(), e["secretRef"]["name"].as_str().unwrap_or(""))))
}

/// Returns a secret that the pod refers to although its account, which lists the secrets that its pods may use, does
/// not.
fn forbidden_secret(
    pod: &Value,
    account: &core::ServiceAccount,
    lists: &[(&'static str, &'static str)],
    whole: bool,
) -> Option<String> {
    let own = account.metadata.name.as_deref().unwrap_or("");
    let secrets = account.secrets.iter().flatten();
    let mountable: Vec<&str> = secrets.filter_map(|s| s.name.as_deref()).collect();
    let end = format!("is not allowed because service account {own} does not reference that");
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    for volume in volumes.filter(|v| whole && v["secret"].is_object()) {
        let name = volume["secret"]["secretName"].as_str().unwrap_or("");
        if !mountable.contains(&name) {
            return Some(format!("volume with secret.secretName=\"{name}\" {end} secret"));
        }
    }
    for (container, word) in containers(pod, lists) {
        let foreign = secrets_of(container).find(|(_, s)| !mountable.contains(s));
        if let Some((how, secret)) = foreign {
            let name = container["name"].as_str().unwrap_or("");
            return Some(format!(
                "{word} {name} with {how} referencing secret.secretName=\"{secret}\" {end} secret"
            ));
        }
    }
    let pullable: Vec<&str> = account.image_pull_secrets.iter().flatten().map(|s| s.name.as_str()).collect();
    let pulled = pod["spec"]["imagePullSecrets"].as_array().into_iter().flatten().enumerate();
    for (i, secret) in pulled.filter(|_| whole) {
        let name = secret["name"].as_str().unwrap_or("");
        if !pullable.contains(&name) {
            return Some(format!("imagePullSecrets[{i}].name=\"{name}\" {end} imagePullSecret"));
        }
    }
    None
}

pub fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR).is_some()
}

async fn account(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    name: &str,
) -> Result<Arc<core::ServiceAccount>, StatusError> {
    let attempts = if name == DEFAULT { ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            context.registry.clock.sleep(PAUSE).await;
        }
        if let Some(found) = find(context.registry, "serviceaccounts", attributes.namespace, name).await {
            return found.typed().map_err(StatusError::internal);
        }
    }
    Err(attributes.forbidden(&format!(
        "error looking up service account {}/{name}: serviceaccount \"{name}\" not found",
        attributes.namespace
    )))
}

/// Mounts the token volume where nothing is mounted yet; adds the volume if it is needed.
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
    fn secrets_that_an_account_does_not_name() {
        let account: core::ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "sa"},
            "secrets": [{"name": "good"}], "imagePullSecrets": [{"name": "pull"}]}))
        .unwrap();
        let end = "is not allowed because service account sa does not reference that";
        for (spec, expected) in [
            (
                json!({"volumes": [{"secret": {"secretName": "good"}}], "imagePullSecrets": [{"name": "pull"}]}),
                None,
            ),
            (
                json!({"volumes": [{"secret": {"secretName": "bad"}}]}),
                Some(format!("volume with secret.secretName=\"bad\" {end} secret")),
            ),
            (
                json!({"containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "bad"}}}]}]}),
                Some(format!("container c with envVar E referencing secret.secretName=\"bad\" {end} secret")),
            ),
            (
                json!({"initContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "bad"}}]}]}),
                Some(format!(
                    "init container c with envFrom referencing secret.secretName=\"bad\" {end} secret"
                )),
            ),
            (
                json!({"imagePullSecrets": [{"name": "pull"}, {"name": "bad"}]}),
                Some(format!("imagePullSecrets[1].name=\"bad\" {end} imagePullSecret")),
            ),
        ] {
            let pod = json!({"spec": spec});
            assert_eq!(forbidden_secret(&pod, &account, &ALL_LISTS, true), expected, "{pod}");
        }
    }

    #[test]
    fn mirror_pods_stand_alone() {
        for (spec, expected) in [
            (json!({}), None),
            (json!({"serviceAccountName": "a"}), Some("a mirror pod may not reference service accounts")),
            (json!({"imagePullSecrets": [{"name": "a"}]}), Some("a mirror pod may not reference secrets")),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
                Some("a mirror pod may not use ServiceAccountToken volume projections"),
            ),
        ] {
            assert_eq!(mirror_refusal(&json!({"spec": spec})), expected);
        }
    }

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
