//! ClusterTrustBundleAttest: publishing a signer's trust bundle needs the permission to attest for the signer.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;

use super::certificates::may;
use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct ClusterTrustBundleAttest;

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let types = attributes.resource;
        let signer = attributes.object["spec"]["signerName"].as_str().unwrap_or("");
        if (types.group, types.plural) != ("certificates.k8s.io", "clustertrustbundles") || signer.is_empty()
        {
            return Ok(());
        }
        // The garbage collector may remove owners and finalizers without the permission to attest.
        let rest = |v: &serde_json::Value| {
            let mut v = v.clone();
            if let Some(meta) = v["metadata"].as_object_mut() {
                ["ownerReferences", "finalizers", "managedFields"].iter().for_each(|f| drop(meta.remove(*f)));
            }
            v
        };
        if attributes.old.is_some_and(|old| rest(old) == rest(&attributes.object))
            || may(context, attributes, "attest", signer).await
        {
            return Ok(());
        }
        Err(attributes.forbidden(&format!("user not permitted to attest for signerName {signer:?}")))
    }
}
