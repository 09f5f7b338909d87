//! DefaultTolerationSeconds: pods stay five minutes on a node that is not ready or out of reach.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::server::Inner;

pub struct DefaultTolerationSeconds;

const TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const SECONDS: i64 = 300;

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, _: &Inner) -> Result<(), StatusError> {
        if attributes.is("", "pods") {
            tolerate(&mut attributes.object);
        }
        Ok(())
    }
}

fn tolerate(pod: &mut Value) {
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
        .filter(|t| !covered(t))
        .map(|t| json!({"key": t, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS}))
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
            tolerate(&mut pod);
            let after = pod["spec"]["tolerations"].as_array().map_or(0, Vec::len);
            assert_eq!(after - before, added, "{given}");
        }
    }
}
