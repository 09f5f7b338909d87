//! Legacy discovery: one document for the groups, one for each group version.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use knarr_api::resource_ref::ResourceRef;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use knarr_registry::table::Table;

/// Returns the document of `/api`.
pub fn versions(advertise: SocketAddr) -> Value {
    let address = advertise.to_string();
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// Returns the groups and their versions, in the order of the table.
pub fn group_versions(table: &Table) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    for served in table.iter() {
        let types = served.resource.types;
        let index = groups.iter().position(|(g, _)| *g == types.group).unwrap_or_else(|| {
            groups.push((types.group, Vec::new()));
            groups.len() - 1
        });
        let versions = &mut groups[index].1;
        if !versions.contains(&types.version) {
            versions.push(types.version);
        }
    }
    groups
}

fn group_value(group: &str, versions: &[&str]) -> Value {
    let entry = |v: &&str| json!({"groupVersion": format!("{group}/{v}"), "version": v});
    let all: Vec<Value> = versions.iter().map(entry).collect();
    json!({"name": group, "versions": all, "preferredVersion": all.first()})
}

/// Returns the document of `/apis`.
pub fn groups(table: &Table) -> Value {
    let groups: Vec<Value> = group_versions(table)
        .iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| group_value(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// Returns the document of `/api/v1` or `/apis/GROUP/VERSION`.
pub fn resources(table: &Table, group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    let mut served: Vec<&ResourceRef> = table
        .iter()
        .map(|s| &s.resource)
        .filter(|r| r.types.group == group && r.types.version == version)
        .collect();
    served.sort_by_key(|r| r.types.plural);
    for resource in served {
        let types = resource.types;
        let mut value = json!({
            "name": types.plural, "singularName": resource.singular, "namespaced": types.namespaced,
            "kind": types.kind, "verbs": resource.verbs,
        });
        if !resource.short_names.is_empty() {
            value["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            value["categories"] = json!(resource.categories);
        }
        if let Some(hash) = storage_version_hash(resource, table) {
            value["storageVersionHash"] = hash.into();
        }
        resources.push(value);
        for sub in resource.subresources {
            let mut value = json!({
                "name": format!("{}/{}", types.plural, sub.name), "singularName": "",
                "namespaced": types.namespaced, "kind": types.kind, "verbs": sub.verbs,
            });
            if let Some((group, version, kind)) = sub.body {
                value["kind"] = kind.into();
                if (group, version) != (types.group, types.version) {
                    value["group"] = group.into();
                    value["version"] = version.into();
                }
            }
            resources.push(value);
        }
    }
    if group.is_empty() {
        return json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources});
    }
    let group_version = format!("{group}/{version}");
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

/// Returns a hash of the stored group, version and kind, by which clients detect a change of the stored version.
fn storage_version_hash(resource: &ResourceRef, table: &Table) -> Option<String> {
    if !resource.is_stored() {
        return None;
    }
    let types = resource.types;
    let served = table.find(types.group, types.version, types.plural)?;
    let stored = served.stored.types;
    let text = format!("{}/{}/{}", stored.group, stored.version, stored.kind);
    let digest = Sha256::digest(text.as_bytes());
    Some(BASE64.encode(digest.get(..8).unwrap_or_default()))
}
