//! VolumeBinding: tells the provisioners of waiting claims which node was chosen.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kind::Kind;
use knarr_client::{Client, Patch, Result};
use serde_json::json;

use crate::framework::profile::Descriptor;
use crate::framework::{Plugin, PodInfo, PreBind, Status};

pub const NAME: &str = "VolumeBinding";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(VolumeBinding);
        points.all.push(plugin.clone());
        points.pre_bind.push(plugin);
    },
};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

struct VolumeBinding;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }
}

/// The claims of a pod's volumes; a generic ephemeral volume has one named after both.
fn claims(pod: &PodInfo) -> Vec<String> {
    let volumes = pod.spec().and_then(|s| s.volumes.as_ref());
    let claim = |v: &k8s_openapi::api::core::v1::Volume| match &v.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        None => v.ephemeral.as_ref().map(|_| format!("{}-{}", pod.pod.name(), v.name)),
    };
    volumes.into_iter().flatten().filter_map(claim).collect()
}

/// Sets the annotation where the claim waits for its first consumer.
async fn select(client: &Client, namespace: &str, claim: &str, node: &str) -> Result<()> {
    let claim: PersistentVolumeClaim = client.get(namespace, claim).await?;
    let spec = claim.spec.clone().unwrap_or_default();
    let chosen = claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(SELECTED_NODE));
    let Some(class) = spec.storage_class_name.filter(|c| !c.is_empty()) else { return Ok(()) };
    if chosen || spec.volume_name.is_some_and(|v| !v.is_empty()) {
        return Ok(());
    }
    let class: StorageClass = client.get("", &class).await?;
    if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
        return Ok(());
    }
    let patch = Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: node}}}));
    client.patch::<PersistentVolumeClaim>(namespace, claim.name(), None, &patch).await.map(drop)
}

#[async_trait]
impl PreBind for VolumeBinding {
    async fn pre_bind(&self, client: &Client, pod: &PodInfo, node: &str) -> Status {
        for claim in claims(pod) {
            if let Err(error) = select(client, pod.pod.namespace(), &claim, node).await {
                return Status::error(error.to_string());
            }
        }
        Status::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::pod;

    #[test]
    fn a_pod_waits_for_its_claims() {
        let mut web = pod("web").build();
        web.spec.as_mut().unwrap().volumes = serde_json::from_value(json!([
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "tmp", "emptyDir": {}},
        ]))
        .unwrap();
        assert_eq!(claims(&PodInfo::new(Arc::new(web))), ["data-0", "web-scratch"]);
    }
}
