//! The APIServices of the groups that this server serves itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use knarr_api::kind::Kind;
use knarr_client::Client;
use serde_json::{Value, json};

use super::availability::is_available_in;
use super::priorities::{self, CUSTOM};
use super::{Aggregator, api_services};

/// `onstart`: restored at each start; `true`: restored at all times.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

fn api_service(group: &str, version: &str, (group_priority, priority): (i32, i32), managed: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{version}.{group}"), "labels": {AUTOMANAGED: managed}},
        "spec": {
            "group": group, "version": version,
            "groupPriorityMinimum": group_priority, "versionPriority": priority,
        },
    })
}

/// Returns the APIServices of built-in groups, except the one of APIServices themselves, which upstream does not
/// list.
pub fn register(group_versions: impl Iterator<Item = (String, String)>) -> Vec<Value> {
    let all: BTreeSet<(String, String)> = group_versions.collect();
    all.iter()
        .filter(|(group, _)| group != "apiregistration.k8s.io")
        .filter_map(|(group, version)| {
            let priority = priorities::built_in(group, version)?;
            Some(api_service(group, version, priority, "onstart"))
        })
        .collect()
}

/// Returns the names of APIServices of built-in groups that are missing or not available.
pub fn unregistered(aggregator: &Aggregator) -> Vec<String> {
    let table = aggregator.registry.table.snapshot();
    let built_in = table.iter().filter(|s| s.resource.custom().is_none());
    let served = built_in.map(|s| (s.resource.types.group.to_owned(), s.resource.types.version.to_owned()));
    let available: BTreeSet<String> = api_services(aggregator)
        .into_iter()
        .filter(|a| is_available_in(a))
        .map(|a| a.name().to_owned())
        .collect();
    let wanted =
        register(served).into_iter().filter_map(|a| Some(a["metadata"]["name"].as_str()?.to_owned()));
    wanted.filter(|name| !available.contains(name)).collect()
}

/// Reconciles the APIServices of custom resources with their definitions, until the server stops.
pub async fn follow_custom(aggregator: Arc<Aggregator>, client: Client) {
    loop {
        match reconcile_custom(&aggregator, &client).await {
            Ok(()) => aggregator.steps.finish(&["kube-apiserver-autoregistration"]),
            Err(error) => tracing::warn!(%error, "APIServices of custom resources are not up to date"),
        }
        tokio::select! {
            () = aggregator.registry.stop.cancelled() => return,
            () = aggregator.registry.table.changed() => {}
        }
    }
}

/// Returns the groups and versions of all definitions.
fn custom(aggregator: &Aggregator) -> BTreeSet<(String, String)> {
    let Some(cache) = aggregator.registry.caches.get("apiextensions.k8s.io/customresourcedefinitions") else {
        return BTreeSet::new();
    };
    let mut all = BTreeSet::new();
    for object in cache.list(None) {
        let definition: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
        let spec = &definition["spec"];
        let Some(group) = spec["group"].as_str() else { continue };
        for version in spec["versions"].as_array().into_iter().flatten() {
            if version["served"] == true
                && let Some(name) = version["name"].as_str()
            {
                all.insert((group.to_owned(), name.to_owned()));
            }
        }
    }
    all
}

async fn reconcile_custom(aggregator: &Aggregator, client: &Client) -> knarr_client::Result<()> {
    let wanted = custom(aggregator);
    let present = api_services(aggregator);
    for (group, version) in &wanted {
        let name = format!("{version}.{group}");
        if present.iter().any(|a| a.name() == name) {
            continue;
        }
        let object = api_service(group, version, CUSTOM, "true").to_string();
        let Ok(object) = APIService::decode(object.as_bytes()) else { continue };
        match client.create(&object).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
    }
    for api_service in present {
        let labels = api_service.metadata.labels.as_ref();
        let managed = labels.and_then(|l| l.get(AUTOMANAGED)).is_some_and(|v| v == "true");
        let spec = api_service.spec.clone().unwrap_or_default();
        let key = (spec.group.unwrap_or_default(), spec.version.unwrap_or_default());
        if managed && !wanted.contains(&key) {
            match client.delete::<APIService>("", api_service.name(), &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_groups_are_registered() {
        let pair = |group: &str, version: &str| (group.to_owned(), version.to_owned());
        let all = [pair("apps", "v1"), pair("", "v1"), pair("x.example.com", "v1"), pair("apps", "v1")];
        let names: Vec<Value> =
            register(all.into_iter()).iter().map(|a| a["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["v1.", "v1.apps"]);
    }
}
