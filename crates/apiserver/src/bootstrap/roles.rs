//! The default roles and bindings: missing ones are created, missing rules and subjects are added. Nothing is removed
//! except rules that former versions granted by mistake.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::rbac::v1::PolicyRule;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::state::State;
use knarr_auth::authz::policy::{self, Default};
use knarr_auth::authz::rules;
use knarr_registry::managed::Change;
use knarr_registry::options::WriteParams;
use knarr_registry::own::AT_ONCE;
use knarr_registry::own::ensure;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_registry::{metadata, store};
use knarr_wire::request::Request;

const GROUP: &str = "rbac.authorization.k8s.io";
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

pub async fn reconcile(server: &State, request: &Request) -> Result<(), StatusError> {
    stream::iter(policy::defaults(&server.config.features))
        .map(|default| reconcile_one(server, request, default))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
}

async fn reconcile_one(server: &State, request: &Request, default: Default) -> Result<(), StatusError> {
    let Some(served) = server.registry.table.v1(GROUP, default.resource) else { return Ok(()) };
    let (namespace, name) = (
        metadata::text(&default.object, "namespace").to_owned(),
        metadata::text(&default.object, "name").to_owned(),
    );
    let Some(current) = store::read(&server.registry, &served, &namespace, &name).await? else {
        return ensure(&server.registry, request, &served, default.object).await;
    };
    if merged(&current.value()?, &default.object).is_none() {
        return Ok(());
    }
    let target = Target { namespace: &namespace, name: &name, subresource: None };
    let change = |old: &Value| Ok(merged(old, &default.object).unwrap_or_else(|| old.clone()));
    modify(&server.registry, request, &served, &WriteParams::own(), target, Change::Update, &change)
        .await
        .map(|_| ())
}

/// Rules of former versions, by ClusterRole: verbs and a resource of the core group.
const WITHDRAWN: [(&str, &[&str], &str); 1] =
    // It allowed running any command in any container.
    [("knarr:local-path-provisioner", &["create", "delete"], "nodes/proxy")];

/// Removes rules that are exactly as a former version wrote them.
fn withdraw(role: &mut Value) {
    let name = metadata::text(role, "name").to_owned();
    let Some(rules) = role["rules"].as_array_mut() else { return };
    for (_, verbs, resource) in WITHDRAWN.iter().filter(|(of, ..)| *of == name) {
        rules.retain(|rule| *rule != json!({"apiGroups": [""], "resources": [resource], "verbs": verbs}));
    }
}

/// Returns the object with the missing parts of its default; `None` if nothing is missing or its automatic update is
/// disabled.
fn merged(current: &Value, default: &Value) -> Option<Value> {
    if current["metadata"]["annotations"][AUTOUPDATE] != "true" {
        return None;
    }
    let mut new = current.clone();
    if default["kind"] == "ClusterRole" {
        withdraw(&mut new);
    }
    if default.get("aggregationRule").is_none_or(Value::is_null) && default.get("rules").is_some() {
        let of =
            |v: &Value| serde_json::from_value::<Vec<PolicyRule>>(v["rules"].clone()).unwrap_or_default();
        let (held, wanted) = (of(&new), of(default));
        let missing: Vec<PolicyRule> = rules::uncovered(&held, &wanted).collect();
        let list = &mut new["rules"];
        if !list.is_array() {
            *list = json!([]);
        }
        if let Value::Array(list) = list {
            list.extend(missing.iter().filter_map(|r| serde_json::to_value(r).ok()));
        }
    }
    for subject in default["subjects"].as_array().into_iter().flatten() {
        let list = &mut new["subjects"];
        if !list.is_array() {
            *list = json!([]);
        }
        if let Value::Array(list) = list
            && !list.contains(subject)
        {
            list.push(subject.clone());
        }
    }
    for (key, value) in default["metadata"]["labels"].as_object().into_iter().flatten() {
        new["metadata"]["labels"][key] = value.clone();
    }
    (new != *current).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_added() {
        let default = json!({"metadata": {"labels": {"a": "b"}}, "rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "nodes"]}]});
        let current = json!({"metadata": {"labels": {"a": "b"}, "annotations": {AUTOUPDATE: "true"}}, "rules": [
            {"verbs": ["*"], "apiGroups": [""], "resources": ["pods"]}]});
        let new = merged(&current, &default).unwrap();
        assert_eq!(new["rules"][1], json!({"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]}));
        assert_eq!(merged(&new, &default), None);
        let mut left_alone = current.clone();
        left_alone["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(merged(&left_alone, &default), None);
    }
    #[test]
    fn former_rights_are_withdrawn() {
        let default = policy::defaults(&knarr_api::features::Features::default())
            .into_iter()
            .map(|d| d.object)
            .find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == "knarr:local-path-provisioner")
            .unwrap();
        let reaches_containers = |role: &Value| {
            let rules = role["rules"].as_array().unwrap();
            rules.iter().any(|r| r["resources"].as_array().unwrap().contains(&json!("nodes/proxy")))
        };
        assert!(!reaches_containers(&default));
        let mut former = default.clone();
        former["metadata"]["annotations"][AUTOUPDATE] = "true".into();
        let granted = json!({"verbs": ["create", "delete"], "apiGroups": [""], "resources": ["nodes/proxy"]});
        former["rules"].as_array_mut().unwrap().push(granted);
        let now = merged(&former, &default).unwrap();
        assert_eq!(now["rules"], default["rules"]);
    }
}
