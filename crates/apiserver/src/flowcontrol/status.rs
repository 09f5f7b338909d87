//! The `Dangling` condition of flow schemas: whether the priority level that they name is missing.

use std::sync::Arc;

use serde_json::{Value, json};

use super::levels::Dangling;
use super::{Fairness, SCHEMAS};
use knarr_registry::Registry;
use knarr_registry::managed::{self, Change};
use knarr_registry::metadata;
use knarr_registry::options::WriteParams;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_wire::request::Request;

/// Writes the conditions as the configuration changes, until the server stops.
pub async fn maintain_status(registry: Arc<Registry>, fairness: Arc<Fairness>) {
    loop {
        tokio::select! {
            () = registry.stop.cancelled() => return,
            () = fairness.changed.notified() => {}
        }
        let wanted = std::mem::take(&mut fairness.lock().dangling);
        for dangling in wanted {
            write(&registry, &dangling).await;
        }
    }
}

fn condition(dangling: &Dangling) -> (&'static str, &'static str, String) {
    let named = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named \"{}\"",
        dangling.level
    );
    if dangling.dangling {
        ("True", "NotFound", format!("{named} but there is no such object"))
    } else {
        ("False", "Found", format!("{named} and it exists"))
    }
}

/// Returns the object with the condition; `None` if it has the condition already.
fn changed(old: &Value, dangling: &Dangling, now: &str) -> Option<Value> {
    let (status, reason, message) = condition(dangling);
    let mut conditions = old["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let at = conditions.iter().position(|c| c["type"] == "Dangling");
    if let Some(held) = at.and_then(|at| conditions.get(at))
        && held["status"] == status
        && held["reason"] == reason
        && held["message"] == message.as_str()
    {
        return None;
    }
    conditions.retain(|c| c["type"] != "Dangling");
    conditions.push(json!({
        "type": "Dangling", "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
    }));
    let mut new = old.clone();
    new["status"]["conditions"] = conditions.into();
    Some(new)
}

async fn write(registry: &Registry, dangling: &Dangling) {
    let held = registry.caches.get(SCHEMAS).and_then(|c| c.get(&dangling.schema));
    let Some(held) = held.and_then(|o| serde_json::from_slice::<Value>(&o.json()).ok()) else { return };
    let now = metadata::rfc3339(registry.clock.now());
    if changed(&held, dangling, &now).is_none() {
        return;
    }
    let Some(served) = registry.table.find("flowcontrol.apiserver.k8s.io", "v1", "flowschemas") else {
        return;
    };
    let request = Request::own();
    let mut params = WriteParams::own();
    params.field_manager = "api-priority-and-fairness-config-consumer-v1".into();
    let target = Target { namespace: "", name: &dangling.schema, subresource: Some("status") };
    (params.force, params.applied) = (Some(true), true);
    let change = |old: &Value| match changed(old, dangling, &now) {
        Some(new) => {
            let conditions = new["status"]["conditions"].as_array().into_iter().flatten();
            let own: Vec<&Value> = conditions.filter(|c| c["type"] == "Dangling").collect();
            let applied = json!({
                "apiVersion": new["apiVersion"], "kind": new["kind"],
                "metadata": {"name": dangling.schema}, "status": {"conditions": own},
            });
            managed::apply(&served, Some(old), &applied, target, &params, registry.clock.now())
        }
        None => Ok(old.clone()),
    };
    if let Err(error) = modify(registry, &request, &served, &params, target, Change::Apply, &change).await
        && !error.is_not_found()
    {
        tracing::warn!(%error, schema = dangling.schema, "cannot write a flow schema's condition");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_change_only_when_they_say_something_else() {
        let lost = Dangling { schema: "s".into(), level: "gone".into(), dangling: true };
        let new = changed(&json!({"metadata": {"name": "s"}}), &lost, "2026-01-01T00:00:00Z").unwrap();
        let condition = &new["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("NotFound")));
        assert_eq!(
            condition["message"],
            "This FlowSchema references the PriorityLevelConfiguration object named \"gone\" but there is no such object"
        );
        assert!(changed(&new, &lost, "2027-01-01T00:00:00Z").is_none());
        let found = Dangling { dangling: false, ..lost };
        assert_eq!(changed(&new, &found, "x").unwrap()["status"]["conditions"][0]["status"], "False");
    }
}
