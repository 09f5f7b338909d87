//! StorageObjectInUseProtection: a finalizer keeps volumes and claims until they are not in use.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        let types = attributes.resource;
        let finalizer = match (types.group, types.plural, attributes.subresource) {
            ("", "persistentvolumes", "") => "kubernetes.io/pv-protection",
            ("", "persistentvolumeclaims", "") => "kubernetes.io/pvc-protection",
            ("storage.k8s.io", "volumeattributesclasses", "") => "kubernetes.io/vac-protection",
            _ => return Ok(()),
        };
        protect(&mut attributes.object, finalizer);
        Ok(())
    }
}

/// Adds a finalizer unless it exists.
pub fn protect(object: &mut Value, finalizer: &str) {
    let finalizers = knarr_api::prepare::metadata(object).entry("finalizers").or_insert_with(|| json!([]));
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    if let Value::Array(list) = finalizers
        && !list.iter().any(|f| f == finalizer)
    {
        list.push(finalizer.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once() {
        let mut claim = json!({"metadata": {"finalizers": ["a"]}});
        protect(&mut claim, "b");
        protect(&mut claim, "b");
        assert_eq!(claim, json!({"metadata": {"finalizers": ["a", "b"]}}));
    }
}
