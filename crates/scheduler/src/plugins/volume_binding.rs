//! VolumeBinding: tells the provisioners of waiting claims which node was chosen.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kind::Kind;
use knarr_client::{Client, Patch, Result};
use serde_json::json;

use crate::framework::shape::claims;
use crate::framework::{CycleState, Descriptor, Parts, Plugin, PodInfo, PreBind, Status};

pub const NAME: &str = "VolumeBinding";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    build: |_| {
        let plugin = Arc::new(VolumeBinding);
        Ok(Parts { pre_bind: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

struct VolumeBinding;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }
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
    async fn pre_bind(&self, client: &Client, _: &CycleState, pod: &PodInfo, node: &str) -> Status {
        for claim in claims(pod.pod()) {
            if let Err(error) = select(client, pod.namespace(), &claim, node).await {
                return Status::error(error.to_string());
            }
        }
        Status::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use knarr_client::clock::SystemClock;
    use knarr_testing::FakeApi;

    use super::*;

    fn of<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test]
    async fn only_a_claim_that_waits_is_told() {
        let kinds = [PersistentVolumeClaim::RESOURCE, StorageClass::RESOURCE];
        let api = FakeApi::new(Arc::new(SystemClock), &kinds);
        for (name, mode) in [("late", "WaitForFirstConsumer"), ("early", "Immediate")] {
            let class = json!({"metadata": {"name": name}, "provisioner": "x", "volumeBindingMode": mode});
            api.add::<StorageClass>(&of(class));
        }
        for (name, class, volume) in
            [("a", "late", ""), ("b", "late", "pv"), ("c", "early", ""), ("d", "", "")]
        {
            api.add::<PersistentVolumeClaim>(&of(json!({"metadata": {"name": name, "namespace": "ns"},
                "spec": {"storageClassName": class, "volumeName": volume}})));
        }
        let volumes: Vec<_> = ["a", "b", "c", "d"]
            .map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}}))
            .into();
        let pod = of(json!({"metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [], "volumes": volumes}}));
        let pod = PodInfo::new(&pod);
        for node in ["n1", "n2"] {
            let status = VolumeBinding.pre_bind(&api.client(), &CycleState::default(), &pod, node).await;
            assert!(status.is_success(), "{status:?}");
        }
        let node = |claim: &str| {
            let claim = api.get::<PersistentVolumeClaim>("ns", claim).unwrap();
            claim.metadata.annotations.and_then(|a| a.get(SELECTED_NODE).cloned())
        };
        assert_eq!(["a", "b", "c", "d"].map(node), [Some("n1".to_owned()), None, None, None]);
    }
}
