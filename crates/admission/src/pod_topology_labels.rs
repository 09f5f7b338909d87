//! PodTopologyLabels: copies the zone and region labels of the node to the pod, so that its containers can read them.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct PodTopologyLabels;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        let types = attributes.resource;
        let node = match (types.group, types.plural, attributes.subresource) {
            ("", "pods", "") => attributes.object["spec"]["nodeName"].as_str(),
            ("", "pods", "binding") if attributes.object["target"]["kind"] == "Node" => {
                attributes.object["target"]["name"].as_str()
            }
            _ => None,
        };
        let Some(node) = node.filter(|n| !n.is_empty()) else { return Ok(()) };
        if let Some(node) = lookup::find(context, ("", "v1", "nodes"), "", node).await? {
            label(&mut attributes.object, |key| node.header().label(key));
        }
        Ok(())
    }
}

fn label<'n>(object: &mut Value, of_node: impl Fn(&str) -> Option<&'n str>) {
    for key in LABELS {
        let Some(value) = of_node(key) else { continue };
        let labels = &mut object["metadata"]["labels"];
        if !labels.is_object() {
            *labels = json!({});
        }
        labels[key] = value.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_is_copied() {
        let mut binding = json!({"metadata": {"labels": {"a": "b"}}});
        label(&mut binding, |key| (key == LABELS[0]).then_some("z"));
        assert_eq!(binding["metadata"]["labels"], json!({"a": "b", LABELS[0]: "z"}));
        let mut plain = json!({});
        label(&mut plain, |_| None);
        assert_eq!(plain, json!({}));
    }
}
