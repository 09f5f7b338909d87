//! Nobody may grant what they do not have: checks on writes of roles and bindings.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Attributes, Authorizer, rules};
use crate::authn::{MASTERS, UserInfo};

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Checks one create or update of the rbac group; `old` is what it was before.
pub async fn check(
    authorizer: &Authorizer,
    user: &UserInfo,
    resource: &str,
    namespace: &str,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), StatusError> {
    if user.in_group(MASTERS) {
        return Ok(());
    }
    let name = new.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
    let is_binding = resource.ends_with("bindings");
    let fields: &[&str] = if is_binding { &["roleRef", "subjects"] } else { &["rules", "aggregationRule"] };
    if old.is_some_and(|old| fields.iter().all(|f| old.get(f) == new.get(f))) {
        return Ok(());
    }
    let wanted = if is_binding {
        let role: RoleRef = readable(new, "roleRef")?;
        let plural = if role.kind == "Role" { "roles" } else { "clusterroles" };
        if may(authorizer, user, "bind", plural, namespace, &role.name).await {
            return Ok(());
        }
        match authorizer.rbac.rules_of(&role, namespace) {
            Ok(rules) => rules.to_vec(),
            Err(_) => return Err(StatusError::not_found(&GroupResource::new(GROUP, resource), &role.name)),
        }
    } else {
        if may(authorizer, user, "escalate", resource, namespace, name).await {
            return Ok(());
        }
        let aggregates = |o: &Value| o.get("aggregationRule").is_some_and(|r| !r.is_null());
        if aggregates(new) || old.is_some_and(aggregates) {
            // What an aggregating role may come to hold is unbounded.
            let (held, _) = authorizer.rbac.rules_for(user, namespace);
            if !rules::uncovered(&held, &everything()).is_empty() {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                return Err(StatusError::forbidden(&GroupResource::new(GROUP, resource), name, why));
            }
        }
        readable::<Option<Vec<PolicyRule>>>(new, "rules")?.unwrap_or_default()
    };
    let (held, _) = authorizer.rbac.rules_for(user, namespace);
    let missing = rules::uncovered(&held, &wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let list: BTreeSet<String> = rules::compacted(missing).iter().map(rules::describe).collect();
    let list: Vec<String> = list.into_iter().collect();
    let groups: Vec<String> = user.groups.iter().map(|g| format!("\"{g}\"")).collect();
    let why = format!(
        "user \"{}\" (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        list.join("\n")
    );
    Err(StatusError::forbidden(&GroupResource::new(GROUP, resource), name, &why))
}

/// A field of the object. What cannot be read cannot be compared with what the user holds.
fn readable<T: DeserializeOwned>(object: &Value, field: &str) -> Result<T, StatusError> {
    T::deserialize(&object[field])
        .map_err(|error| StatusError::bad_request(format!("{field} cannot be read: {error}")))
}

/// The rules of who may do everything.
fn everything() -> [PolicyRule; 2] {
    let all = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: all(), api_groups: Some(all()), resources: Some(all()), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: Some(all()), ..PolicyRule::default() },
    ]
}

async fn may(
    authorizer: &Authorizer,
    user: &UserInfo,
    verb: &str,
    resource: &str,
    ns: &str,
    name: &str,
) -> bool {
    let attributes = Attributes {
        verb: verb.into(),
        group: GROUP.into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: if resource == "clusterroles" { String::new() } else { ns.into() },
        name: name.into(),
        ..Attributes::default()
    };
    authorizer.authorize(user, &attributes).await.is_allowed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let rules = |rules: Value| readable::<Option<Vec<PolicyRule>>>(&json!({"rules": rules}), "rules");
        assert_eq!(rules(Value::Null).unwrap(), None);
        assert_eq!(rules(json!([{"verbs": ["get"]}])).unwrap().unwrap().len(), 1);
        for broken in [json!("x"), json!([{"verbs": "*"}]), json!([{"verbs": ["*"], "resources": 1}])] {
            assert!(
                rules(broken.clone()).unwrap_err().message().starts_with("rules cannot be read: "),
                "{broken}"
            );
        }
        for broken in [json!({}), json!({"roleRef": "x"}), json!({"roleRef": {"name": 1}})] {
            assert!(readable::<RoleRef>(&broken, "roleRef").is_err(), "{broken}");
        }
    }
}
