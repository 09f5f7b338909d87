//! PodNodeSelector: adds the node selector from the namespace's annotation to its pods.

use std::collections::BTreeMap;

use async_trait::async_trait;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct PodNodeSelector;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
/// The configuration key for namespaces without an annotation.
const CLUSTER_DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

#[async_trait]
impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
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
        let wanted = of_namespace(attributes, context).await?;
        check(attributes, context, &wanted)?;
        for (key, value) in wanted {
            let selector = &mut attributes.object["spec"]["nodeSelector"];
            if !selector.is_object() {
                *selector = json!({});
            }
            selector[key.as_str()] = value.into();
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if !attributes.is("", "pods") {
            return Ok(());
        }
        check(attributes, context, &of_namespace(attributes, context).await?)
    }
}

async fn of_namespace(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<Labels, StatusError> {
    let namespace = lookup::value(context, ("", "v1", "namespaces"), "", attributes.namespace).await?;
    let namespace = namespace
        .ok_or_else(|| StatusError::not_found(&GroupResource::new("", "namespaces"), attributes.namespace))?;
    let default = context.settings.node_selectors.get(CLUSTER_DEFAULT);
    let annotated = namespace["metadata"]["annotations"][ANNOTATION].as_str();
    parse(annotated.or(default.map(String::as_str)).unwrap_or("")).map_err(StatusError::internal)
}

/// Parses a selector such as `a=b, c=d`.
pub(super) fn parse(selector: &str) -> Result<Labels, String> {
    let mut labels = Labels::new();
    for term in selector.split(',').filter(|t| !t.trim().is_empty()) {
        let (key, value) = term.split_once('=').ok_or_else(|| format!("invalid selector: [{selector}]"))?;
        labels.insert(key.trim().to_owned(), value.trim().trim_start_matches('=').trim().to_owned());
    }
    Ok(labels)
}

fn check(attributes: &Attributes<'_>, context: &Context<'_>, wanted: &Labels) -> Result<(), StatusError> {
    let own = &attributes.object["spec"]["nodeSelector"];
    let conflicts = wanted.iter().any(|(k, v)| own[k.as_str()].as_str().is_some_and(|o| o != v));
    if conflicts {
        let why = "pod node label selector conflicts with its namespace node label selector";
        return Err(attributes.forbidden(why));
    }
    let allowed = context.settings.node_selectors.get(attributes.namespace).map(String::as_str);
    let allowed = parse(allowed.unwrap_or("")).map_err(StatusError::internal)?;
    if !allowed.is_empty() && !within(own, &allowed) {
        return Err(
            attributes.forbidden("pod node label selector labels conflict with its namespace whitelist")
        );
    }
    Ok(())
}

fn within(own: &Value, allowed: &Labels) -> bool {
    own.as_object().into_iter().flatten().all(|(k, v)| allowed.get(k).map(String::as_str) == v.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        let labels = parse("a=b, c = d").unwrap();
        assert_eq!(labels, Labels::from([("a".into(), "b".into()), ("c".into(), "d".into())]));
        assert!(parse("a").is_err());
        assert!(within(&json!({"a": "b"}), &labels));
        assert!(!within(&json!({"a": "x"}), &labels));
        assert!(!within(&json!({"z": "b"}), &labels));
        assert!(within(&Value::Null, &labels));
    }
}
