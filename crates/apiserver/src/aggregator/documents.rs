//! Merges the discovery and OpenAPI documents of aggregated servers into those of this server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::Aggregator;
use super::priorities::{self, CUSTOM};
use super::{Remote, api_services};

/// Converts the legacy discovery of a group version into the form of aggregated discovery.
pub fn resources(group: &str, version: &str, list: &[u8]) -> Vec<Value> {
    let list: Value = serde_json::from_slice(list).unwrap_or_default();
    let all = list["resources"].as_array().cloned().unwrap_or_default();
    let text = |v: &Value, field: &str| v[field].as_str().unwrap_or("").to_owned();
    let or = |own: String, other: &str| if own.is_empty() { other.to_owned() } else { own };
    let kind = |r: &Value| {
        let (of_group, of_version) = (or(text(r, "group"), group), or(text(r, "version"), version));
        json!({"group": of_group, "version": of_version, "kind": r["kind"]})
    };
    let mut out = Vec::new();
    for resource in all.iter().filter(|r| !text(r, "name").contains('/')) {
        let name = text(resource, "name");
        let namespaced = resource["namespaced"].as_bool().unwrap_or(false);
        let mut value = json!({
            "resource": name, "singularResource": text(resource, "singularName"),
            "responseKind": kind(resource), "verbs": resource["verbs"],
            "scope": if namespaced { "Namespaced" } else { "Cluster" },
        });
        for field in ["shortNames", "categories"] {
            if resource[field].is_array() {
                value[field] = resource[field].clone();
            }
        }
        let subresource = |r: &Value| {
            let full = text(r, "name");
            let name = full.strip_prefix(name.as_str())?.strip_prefix('/')?;
            Some(json!({"subresource": name, "responseKind": kind(r), "verbs": r["verbs"]}))
        };
        let subresources: Vec<Value> = all.iter().filter_map(subresource).collect();
        if !subresources.is_empty() {
            value["subresources"] = subresources.into();
        }
        out.push(value);
    }
    out
}

/// The priorities by group and version, from the APIServices.
struct Order(BTreeMap<(String, String), (i32, i32)>);

impl Order {
    fn of(aggregator: &Aggregator) -> Self {
        let mut map = BTreeMap::new();
        for api_service in api_services(aggregator) {
            let Some(spec) = &api_service.spec else { continue };
            let key = (spec.group.clone().unwrap_or_default(), spec.version.clone().unwrap_or_default());
            map.insert(key, (spec.group_priority_minimum, spec.version_priority));
        }
        Self(map)
    }

    fn priority(&self, group: &str, version: &str) -> (i32, i32) {
        let registered = self.0.get(&(group.to_owned(), version.to_owned())).copied();
        registered.or_else(|| priorities::built_in(group, version)).unwrap_or(CUSTOM)
    }

    /// Sorts versions by priority, then by Kubernetes' version order.
    fn sort_versions(&self, group: &str, versions: &mut [Value], field: &str) {
        versions.sort_by_key(|v| {
            let version = v[field].as_str().unwrap_or("");
            let (_, priority) = self.priority(group, version);
            (std::cmp::Reverse(priority), std::cmp::Reverse(stage(version)))
        });
    }

    /// Sorts groups by the highest priority of their versions; the sort is stable.
    fn sort_groups(&self, groups: &mut [Value], name: fn(&Value) -> &str, field: &str) {
        groups.sort_by_cached_key(|g| {
            let group = name(g);
            let versions = g["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let of = |v: &Value| self.priority(group, v[field].as_str().unwrap_or("")).0;
            (std::cmp::Reverse(versions.iter().map(of).max().unwrap_or(0)), group.to_owned())
        });
    }
}

/// Returns the sort key of a version such as `v2`, `v1`, `v1beta2`, `v1alpha1` or any other text; a more stable
/// version is greater.
fn stage(version: &str) -> (u8, u32, u32) {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    if let Some((major, minor)) = rest.split_once("beta") {
        return (2, number(major), number(minor));
    }
    if let Some((major, minor)) = rest.split_once("alpha") {
        return (1, number(major), number(minor));
    }
    (3, number(rest), 0)
}

fn of_groups(remotes: &[std::sync::Arc<Remote>]) -> BTreeMap<String, Vec<&Remote>> {
    let mut groups: BTreeMap<String, Vec<&Remote>> = BTreeMap::new();
    for remote in remotes.iter().filter(|r| !r.group.is_empty()) {
        groups.entry(remote.group.clone()).or_default().push(remote);
    }
    groups
}

fn list_of<'a>(value: &'a mut Value, field: &str) -> &'a mut Vec<Value> {
    if !value[field].is_array() {
        value[field] = Value::Array(Vec::new());
    }
    match &mut value[field] {
        Value::Array(list) => list,
        _ => unreachable!("made a list just above"),
    }
}

/// Merges the `APIGroupDiscoveryList` of all groups except the core group.
pub fn merge_discovery(aggregator: &Aggregator, mut list: Value) -> Value {
    let remotes = aggregator.remotes();
    let order = Order::of(aggregator);
    let name: fn(&Value) -> &str = |g| g["metadata"]["name"].as_str().unwrap_or("");
    let items = list_of(&mut list, "items");
    for (group, remotes) in of_groups(&remotes) {
        let at = items.iter().position(|g| name(g) == group).unwrap_or_else(|| {
            items.push(json!({"metadata": {"name": group}, "versions": []}));
            items.len() - 1
        });
        let versions = list_of(&mut items[at], "versions");
        for remote in remotes {
            versions.retain(|v| v["version"] != remote.version.as_str());
            let freshness = if remote.stale { "Stale" } else { "Current" };
            versions.push(
                json!({"version": remote.version, "resources": remote.resources, "freshness": freshness}),
            );
        }
    }
    for group in items.iter_mut() {
        let of = name(group).to_owned();
        order.sort_versions(&of, list_of(group, "versions"), "version");
    }
    order.sort_groups(items, name, "version");
    list
}

/// Merges the `APIGroupList`.
pub fn merge_groups(aggregator: &Aggregator, mut list: Value) -> Value {
    let order = Order::of(aggregator);
    let name: fn(&Value) -> &str = |g| g["name"].as_str().unwrap_or("");
    let mut remote: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (group, version) in aggregator.local() {
        remote.entry(group.to_owned()).or_default().insert(version.to_owned());
    }
    for api_service in api_services(aggregator) {
        let Some(spec) = api_service.spec.as_ref().filter(|s| s.service.is_some()) else { continue };
        let group = spec.group.clone().unwrap_or_default();
        if !group.is_empty() {
            remote.entry(group).or_default().insert(spec.version.clone().unwrap_or_default());
        }
    }
    let groups = list_of(&mut list, "groups");
    for (group, versions) in remote {
        let at = groups.iter().position(|g| name(g) == group).unwrap_or_else(|| {
            groups.push(json!({"name": group, "versions": []}));
            groups.len() - 1
        });
        let listed = list_of(&mut groups[at], "versions");
        for version in versions {
            if !listed.iter().any(|v| v["version"] == version.as_str()) {
                listed.push(json!({"groupVersion": format!("{group}/{version}"), "version": version}));
            }
        }
    }
    for group in groups.iter_mut() {
        let of = name(group).to_owned();
        let versions = list_of(group, "versions");
        order.sort_versions(&of, versions, "version");
        let first = versions.first().cloned();
        group["preferredVersion"] = first.unwrap_or_default();
    }
    order.sort_groups(groups, name, "version");
    list
}

/// Returns the `APIGroup` of one group, from the list of all groups.
pub fn merge_group(groups: &Value, group: &str) -> Option<Value> {
    let mut found = groups["groups"].as_array()?.iter().find(|g| g["name"] == group)?.clone();
    found["kind"] = "APIGroup".into();
    found["apiVersion"] = "v1".into();
    Some(found)
}

/// Merges the index of OpenAPI v3 documents.
pub fn merge_openapi_index(aggregator: &Aggregator, mut index: Value) -> Value {
    for remote in aggregator.remotes() {
        if let Some(url) = &remote.openapi_v3 {
            let path = format!("apis/{}/{}", remote.group, remote.version);
            index["paths"][path] = json!({"serverRelativeURL": url});
        }
    }
    index
}

/// Merges the OpenAPI v2 document; existing definitions are kept.
pub fn merge_openapi_v2(aggregator: &Aggregator, mut document: Value) -> Value {
    for remote in aggregator.remotes() {
        let Some(theirs) = &remote.openapi_v2 else { continue };
        for field in ["definitions", "paths"] {
            let own = document[field].as_object_mut();
            let Some((own, theirs)) = own.zip(theirs[field].as_object()) else { continue };
            for (name, value) in theirs {
                own.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
    document
}

/// Reduces a document to one group version and the definitions that it refers to.
pub fn only_group_version(mut document: Value, group: &str, version: &str) -> Option<Value> {
    let prefix = format!("/apis/{group}/{version}");
    let of_version = |path: &String| {
        path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let Value::Object(mut paths) = document["paths"].take() else { return None };
    paths.retain(|path, _| of_version(path));
    let Value::Object(definitions) = document["definitions"].take() else { return None };
    let mut wanted: Vec<String> = Vec::new();
    paths.values().for_each(|value| references(value, &mut wanted));
    let mut needed = Map::new();
    while let Some(name) = wanted.pop() {
        if !needed.contains_key(&name)
            && let Some(definition) = definitions.get(&name)
        {
            references(definition, &mut wanted);
            needed.insert(name, definition.clone());
        }
    }
    Some(json!({"paths": paths, "definitions": needed}))
}

fn references(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                out.extend(name.strip_prefix("#/definitions/").map(str::to_owned));
            }
            map.values().for_each(|v| references(v, out));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, out)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_discovery_becomes_aggregated() {
        let list = json!({"resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["update"]},
            {"name": "fischers", "singularName": "", "namespaced": false, "kind": "Fischer", "verbs": ["list"]},
        ]});
        let found = resources("g", "v1", list.to_string().as_bytes());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["scope"], "Namespaced");
        assert_eq!(found[0]["subresources"][0]["subresource"], "status");
        assert_eq!(found[1]["responseKind"], json!({"group": "g", "version": "v1", "kind": "Fischer"}));
        assert!(resources("g", "v1", b"junk").is_empty());
    }

    #[test]
    fn later_stages_come_first() {
        let mut versions = ["v1alpha1", "v1", "x", "v2beta1", "v2"];
        versions.sort_by_key(|v| std::cmp::Reverse(stage(v)));
        assert_eq!(versions, ["v2", "v1", "v2beta1", "v1alpha1", "x"]);
    }

    #[test]
    fn only_what_a_version_needs() {
        let document = json!({
            "paths": {"/apis/g/v1/a": {"$ref": "#/definitions/A"}, "/apis/g/v1beta1/a": {}, "/version": {}},
            "definitions": {"A": {"$ref": "#/definitions/B"}, "B": {"$ref": "#/definitions/A"}, "C": {}},
        });
        let part = only_group_version(document, "g", "v1").unwrap();
        assert_eq!(part["paths"].as_object().unwrap().len(), 1);
        assert_eq!(part["definitions"].as_object().unwrap().len(), 2);
        assert!(only_group_version(json!({}), "g", "v1").is_none());
    }
}
