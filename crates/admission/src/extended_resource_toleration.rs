//! ExtendedResourceToleration: adds tolerations to pods that request extended resources, so that they can run on
//! dedicated nodes.

use std::collections::BTreeSet;

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        if attributes.is("", "pods") {
            tolerate(&mut attributes.object);
        }
        Ok(())
    }
}

/// Returns whether the resource name has a domain outside of Kubernetes.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

fn tolerate(pod: &mut Value) {
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().flat_map(|l| pod["spec"][*l].as_array().into_iter().flatten());
    let requests = containers.flat_map(|c| c["resources"]["requests"].as_object().into_iter().flatten());
    let names: BTreeSet<String> = requests.map(|(n, _)| n.clone()).filter(|n| is_extended(n)).collect();
    for name in names {
        let tolerations = &mut pod["spec"]["tolerations"];
        if !tolerations.is_array() {
            *tolerations = json!([]);
        }
        let wanted = json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
        if let Value::Array(list) = tolerations
            && !list.contains(&wanted)
        {
            list.push(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_tolerated_once() {
        let mut pod = json!({"spec": {"containers": [{"resources": {"requests": {
            "cpu": "1", "example.com/gpu": "1", "hugepages-2Mi": "1", "a.kubernetes.io/b": "1"}}}]}});
        tolerate(&mut pod);
        tolerate(&mut pod);
        let expected = json!([{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]);
        assert_eq!(pod["spec"]["tolerations"], expected);
    }
}
