//! DefaultStorageClass: sets the default class of a claim that names none.

use async_trait::async_trait;
use knarr_api::core::storage_class_name::CLASS_ANNOTATION;
use knarr_api::storage::storageclass::DEFAULT_CLASSES;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct DefaultStorageClass;

const CLASSES: (&str, &str, &str) = ("storage.k8s.io", "v1", "storageclasses");

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if !attributes.is("", "persistentvolumeclaims") || has_class(&attributes.object) {
            return Ok(());
        }
        let classes = lookup::list(context, CLASSES, None)?;
        if let Some(class) = lookup::default_class(&classes, &DEFAULT_CLASSES) {
            attributes.object["spec"]["storageClassName"] = class.into();
        }
        Ok(())
    }
}

/// Returns whether the claim names a class. The empty name counts: it means no class.
fn has_class(claim: &Value) -> bool {
    claim["metadata"]["annotations"].get(CLASS_ANNOTATION).is_some()
        || claim["spec"]["storageClassName"].is_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_counts_as_a_class() {
        for (claim, expected) in [
            (json!({"spec": {}}), false),
            (json!({"spec": {"storageClassName": null}}), false),
            (json!({"spec": {"storageClassName": ""}}), true),
            (json!({"metadata": {"annotations": {CLASS_ANNOTATION: "a"}}}), true),
        ] {
            assert_eq!(has_class(&claim), expected, "{claim}");
        }
    }
}
