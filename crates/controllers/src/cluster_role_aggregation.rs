//! ClusterRole aggregation: keeps the rules of a role with an aggregation rule equal to the rules of all roles it
//! selects.

use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use knarr_api::kind::Kind;
use knarr_apimachinery::selector::Selector;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Lister, Patch, Result};
use serde_json::json;

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "clusterrole-aggregation-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let roles = cx.informers.informer::<ClusterRole>();
    let (lister, on_change) = (roles.lister(), Arc::clone(&queue));
    roles.add_handler(move |event| {
        // Any aggregating role may select the changed role. There are few of them, so all are queued.
        on_change.add(event.object().name().to_owned());
        for role in lister.list() {
            if role.aggregation_rule.is_some() {
                on_change.add(role.metadata.name.clone().unwrap_or_default());
            }
        }
    });
    if !roles.wait_synced().await {
        return;
    }
    let (lister, stop) = (roles.lister(), cx.stop.clone());
    let reconcile = move |name: String| {
        let (cx, lister) = (Arc::clone(&cx), lister.clone());
        async move { aggregate(&cx, &lister, &name).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn aggregate(cx: &Context, lister: &Lister<ClusterRole>, name: &str) -> Result<()> {
    let Some(role) = lister.get("", name) else { return Ok(()) };
    if role.aggregation_rule.is_none() {
        return Ok(());
    }
    let all = lister.list();
    let rules = aggregated(&role, all.iter().map(|r| &**r));
    if role.rules.as_deref().unwrap_or_default() == rules {
        return Ok(());
    }
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        // With the uid, the apply fails if another role has taken the name since.
        "metadata": {"name": name, "uid": role.uid()},
        "rules": rules,
    });
    // This controller owns the rules field: it forces the apply over other field managers.
    let writer = Client::new(Arc::clone(cx.client.transport()), Arc::clone(&cx.clock), DESCRIPTOR.name);
    let apply = Patch::Apply { object, force: true };
    match writer.patch::<ClusterRole>("", name, None, &apply).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the rules of the roles that `role` selects, ordered by role name, without duplicates.
fn aggregated<'a>(role: &ClusterRole, all: impl Iterator<Item = &'a ClusterRole>) -> Vec<PolicyRule> {
    let selectors: Vec<Selector> = role
        .aggregation_rule
        .iter()
        .flat_map(|a| a.cluster_role_selectors.iter().flatten())
        .filter_map(|s| Selector::from_label_selector(Some(s)).ok())
        .collect();
    let mut sources: Vec<&ClusterRole> = all.filter(|r| r.metadata.name != role.metadata.name).collect();
    sources.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in &selectors {
        for source in sources.iter().filter(|r| selector.matches_optional(r.metadata.labels.as_ref())) {
            for rule in source.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn role(name: &str, label: &str, rules: Value, aggregates: &[&str]) -> ClusterRole {
        let selectors: Vec<Value> = aggregates.iter().map(|l| json!({"matchLabels": {*l: "true"}})).collect();
        let mut role = json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules});
        if !aggregates.is_empty() {
            role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        }
        serde_json::from_value(role).unwrap()
    }

    fn rule(verb: &str) -> Value {
        json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]})
    }

    #[test]
    fn selected_rules_are_taken_once_in_order_of_names() {
        let admin = role("admin", "to-nothing", json!([rule("old")]), &["to-admin", "to-edit"]);
        let all = [
            admin.clone(),
            role("b", "to-admin", json!([rule("create"), rule("get")]), &[]),
            role("a", "to-admin", json!([rule("get")]), &[]),
            role("c", "to-edit", json!([rule("get"), rule("delete")]), &[]),
            role("d", "to-view", json!([rule("list")]), &[]),
        ];
        let verbs: Vec<String> =
            aggregated(&admin, all.iter()).into_iter().map(|r| r.verbs[0].clone()).collect();
        assert_eq!(verbs, ["get", "create", "delete"]);
        let empty = role("x", "y", json!([rule("get")]), &["nobody"]);
        assert!(aggregated(&empty, all.iter()).is_empty());
    }
}
