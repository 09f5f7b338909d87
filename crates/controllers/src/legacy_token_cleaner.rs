//! Legacy service-account token cleaner: marks auto-generated tokens in Secrets invalid after a year without use, and
//! deletes them another year later.
//!
//! Source: KEP-2799.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Lister, Patch, Result};
use serde_json::{Value, json};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "legacy-serviceaccount-token-cleaner-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const EVERY: Duration = Duration::from_secs(24 * 3600);
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

struct Listers {
    accounts: Lister<ServiceAccount>,
    secrets: Lister<Secret>,
    pods: Lister<Pod>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Arc::clone(&cx.clock));
    let accounts = cx.informers.informer::<ServiceAccount>();
    let secrets = cx.informers.informer::<Secret>();
    let pods = cx.informers.informer::<Pod>();
    if !(accounts.wait_synced().await && secrets.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let listers =
        Arc::new(Listers { accounts: accounts.lister(), secrets: secrets.lister(), pods: pods.lister() });
    queue.add(());
    let (again, stop) = (Arc::clone(&queue), cx.stop.clone());
    let reconcile = move |()| {
        let (cx, listers, queue) = (Arc::clone(&cx), Arc::clone(&listers), Arc::clone(&again));
        async move {
            // A failed Secret is retried with the next run, a day later.
            if let Err(error) = clean(&cx, &listers).await {
                tracing::warn!(%error, "the search for unused tokens failed");
            }
            queue.add_after((), EVERY);
            Ok::<(), knarr_client::Error>(())
        }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

fn day(at: Timestamp) -> Date {
    at.to_zoned(TimeZone::UTC).date()
}

/// Parses a date of the form `2006-01-02`.
fn date(text: &str) -> Option<Date> {
    (text.len() == 10).then(|| text.parse().ok()).flatten()
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    Mark,
    Delete,
}

/// Decides what to do with a token that no pod mounts; `account` is the ServiceAccount it belongs to.
fn verdict(
    secret: &Secret,
    account: Option<&ServiceAccount>,
    unused_for: Duration,
    now: Timestamp,
) -> Verdict {
    let Ok(limit) = now.checked_sub(unused_for) else { return Verdict::Keep };
    let meta = &secret.metadata;
    let label = |name: &str| meta.labels.as_ref().and_then(|l| l.get(name)).map(String::as_str);
    let young = meta.creation_timestamp.as_ref().is_none_or(|t| t.0 >= limit);
    if secret.type_.as_deref() != Some(TYPE) || young || meta.deletion_timestamp.is_some() {
        return Verdict::Keep;
    }
    match label(LAST_USED).map(date) {
        Some(None) => return Verdict::Keep,
        Some(Some(used)) if used >= day(limit) => return Verdict::Keep,
        _ => {}
    }
    // A token that its account does not list is not auto-generated.
    let listed =
        account.is_some_and(|a| a.secrets.iter().flatten().any(|s| s.name.as_deref() == Some(secret.name())));
    match label(INVALID_SINCE).and_then(date) {
        _ if !listed => Verdict::Keep,
        None => Verdict::Mark,
        Some(since) if since >= day(limit) => Verdict::Keep,
        Some(_) => Verdict::Delete,
    }
}

/// Returns the names of all Secrets that the pod refers to, and possibly further strings of its spec.
fn mounted(pod: &Pod) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    collect(&serde_json::to_value(&pod.spec).unwrap_or_default(), &mut names);
    names
}

fn collect(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let lower = key.to_ascii_lowercase();
                let named = if key == "secretName" { value.as_str() } else { value["name"].as_str() };
                if lower.contains("secret") {
                    names.extend(named.map(str::to_owned));
                    let list = value.as_array().into_iter().flatten();
                    names.extend(list.filter_map(|v| v["name"].as_str()).map(str::to_owned));
                }
                collect(value, names);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, names)),
        _ => {}
    }
}

async fn clean(cx: &Context, listers: &Listers) -> Result<()> {
    let unused_for = cx.settings().legacy_token_unused_for;
    let now = cx.clock.now();
    let tracking = cx.client.get::<ConfigMap>("kube-system", TRACKING).await?;
    let since = tracking.data.as_ref().and_then(|d| d.get("since")).and_then(|text| date(text));
    // Tracking counts from the start of the day after the one on which it began.
    let begun = since.and_then(|day| day.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok());
    let Some(begun) = begun.map(|zoned| zoned.timestamp()) else { return Ok(()) };
    if begun.checked_add(unused_for).is_ok_and(|enough| now < enough) {
        return Ok(());
    }
    let mut in_use: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for secret in listers.secrets.list() {
        let account = account_of(listers, &secret);
        let verdict = verdict(&secret, account.as_deref(), unused_for, now);
        if verdict == Verdict::Keep {
            continue;
        }
        let of_namespace = in_use.entry(secret.namespace().to_owned()).or_insert_with(|| {
            listers.pods.list_namespace(secret.namespace()).iter().flat_map(|pod| mounted(pod)).collect()
        });
        if of_namespace.contains(secret.name()) {
            continue;
        }
        if let Err(error) = act(cx, &secret, &verdict, now).await
            && !error.is_not_found()
            && !error.is_conflict()
        {
            tracing::warn!(secret = %secret.key(), %error, "the unused token could not be cleaned up");
        }
    }
    Ok(())
}

fn account_of(listers: &Listers, secret: &Secret) -> Option<Arc<ServiceAccount>> {
    let annotation = |name: &str| secret.metadata.annotations.as_ref().and_then(|a| a.get(name));
    let account = listers.accounts.get(secret.namespace(), annotation(ACCOUNT)?)?;
    let uid = annotation(ACCOUNT_UID).map_or("", String::as_str);
    (uid.is_empty() || uid == account.uid()).then_some(account)
}

async fn act(cx: &Context, secret: &Secret, verdict: &Verdict, now: Timestamp) -> Result<()> {
    let (namespace, name) = (secret.namespace(), secret.name());
    if *verdict == Verdict::Mark {
        let labels = json!({INVALID_SINCE: day(now).to_string()});
        let patch = Patch::Merge(json!({"metadata": {"uid": secret.uid(), "labels": labels}}));
        return cx.client.patch::<Secret>(namespace, name, None, &patch).await.map(drop);
    }
    let preconditions =
        Preconditions { uid: None, resource_version: secret.metadata.resource_version.clone() };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    cx.client.delete::<Secret>(namespace, name, &options).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    const YEAR: Duration = Duration::from_secs(365 * 86_400);

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn account() -> ServiceAccount {
        object(
            json!({"metadata": {"name": "a", "namespace": "ns", "uid": "1"}, "secrets": [{"name": "token"}]}),
        )
    }

    fn token(created: &str, labels: Value) -> Secret {
        object(
            json!({"metadata": {"name": "token", "namespace": "ns", "uid": "s", "creationTimestamp": created,
            "labels": labels, "annotations": {ACCOUNT: "a", ACCOUNT_UID: "1"}}, "type": TYPE}),
        )
    }

    #[test]
    fn unused_tokens_are_marked_and_a_year_later_deleted() {
        let now: Timestamp = "2026-06-15T12:00:00Z".parse().unwrap();
        let old = "2020-01-01T00:00:00Z";
        for (created, labels, expected) in [
            (old, json!({}), Verdict::Mark),
            ("2026-01-01T00:00:00Z", json!({}), Verdict::Keep),
            (old, json!({LAST_USED: "2026-01-01"}), Verdict::Keep),
            (old, json!({LAST_USED: "2025-06-15"}), Verdict::Keep),
            (old, json!({LAST_USED: "2025-06-14"}), Verdict::Mark),
            (old, json!({LAST_USED: "yesterday"}), Verdict::Keep),
            (old, json!({INVALID_SINCE: "2026-01-01"}), Verdict::Keep),
            (old, json!({INVALID_SINCE: "2025-01-01"}), Verdict::Delete),
            (old, json!({INVALID_SINCE: "nonsense"}), Verdict::Mark),
        ] {
            assert_eq!(
                verdict(&token(created, labels.clone()), Some(&account()), YEAR, now),
                expected,
                "{labels}"
            );
        }
        let unlisted: ServiceAccount = object(json!({"metadata": {"name": "a"}}));
        assert_eq!(verdict(&token(old, json!({})), Some(&unlisted), YEAR, now), Verdict::Keep);
        assert_eq!(verdict(&token(old, json!({})), None, YEAR, now), Verdict::Keep);
    }

    #[test]
    fn pods_refer_to_secrets_in_many_ways() {
        let pod: Pod = object(json!({"spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "env"}}]}],
            "volumes": [{"name": "v", "secret": {"secretName": "volume"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
                {"name": "i", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}}]}}));
        let all: Vec<_> = mounted(&pod).into_iter().collect();
        assert_eq!(all, ["csi", "env", "key", "projected", "pull", "volume"]);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_cleaned_up_once_they_have_been_watched_for_a_year() {
        for (since, mounts, expected) in [
            ("2024-01-01", json!([]), Some("2026-01-01")),
            ("2025-06-01", json!([]), None),
            ("2024-01-01", json!([{"name": "v", "secret": {"secretName": "token"}}]), None),
        ] {
            let kinds = [Secret::RESOURCE, ServiceAccount::RESOURCE, Pod::RESOURCE, ConfigMap::RESOURCE];
            let world = World::new(&kinds);
            world.api.add::<ConfigMap>(&object(
                json!({"metadata": {"name": TRACKING, "namespace": "kube-system"},
                "data": {"since": since}}),
            ));
            world.api.add(&account());
            world.api.add::<Pod>(&object(json!({"metadata": {"name": "p", "namespace": "ns"},
                "spec": {"containers": [], "volumes": mounts}})));
            world.api.add(&token("2020-01-01T00:00:00Z", json!({})));
            world.start(&DESCRIPTOR);
            world.pass(5.0).await;
            let labels = world.api.get::<Secret>("ns", "token").unwrap().metadata.labels.unwrap_or_default();
            assert_eq!(labels.get(INVALID_SINCE).map(String::as_str), expected, "{since} {mounts}");
        }
    }
}
