//! Aggregated discovery: all groups, versions and resources in one document.

use knarr_api::resource_ref::ResourceRef;
use serde_json::{Value, json};

use super::legacy::group_versions;
use knarr_registry::table::Table;

/// Returns the `APIGroupDiscoveryList` of the core group, or of all other groups.
pub fn list(table: &Table, core: bool) -> Value {
    let items: Vec<Value> = group_versions(table)
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions.iter().map(|v| version(table, group, v)).collect();
            let metadata = if core { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn version(table: &Table, group: &str, version: &str) -> Value {
    let mut served: Vec<_> = table
        .iter()
        .map(|s| &s.resource)
        .filter(|r| r.types.group == group && r.types.version == version)
        .collect();
    served.sort_by_key(|r| r.types.plural);
    let resources: Vec<Value> = served.into_iter().map(resource).collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn resource(resource: &ResourceRef) -> Value {
    let types = resource.types;
    // Built-in resources omit a group and version equal to those of the resource. Custom resources always have them.
    let kind = |group: &str, version: &str, kind: &str| {
        let same = resource.custom().is_none() && (group, version) == (types.group, types.version);
        let (group, version) = if same { ("", "") } else { (group, version) };
        json!({"group": group, "version": version, "kind": kind})
    };
    let mut value = json!({
        "resource": types.plural, "singularResource": resource.singular, "verbs": resource.verbs,
        "scope": if types.namespaced { "Namespaced" } else { "Cluster" },
        "responseKind": kind(types.group, types.version, types.kind),
    });
    if !resource.short_names.is_empty() {
        value["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        value["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|sub| {
            let (g, v, k) = sub.body.unwrap_or((types.group, types.version, types.kind));
            json!({"subresource": sub.name, "responseKind": kind(g, v, k), "verbs": sub.verbs})
        })
        .collect();
    if !subresources.is_empty() {
        value["subresources"] = subresources.into();
    }
    value
}
