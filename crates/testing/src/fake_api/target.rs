//! Parses the objects that a path names, and serves the discovery documents.

use std::collections::BTreeMap;

use knarr_api::kind::{ObjectKey, ResourceType};
use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub struct Target {
    pub resource: ResourceType,
    pub namespace: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl Target {
    pub fn parse(path: &str, resources: &[ResourceType]) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let find = |plural: &str, namespaced: Option<bool>| {
            let mut all = resources.iter();
            all.find(|r| {
                (r.group, r.version, r.plural) == (group, version, plural)
                    && namespaced.is_none_or(|n| n == r.namespaced)
            })
        };
        let (resource, namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if find(plural, Some(true)).is_some() => {
                (find(plural, Some(true))?, *namespace, rest)
            }
            [plural, rest @ ..] => (find(plural, None)?, "", rest),
            [] => return None,
        };
        Some(Self {
            resource: *resource,
            namespace: namespace.to_owned(),
            name: rest.first().map(|s| (*s).to_owned()),
            subresource: rest.get(1).map(|s| (*s).to_owned()),
        })
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, self.name.as_deref().unwrap_or(""))
    }
}

/// Returns the document at a discovery path.
pub fn discovery(path: &str, resources: &[ResourceType]) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["apis"] => Some(groups(resources)),
        ["api", version] => Some(list("", version, resources)),
        ["apis", group, version] => Some(list(group, version, resources)),
        _ => None,
    }
}

fn groups(resources: &[ResourceType]) -> Value {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for resource in resources.iter().filter(|r| !r.group.is_empty()) {
        let versions = groups.entry(resource.group).or_default();
        if !versions.contains(&resource.version) {
            versions.push(resource.version);
        }
    }
    let version = |group: &str, v: &str| json!({"groupVersion": format!("{group}/{v}"), "version": v});
    let groups = groups.into_iter().map(|(group, versions)| {
        let all: Vec<Value> = versions.iter().map(|v| version(group, v)).collect();
        json!({"name": group, "preferredVersion": all[0], "versions": all})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
}

fn list(group: &str, version: &str, resources: &[ResourceType]) -> Value {
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let found = resources.iter().filter(|r| (r.group, r.version) == (group, version)).map(|r| {
        json!({"name": r.plural, "singularName": r.kind.to_lowercase(), "kind": r.kind,
            "namespaced": r.namespaced, "verbs": verbs})
    });
    let found: Vec<Value> = found.collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found})
}
