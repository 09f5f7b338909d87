//! LimitPodHardAntiAffinityTopology: required anti-affinity of a pod may only use the topology of single nodes.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct LimitPodHardAntiAffinityTopology;

const HOSTNAME: &str = "kubernetes.io/hostname";

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        match attributes.is("", "pods").then(|| wide(&attributes.object)).flatten() {
            Some(key) => Err(attributes.forbidden(&format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
            ))),
            None => Ok(()),
        }
    }
}

/// Returns the topology key of a required anti-affinity term that is wider than a node.
fn wide(pod: &Value) -> Option<&str> {
    let terms = pod.pointer("/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution");
    let terms = terms.and_then(Value::as_array).into_iter().flatten();
    terms.map(|t| t["topologyKey"].as_str().unwrap_or("")).find(|k| *k != HOSTNAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn topologies() {
        for (key, expected) in
            [(HOSTNAME, None), ("topology.kubernetes.io/zone", Some("topology.kubernetes.io/zone"))]
        {
            let pod = json!({"spec": {"affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key}]}}}});
            assert_eq!(wide(&pod), expected);
        }
        assert_eq!(wide(&json!({})), None);
    }
}
