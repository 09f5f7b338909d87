//! Binds a pod's claims before the pod: writes the decision, and waits until both sides of every claim are bound.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use knarr_api::kind::Kind;
use knarr_client::{Client, Error};
use thiserror::Error as ThisError;

use super::binder::{Binder, PodVolumes};
use super::matching::is_reserved_for;
use crate::background::Background;
use crate::framework::PodInfo;
use crate::plugins::claims::{SELECTED_NODE, is_fully_bound, reaches, selected_node, volume_name};

const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// The objects to write for a pod's claims.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    /// Volumes with their claimRef set, each with its claim.
    pub bindings: Vec<(PersistentVolume, PersistentVolumeClaim)>,
    /// Claims with the selected-node annotation.
    pub provisions: Vec<PersistentVolumeClaim>,
}

/// Why a pod's claims could not be bound.
#[derive(Debug, ThisError)]
pub enum BindError {
    #[error(transparent)]
    Write(#[from] Error),
    #[error("binding volumes: {0}")]
    Wait(String),
}

impl Decided {
    /// Builds the objects for this decision.
    pub fn of(volumes: &PodVolumes, node: &str) -> Self {
        let bindings =
            volumes.bindings.iter().map(|(volume, claim)| (claim_volume(volume, claim), (**claim).clone()));
        let provisions = volumes.provisions.iter().map(|(claim, _)| {
            let mut claim = (**claim).clone();
            let annotations = claim.metadata.annotations.get_or_insert_default();
            annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
            claim
        });
        Self { bindings: bindings.collect(), provisions: provisions.collect() }
    }

    /// Returns whether there is nothing to write.
    pub fn is_nothing(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }

    /// Makes the decision count for other pods.
    pub fn assume(&self, binder: &Binder) {
        self.bindings.iter().for_each(|(volume, _)| binder.volumes.assume(volume.clone()));
        self.provisions.iter().for_each(|claim| binder.claims.assume(claim.clone()));
    }

    /// Removes the assumptions of this decision.
    pub fn restore(&self, binder: &Binder) {
        self.bindings.iter().for_each(|(volume, _)| binder.volumes.restore(volume));
        self.provisions.iter().for_each(|claim| binder.claims.restore(claim));
    }

    /// Writes the objects, and replaces them by the versions that the API server returns.
    pub async fn write(&mut self, client: &Client) -> Result<(), BindError> {
        for (volume, _) in &mut self.bindings {
            *volume = client.update(volume).await?;
        }
        for claim in &mut self.provisions {
            *claim = client.update(claim).await?;
        }
        Ok(())
    }

    /// Waits until every claim is bound.
    pub async fn wait(
        &self,
        client: &Client,
        binder: &Binder,
        pod: &PodInfo,
        node: &str,
        patience: Duration,
    ) -> Result<(), BindError> {
        let background = binder.catalog.shared::<Background>();
        let mut changes = binder.catalog.changes();
        let mut too_late = std::pin::pin!(client.clock().sleep(patience));
        loop {
            changes.mark_unchanged();
            if self.is_bound(binder, pod, node).map_err(BindError::Wait)? {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = &mut too_late => return Err(BindError::Wait("context deadline exceeded".to_owned())),
                () = background.ending() => return Err(BindError::Wait("context canceled".to_owned())),
                changed = changes.changed() => {
                    changed.map_err(|_| BindError::Wait("context canceled".to_owned()))?;
                }
            }
        }
    }

    /// Returns whether everything is bound. The error means that this can no longer happen.
    fn is_bound(&self, binder: &Binder, pod: &PodInfo, node_name: &str) -> Result<bool, String> {
        let catalog = &binder.catalog;
        let Some(node) = catalog.get::<Node>("", node_name) else {
            return Err(format!("failed to get node {node_name:?}: node {node_name:?} not found"));
        };
        if catalog.get::<Pod>(pod.namespace(), &pod.name).is_none_or(|p| *p.uid() != *pod.uid) {
            return Err(format!("pod does not exist any more: pod {:?} not found", &*pod.name));
        }
        for (written, claim) in &self.bindings {
            let name = written.name();
            let Some(volume) = catalog.get::<PersistentVolume>("", name) else {
                return Err(format!("failed to check binding: persistentvolume {name:?} not found"));
            };
            let Some(claim) = catalog.get::<PersistentVolumeClaim>(claim.namespace(), claim.name()) else {
                let name = claim.name();
                return Err(format!("failed to check binding: persistentvolumeclaim {name:?} not found"));
            };
            if is_older(&*volume, written) {
                return Ok(false);
            }
            check_affinity(&volume, &node)?;
            let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
            if reference.and_then(|r| r.uid.as_deref()).is_none_or(str::is_empty) {
                return Err(format!("ClaimRef got reset for pv {name:?}"));
            }
            if !is_fully_bound(&claim) {
                return Ok(false);
            }
        }
        for written in &self.provisions {
            if !self.is_provisioned(binder, written, &node)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_provisioned(
        &self,
        binder: &Binder,
        written: &PersistentVolumeClaim,
        node: &Node,
    ) -> Result<bool, String> {
        let (namespace, name) = (written.namespace(), written.name());
        let Some(claim) = binder.catalog.get::<PersistentVolumeClaim>(namespace, name) else {
            return Err(format!(
                "failed to check provisioning pvc: persistentvolumeclaim {name:?} not found"
            ));
        };
        if is_older(&*claim, written) {
            return Ok(false);
        }
        if claim.metadata.annotations.is_none() {
            return Err(format!("selectedNode annotation reset for PVC {name:?}"));
        }
        if selected_node(&claim) != Some(node.name()) {
            return Err(format!("provisioning failed for PVC {name:?}"));
        }
        if let Some(volume) = volume_name(&claim) {
            let Some(volume) = binder.catalog.get::<PersistentVolume>("", volume) else { return Ok(false) };
            check_affinity(&volume, node)?;
        }
        Ok(is_fully_bound(&claim))
    }
}

fn check_affinity(volume: &PersistentVolume, node: &Node) -> Result<(), String> {
    if reaches(volume, node) {
        return Ok(());
    }
    let (volume, node) = (volume.name(), node.name());
    Err(format!("pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms"))
}

fn is_older<K: Kind>(shown: &K, written: &K) -> bool {
    let number =
        |o: &K| o.meta().resource_version.as_deref().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    number(shown) < number(written)
}

/// Returns the volume with its claimRef set to the claim.
fn claim_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolume {
    let mut next = volume.clone();
    if !is_reserved_for(volume, claim) {
        let annotations = next.metadata.annotations.get_or_insert_default();
        annotations.entry(BOUND_BY_CONTROLLER.to_owned()).or_insert_with(|| "yes".to_owned());
    }
    let spec = next.spec.get_or_insert_default();
    let known = spec.claim_ref.as_ref();
    if known.and_then(|r| r.uid.as_deref()) != Some(claim.uid()) {
        spec.claim_ref = Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: claim.metadata.namespace.clone(),
            name: claim.metadata.name.clone(),
            uid: claim.metadata.uid.clone(),
            resource_version: claim.metadata.resource_version.clone(),
            ..ObjectReference::default()
        });
    }
    next
}
