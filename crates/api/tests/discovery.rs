//! Compares the resource table with what upstream 1.37 serves by default, by its discovery.
//! `upstream/discovery.jsonl` has one resource or subresource per line.

use std::collections::BTreeMap;

use knarr_api::resource::Resource;
use knarr_api::resources;
use serde_json::{Value, json};

/// Served without the table.
const ELSEWHERE: &[&str] = &["apiextensions.k8s.io/v1"];

fn entry(resource: &Resource) -> Value {
    let types = &resource.types;
    let mut entry = json!({
        "groupVersion": types.api_version(), "name": types.plural, "kind": types.kind,
        "namespaced": types.namespaced, "verbs": resource.verbs, "singularName": resource.singular,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    entry
}

fn entries(resource: &Resource) -> Vec<Value> {
    let types = &resource.types;
    let mut all = vec![entry(resource)];
    for sub in resource.subresources {
        let mut entry = json!({
            "groupVersion": types.api_version(), "name": format!("{}/{}", types.plural, sub.name),
            "kind": types.kind, "namespaced": types.namespaced, "verbs": sub.verbs,
        });
        if let Some((group, version, kind)) = sub.body {
            entry["kind"] = json!(kind);
            if (group, version) != (types.group, types.version) {
                entry["version"] = json!(version);
                if !group.is_empty() {
                    entry["group"] = json!(group);
                }
            }
        }
        all.push(entry);
    }
    all
}

fn key(entry: &Value) -> String {
    format!("{} {}", entry["groupVersion"].as_str().unwrap(), entry["name"].as_str().unwrap())
}

#[test]
fn the_same_is_served() {
    let theirs = include_str!("upstream/discovery.jsonl").lines().map(|l| serde_json::from_str(l).unwrap());
    let theirs: BTreeMap<String, Value> = theirs.map(|e: Value| (key(&e), e)).collect();
    let ours = resources::all().iter().flat_map(|r| entries(r));
    let ours: BTreeMap<String, Value> = ours.map(|e| (key(&e), e)).collect();
    let mut differences = Vec::new();
    for (key, entry) in &theirs {
        match ours.get(key) {
            _ if ELSEWHERE.iter().any(|gv| entry["groupVersion"] == *gv) => {}
            None => differences.push(format!("missing  {entry}")),
            Some(own) if own != entry => differences.push(format!("differs  {own}\n  theirs {entry}")),
            Some(_) => {}
        }
    }
    differences
        .extend(ours.iter().filter(|(k, _)| !theirs.contains_key(*k)).map(|(_, e)| format!("too much {e}")));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
