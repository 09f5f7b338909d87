//! DefaultTolerationSeconds: how long pods stay on a node that is not ready or unreachable; by default five minutes.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;
use crate::config::TolerationSeconds;

pub struct DefaultTolerationSeconds;

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if attributes.is("", "pods") {
            tolerate(&mut attributes.object, context.settings.toleration_seconds);
        }
        Ok(())
    }
}

fn tolerate(pod: &mut Value, seconds: TolerationSeconds) {
    let tolerations = &mut pod["spec"]["tolerations"];
    let list = tolerations.as_array().cloned().unwrap_or_default();
    let covered = |taint: &str| {
        list.iter().any(|t| {
            let key = t["key"].as_str().unwrap_or("");
            let effect = t["effect"].as_str().unwrap_or("");
            (key == taint || key.is_empty()) && matches!(effect, "" | "NoExecute")
        })
    };
    let missing: Vec<Value> = TAINTS
        .iter()
        .zip([seconds.not_ready, seconds.unreachable])
        .filter(|(t, _)| !covered(t))
        .map(|(t, seconds)| {
            json!({"key": t, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
        })
        .collect();
    if !missing.is_empty() {
        *tolerations = Value::Array(list.into_iter().chain(missing).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_tolerated_yet() {
        for (given, added) in [
            (json!(null), 2),
            (json!([{"key": TAINTS[0], "operator": "Exists"}]), 1),
            (json!([{"key": TAINTS[0], "operator": "Exists", "effect": "NoSchedule"}]), 2),
            (json!([{"operator": "Exists"}]), 0),
        ] {
            let mut pod = json!({"spec": {"tolerations": given}});
            let before = given.as_array().map_or(0, Vec::len);
            tolerate(&mut pod, TolerationSeconds::default());
            let after = pod["spec"]["tolerations"].as_array().map_or(0, Vec::len);
            assert_eq!(after - before, added, "{given}");
        }
    }

    #[test]
    fn each_taint_has_its_own_time() {
        let mut pod = json!({"spec": {}});
        tolerate(&mut pod, TolerationSeconds { not_ready: 10, unreachable: 20 });
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        let shown: Vec<_> = tolerations.iter().map(|t| (&t["key"], &t["tolerationSeconds"])).collect();
        assert_eq!(shown, [(&json!(TAINTS[0]), &json!(10)), (&json!(TAINTS[1]), &json!(20))]);
    }
}
