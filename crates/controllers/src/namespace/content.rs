//! One pass that deletes everything in a namespace.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::{Kind, ResourceType};
use knarr_client::{Client, Error, List, ListOptions, Result};

use super::conditions::Findings;
use crate::support::discovery::{Discovery, Served};
use crate::support::pod_state::has_ended;

/// The assumed duration of finalizers when nothing better is known.
const FINALIZER_ESTIMATE: Duration = Duration::from_secs(15);

/// What is left of one resource after a pass.
#[derive(Debug, Default)]
struct Left {
    count: usize,
    finalizers: Vec<String>,
    estimate: Duration,
    error: Option<String>,
}

/// Deletes the content, pods before everything else. Returns the findings and how long the remaining content may
/// take.
pub async fn delete_all(client: &Client, namespace: &Namespace, now: Timestamp) -> (Findings, Duration) {
    let mut findings = Findings::default();
    let discovery = match Discovery::fetch(client).await {
        Ok(discovery) => discovery,
        Err(error) => {
            // Without discovery it is unknown whether content remains.
            findings.discovery_failure = Some(error.to_string());
            return (findings, Duration::ZERO);
        }
    };
    findings.discovery_failure = discovery.failure();
    findings.malformed_group_version = discovery.malformed().map(str::to_owned);
    let mut estimate = Duration::ZERO;
    let deletable = discovery.preferred().filter(|s| s.resource.namespaced && s.supports("delete"));
    let (pods, others): (Vec<&Served>, Vec<&Served>) = deletable.partition(|s| s.resource == Pod::RESOURCE);
    for served in pods.into_iter().chain(others) {
        let left = delete_one(client, namespace, served, now).await;
        estimate = estimate.max(left.estimate);
        findings.errors.extend(left.error);
        let is_pods = served.resource == Pod::RESOURCE;
        if left.count > 0 {
            let name = format!("{}.{}", served.resource.plural, served.resource.group);
            *findings.remaining.entry(name).or_insert(0) += left.count;
            for finalizer in left.finalizers {
                *findings.finalizers.entry(finalizer).or_insert(0) += 1;
            }
            if is_pods {
                // Objects that pods may still use are deleted after the pods.
                break;
            }
        }
    }
    (findings, estimate)
}

async fn delete_one(client: &Client, namespace: &Namespace, served: &Served, now: Timestamp) -> Left {
    let (resource, name) = (&served.resource, namespace.name());
    if !served.supports("list") {
        if !served.supports("deletecollection") {
            return Left::default();
        }
        let outcome = delete_collection(client, served, name).await;
        let error = outcome.err().filter(|e| !is_unsupported(e)).map(|e| e.to_string());
        return Left { error, ..Left::default() };
    }
    let before = match list(client, resource, name).await {
        Ok(list) if list.items.is_empty() => return Left::default(),
        Ok(list) => list,
        // The resource does not support the request, or its group is no longer served.
        Err(e) if is_unsupported(&e) => return Left::default(),
        Err(e) => return Left { error: Some(e.to_string()), ..Left::default() },
    };
    let mut estimate = grace_left(&before, namespace, resource, now);
    if let Err(e) = delete_items(client, served, name, &before).await {
        return Left { estimate, error: Some(e.to_string()), ..Left::default() };
    }
    let after = match list(client, resource, name).await {
        Ok(list) => list,
        Err(e) => return Left { estimate, error: Some(e.to_string()), ..Left::default() },
    };
    let finalizers: Vec<String> =
        after.items.iter().filter_map(|o| o.metadata().ok()?.finalizers).flatten().collect();
    let count = after.items.len();
    if count == 0 {
        return Left::default();
    }
    let mut error = None;
    if estimate.is_zero() && !finalizers.is_empty() {
        estimate = FINALIZER_ESTIMATE;
    } else if estimate.is_zero() {
        error = Some(format!(
            "unexpected items still remain in namespace: {name} for gvr: {}, Resource={}",
            go_group_version(resource),
            resource.plural
        ));
    }
    Left { count, finalizers, estimate, error }
}

fn go_group_version(resource: &ResourceType) -> String {
    format!("{}/{}", resource.group, resource.version)
}

async fn list(client: &Client, resource: &ResourceType, namespace: &str) -> Result<List> {
    client.transport().list(resource, Some(namespace), &ListOptions::default()).await
}

/// Returns the longest grace period of the running pods, counted from the namespace's deletion.
fn grace_left(list: &List, namespace: &Namespace, resource: &ResourceType, now: Timestamp) -> Duration {
    if *resource != Pod::RESOURCE {
        return Duration::ZERO;
    }
    let pods = list.items.iter().filter_map(|o| o.typed::<Pod>().ok());
    let running = pods.filter(|pod| !has_ended(pod));
    let grace = running.filter_map(|p| p.spec.as_ref()?.termination_grace_period_seconds).max();
    let grace = Duration::from_secs(grace.and_then(|s| u64::try_from(s).ok()).unwrap_or(0));
    let deleted = namespace.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
    let since: Duration = now.duration_since(deleted).try_into().unwrap_or_default();
    if since >= grace { Duration::ZERO } else { grace }
}

async fn delete_items(client: &Client, served: &Served, namespace: &str, items: &List) -> Result<()> {
    if served.supports("deletecollection") {
        match delete_collection(client, served, namespace).await {
            Err(e) if is_unsupported(&e) => {}
            other => return other,
        }
    }
    for item in &items.items {
        let path = served.resource.path(Some(namespace), Some(item.name()));
        match client.delete_path(path, &background()).await {
            Err(e) if !is_unsupported(&e) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

async fn delete_collection(client: &Client, served: &Served, namespace: &str) -> Result<()> {
    let path = served.resource.path(Some(namespace), None);
    let body = serde_json::to_vec(&background()).map_err(|e| Error::Protocol(e.to_string()))?;
    client.call(Method::DELETE, path, Some("application/json"), Bytes::from(body)).await?;
    Ok(())
}

/// Propagation is irrelevant: all dependents in the namespace are deleted anyway.
fn background() -> DeleteOptions {
    DeleteOptions { propagation_policy: Some("Background".to_owned()), ..DeleteOptions::default() }
}

fn is_unsupported(error: &Error) -> bool {
    error.is_not_found() || error.status().is_some_and(|s| s.code() == 405)
}
