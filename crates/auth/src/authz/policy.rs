//! The default roles and bindings, which are reconciled at the start.

use serde_json::{Map, Value, json};

use knarr_api::features::Features;

const TEXT: &str = include_str!("default_roles.txt");
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const API_GROUP: &str = "rbac.authorization.k8s.io";

/// One default object and its resource.
pub struct Default {
    pub resource: &'static str,
    pub object: Value,
}

/// Returns all default roles and bindings for these features, roles before the bindings that refer to them.
pub fn defaults(features: &Features) -> Vec<Default> {
    let mut out: Vec<Default> = Vec::new();
    let lines = TEXT.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    for line in lines.filter_map(|line| counted(line, features)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["clusterrole", name, labels @ ..] => out.push(cluster_role(name, labels)),
            ["role", namespace, name] => {
                let mut object = object("Role", name, Some(namespace));
                object["rules"] = json!([]);
                out.push(Default { resource: "roles", object });
            }
            ["aggregate", label] => {
                if let (Some(last), Some((key, value))) = (out.last_mut(), label.split_once('=')) {
                    let selectors = &mut last.object["aggregationRule"]["clusterRoleSelectors"];
                    push(selectors, json!({"matchLabels": {key: value}}));
                }
            }
            ["clusterrolebinding", name, role, subjects @ ..] => {
                let mut object = object("ClusterRoleBinding", name, None);
                object["roleRef"] = json!({"apiGroup": API_GROUP, "kind": "ClusterRole", "name": role});
                object["subjects"] = subjects.iter().filter_map(|s| subject(s)).collect();
                out.push(Default { resource: "clusterrolebindings", object });
            }
            ["rolebinding", namespace, name, kind, role, subjects @ ..] => {
                let mut object = object("RoleBinding", name, Some(namespace));
                object["roleRef"] = json!({"apiGroup": API_GROUP, "kind": kind, "name": role});
                object["subjects"] = subjects.iter().filter_map(|s| subject(s)).collect();
                out.push(Default { resource: "rolebindings", object });
            }
            _ => {
                if let (Some(last), Some(rule)) = (out.last_mut(), rule(line)) {
                    push(&mut last.object["rules"], rule);
                }
            }
        }
    }
    out
}

/// Returns the line without its feature condition; `None` if the feature is off.
fn counted<'a>(line: &'a str, features: &Features) -> Option<&'a str> {
    let Some(rest) = line.strip_prefix("when ") else { return Some(line) };
    let (gate, line) = rest.split_once(' ')?;
    features.is_on(gate).then_some(line)
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

fn object(kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), name.into());
    if let Some(namespace) = namespace {
        metadata.insert("namespace".into(), namespace.into());
    }
    metadata.insert("labels".into(), json!({"kubernetes.io/bootstrapping": "rbac-defaults"}));
    metadata.insert("annotations".into(), json!({"rbac.authorization.kubernetes.io/autoupdate": "true"}));
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata})
}

fn cluster_role(name: &str, labels: &[&str]) -> Default {
    let mut object = object("ClusterRole", name, None);
    for (key, value) in labels.iter().filter_map(|l| l.split_once('=')) {
        object["metadata"]["labels"][key] = value.into();
    }
    object["rules"] = json!([]);
    Default { resource: "clusterroles", object }
}

/// Parses a rule: `VERBS ; GROUPS ; RESOURCES [; NAMES]` or `VERBS ; url PATHS`.
fn rule(line: &str) -> Option<Value> {
    let list = |text: &str| -> Value {
        text.trim().split(',').map(|v| Value::from(if v == "-" { "" } else { v })).collect()
    };
    let parts: Vec<&str> = line.split(';').map(str::trim).collect();
    match parts.as_slice() {
        [verbs, urls] => {
            Some(json!({"verbs": list(verbs), "nonResourceURLs": list(urls.strip_prefix("url ")?)}))
        }
        [verbs, groups, resources] => {
            Some(json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)}))
        }
        [verbs, groups, resources, names] => Some(json!({
            "verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources),
            "resourceNames": list(names),
        })),
        _ => None,
    }
}

fn subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(match kind {
        "user" => json!({"kind": "User", "apiGroup": API_GROUP, "name": name}),
        "group" => json!({"kind": "Group", "apiGroup": API_GROUP, "name": name}),
        _ => {
            let (namespace, name) = name.split_once(':')?;
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

    #[test]
    fn every_line_is_understood() {
        let mut features = Features::default();
        assert!(!defaults(&features).iter().any(|d| d.object.to_string().contains("podgroup")));
        features.set("GenericWorkload=true,StorageVersionAPI=true").unwrap();
        let all = defaults(&features);
        for line in TEXT.lines().filter(|l| l.starts_with("  ") && !l.trim().starts_with("aggregate")) {
            assert!(rule(counted(line.trim(), &features).unwrap()).is_some(), "{line}");
        }
        for d in &all {
            let json = d.object.clone();
            let fine = match d.resource {
                "clusterroles" => serde_json::from_value::<ClusterRole>(json).is_ok(),
                "roles" => serde_json::from_value::<Role>(json).is_ok(),
                "clusterrolebindings" => serde_json::from_value::<ClusterRoleBinding>(json).is_ok(),
                _ => serde_json::from_value::<RoleBinding>(json).is_ok(),
            };
            assert!(fine, "{}", d.object);
        }
        let named = |resource: &str, name: &str| {
            all.iter().find(|d| d.resource == resource && d.object["metadata"]["name"] == name).unwrap()
        };
        let admin = &named("clusterroles", "cluster-admin").object;
        assert_eq!(admin["rules"][0]["verbs"][0], "*");
        let edit = &named("clusterroles", "edit").object;
        assert!(edit["aggregationRule"]["clusterRoleSelectors"].is_array());
        let binding = &named("clusterrolebindings", "system:discovery").object;
        assert_eq!(binding["subjects"][0]["name"], "system:authenticated");
        let scheduler = &named("clusterroles", "system:kube-scheduler").object;
        assert!(scheduler.to_string().contains("podgroups/status"));
    }
}
