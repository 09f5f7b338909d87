//! Privilege escalation prevention: checks writes of roles and bindings, which may only grant permissions that the
//! user has.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::rules::{self, GROUP};
use super::{Attributes, Authorizer};
use crate::authn::{MASTERS, UserInfo};

/// The maximum number of missing rules that a refusal lists.
const SHOWN: usize = 1000;

/// Checks one create or update of the rbac group; `old` is the object before the update.
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
            // The future permissions of an aggregating role are unbounded.
            let (held, _) = authorizer.rbac.rules_for(user, namespace);
            if rules::uncovered(&held, &everything()).next().is_some() {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                return Err(StatusError::forbidden(&GroupResource::new(GROUP, resource), name, why));
            }
        }
        readable::<Option<Vec<PolicyRule>>>(new, "rules")?.unwrap_or_default()
    };
    let (held, _) = authorizer.rbac.rules_for(user, namespace);
    match beyond(user, &held, &wanted) {
        None => Ok(()),
        Some(why) => Err(StatusError::forbidden(&GroupResource::new(GROUP, resource), name, &why)),
    }
}

/// Returns why a user with the rules `held` may not grant `wanted`; `None` if the user may.
fn beyond(user: &UserInfo, held: &[PolicyRule], wanted: &[PolicyRule]) -> Option<String> {
    let Some(left) = rules::comparable(held, wanted) else {
        return Some(format!(
            "the rules come to too many to compare with the RBAC permissions of user \"{}\", more than {} of one verb, \
             group, resource and name each: use fewer, or wildcards",
            user.name,
            rules::MOST_RULES,
        ));
    };
    let left: Vec<PolicyRule> = left.cloned().collect();
    let mut missing: Vec<PolicyRule> = rules::uncovered(held, &left).take(SHOWN + 1).collect();
    if missing.is_empty() {
        return None;
    }
    let more = missing.len() > SHOWN;
    missing.truncate(SHOWN);
    let list: BTreeSet<String> = rules::compacted(missing).iter().map(rules::describe).collect();
    let mut list: Vec<String> = list.into_iter().collect();
    if more {
        list.push("and more".to_owned());
    }
    let groups: Vec<String> = user.groups.iter().map(|g| format!("\"{g}\"")).collect();
    Some(format!(
        "user \"{}\" (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        list.join("\n")
    ))
}

/// Decodes a field of the object. What does not decode cannot be compared with the user's permissions.
fn readable<T: DeserializeOwned>(object: &Value, field: &str) -> Result<T, StatusError> {
    T::deserialize(&object[field])
        .map_err(|error| StatusError::bad_request(format!("{field} cannot be read: {error}")))
}

/// Returns the rules that allow everything.
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
    fn large_roles_cost_little_and_are_refused() {
        let words = |n: usize| (0..n).map(|i| format!("w{i}")).collect::<Vec<_>>();
        let cube = |n: usize| PolicyRule {
            verbs: words(n),
            api_groups: Some(words(n)),
            resources: Some(words(n)),
            resource_names: Some(words(n)),
            non_resource_urls: None,
        };
        let ann = UserInfo::new("ann", &[]);
        let why = beyond(&ann, &[], &[cube(400)]).unwrap();
        assert!(why.starts_with("the rules come to too many to compare"), "{why}");
        let why = beyond(&ann, &[], &[cube(10)]).unwrap();
        assert!(
            why.contains("not currently held:\n{APIGroups:[\"w0\"]") && why.ends_with("\nand more"),
            "{why}"
        );
        assert_eq!(beyond(&ann, &everything(), &[cube(400)]), None);
        assert_eq!(beyond(&ann, &[cube(10)], &[cube(9)]), None);
        let why = beyond(&ann, &[cube(3)], &[cube(4)]).unwrap();
        assert_eq!(why.lines().count(), 1 + 64, "verbs are put together");
    }

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
