//! PersistentVolumeClaimResize: a claim may grow only if its storage class allows expansion.

use async_trait::async_trait;
use knarr_api::core::storage_class_name::CLASS_ANNOTATION;
use knarr_api::quota::list;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct PersistentVolumeClaimResize;

const CLASSES: (&str, &str, &str) = ("storage.k8s.io", "v1", "storageclasses");

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let Some(old) = attributes.old.filter(|_| attributes.is("", "persistentvolumeclaims")) else {
            return Ok(());
        };
        if !grows(&attributes.object, old) {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = class_of(old);
        let expands = if class.is_empty() || class != class_of(&attributes.object) {
            false
        } else {
            let found = lookup::value(context, CLASSES, "", class).await?;
            found.is_some_and(|class| class["allowVolumeExpansion"] == true)
        };
        if expands {
            return Ok(());
        }
        Err(attributes.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}

fn class_of(claim: &Value) -> &str {
    let old = claim["metadata"]["annotations"][CLASS_ANNOTATION].as_str();
    old.or_else(|| claim["spec"]["storageClassName"].as_str()).unwrap_or("")
}

fn grows(new: &Value, old: &Value) -> bool {
    let size =
        |claim: &Value| list(&claim["spec"]["resources"]["requests"]).remove("storage").unwrap_or_default();
    size(new) > size(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn growth() {
        let claim = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        for (new, old, expected) in [("2Gi", "1Gi", true), ("1024Mi", "1Gi", false), ("1Gi", "2Gi", false)] {
            assert_eq!(grows(&claim(new), &claim(old)), expected);
        }
    }
}
