//! RuntimeClass: sets the overhead and the scheduling constraints of a pod's runtime class.

use async_trait::async_trait;
use knarr_api::quota::list;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct RuntimeClass;

const CLASSES: (&str, &str, &str) = ("node.k8s.io", "v1", "runtimeclasses");
const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if !attributes.is("", "pods") {
            return Ok(());
        }
        let Some(class) = class(attributes, context).await? else { return Ok(()) };
        if let Err(why) = apply(&mut attributes.object, &class) {
            return Err(attributes.forbidden(&why));
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if !attributes.is("", "pods") {
            return Ok(());
        }
        let class = class(attributes, context).await?.unwrap_or_default();
        let (wanted, given) = (&class["overhead"]["podFixed"], &attributes.object["spec"]["overhead"]);
        if class["overhead"].is_object() {
            if list(wanted) != list(given) {
                return Err(attributes.forbidden(MISMATCH));
            }
        } else if !given.is_null() {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            return Err(attributes.forbidden(why));
        }
        Ok(())
    }
}

async fn class(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<Option<Value>, StatusError> {
    let Some(name) = attributes.object["spec"]["runtimeClassName"].as_str() else { return Ok(None) };
    // If runtime classes are not served at all, only the container runtime interprets the name.
    if context.registry.table.find(CLASSES.0, CLASSES.1, CLASSES.2).is_none() {
        return Ok(None);
    }
    let found = lookup::value(context, CLASSES, "", name).await?;
    match found {
        Some(class) => Ok(Some(class)),
        None => Err(attributes.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

fn apply(pod: &mut Value, class: &Value) -> Result<(), String> {
    let spec = &mut pod["spec"];
    if class["overhead"].is_object() {
        let overhead = &class["overhead"]["podFixed"];
        let given = list(&spec["overhead"]);
        if !given.is_empty() && given != list(overhead) {
            return Err(MISMATCH.into());
        }
        if given.is_empty() && overhead.is_object() {
            spec["overhead"] = overhead.clone();
        }
    }
    for (key, value) in class["scheduling"]["nodeSelector"].as_object().into_iter().flatten() {
        if !spec["nodeSelector"].is_object() {
            spec["nodeSelector"] = json!({});
        }
        let own = &mut spec["nodeSelector"][key.as_str()];
        if !own.is_null() && own != value {
            let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                text(value),
                text(own)
            ));
        }
        *own = value.clone();
    }
    for toleration in class["scheduling"]["tolerations"].as_array().into_iter().flatten() {
        if !spec["tolerations"].is_array() {
            spec["tolerations"] = json!([]);
        }
        if let Value::Array(list) = &mut spec["tolerations"]
            && !list.contains(toleration)
        {
            list.push(toleration.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_and_scheduling() {
        let class = json!({"overhead": {"podFixed": {"cpu": "10m"}}, "scheduling": {
            "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}]}});
        let mut pod = json!({"spec": {"nodeSelector": {"c": "d"}}});
        assert_eq!(apply(&mut pod, &class), Ok(()));
        let expected = json!({"spec": {"overhead": {"cpu": "10m"}, "nodeSelector": {"a": "b", "c": "d"},
            "tolerations": [{"key": "k", "operator": "Exists"}]}});
        assert_eq!(pod, expected);
        assert_eq!(apply(&mut pod, &class), Ok(()));
        assert_eq!(pod, expected);
        for (spec, why) in [
            (json!({"overhead": {"cpu": "1"}}), MISMATCH),
            (
                json!({"nodeSelector": {"a": "x"}}),
                "conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = x",
            ),
        ] {
            assert_eq!(apply(&mut json!({"spec": spec}), &class), Err(why.to_owned()));
        }
    }
}
