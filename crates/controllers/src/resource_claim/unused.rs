//! Claims that pods no longer need: removes reservations, deallocates devices, and deletes claims made for a pod.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, OwnerReference};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::Result;

use super::{FINALIZER, Work, pods};

/// Returns the owner reference to the pod that the claim was created for.
pub fn owner(claim: &ResourceClaim) -> Option<&OwnerReference> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.find(|o| o.controller == Some(true) && o.api_version == "v1" && o.kind == "Pod")
}

fn has_finalizer(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|s| s.allocation.is_some())
}

fn deallocate(claim: &mut ResourceClaim) {
    if let Some(status) = &mut claim.status {
        status.allocation = None;
    }
}

impl Work {
    pub(super) async fn claim(&self, key: &ObjectKey) -> Result<()> {
        let Some(claim) = self.claims.get_key(key) else { return Ok(()) };
        let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.clone()).unwrap_or_default();
        let mut remaining = Vec::with_capacity(reserved.len());
        for consumer in &reserved {
            if self.needs(&claim, consumer).await? {
                remaining.push(consumer.clone());
            }
        }
        let none = remaining.is_empty();
        if remaining.len() < reserved.len() {
            let mut next = (*claim).clone();
            if let Some(status) = &mut next.status {
                status.reserved_for = (!none).then_some(remaining);
            }
            // Deallocation ensures that the next consumer is not bound to the node of the last.
            if none && has_finalizer(&claim) {
                deallocate(&mut next);
            }
            let next = self.cx.client.update_status(&next).await?;
            if has_finalizer(&next) && !is_allocated(&next) {
                self.remove_finalizer(next).await?;
            }
        } else if none && has_finalizer(&claim) && claim.metadata.deletion_timestamp.is_some() {
            let mut next = (*claim).clone();
            if is_allocated(&next) {
                deallocate(&mut next);
                next = self.cx.client.update_status(&next).await?;
            }
            self.remove_finalizer(next).await?;
        }
        if none {
            self.delete_unused(&claim).await?;
        }
        Ok(())
    }

    async fn remove_finalizer(&self, mut claim: ResourceClaim) -> Result<()> {
        claim.metadata.finalizers.iter_mut().for_each(|list| list.retain(|f| f != FINALIZER));
        self.cx.client.update(&claim).await.map(drop)
    }

    /// Returns whether the consumer still needs the claim. Consumers that are not pods always do.
    async fn needs(&self, claim: &ResourceClaim, consumer: &ResourceClaimConsumerReference) -> Result<bool> {
        let of_core = consumer.api_group.as_deref().unwrap_or_default().is_empty();
        if !of_core || consumer.resource != "pods" {
            return Ok(true);
        }
        if let Some(pod) = self.pods.get(claim.namespace(), &consumer.name) {
            return Ok(pod.uid() == consumer.uid && !pods::is_done(&pod));
        }
        // The informer may not show a pod that is being scheduled, so the API server is asked before the reservation
        // is removed.
        match self.cx.client.get::<Pod>(claim.namespace(), &consumer.name).await {
            Ok(pod) => Ok(pod.uid() == consumer.uid),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a claim created for a pod that will not use it. If the pod is gone, the garbage collector deletes the
    /// claim.
    async fn delete_unused(&self, claim: &ResourceClaim) -> Result<()> {
        let Some(owner) = owner(claim) else { return Ok(()) };
        let Some(pod) = self.pods.get(claim.namespace(), &owner.name) else { return Ok(()) };
        if claim.metadata.deletion_timestamp.is_some() || pod.uid() == owner.uid && !pods::is_done(&pod) {
            return Ok(());
        }
        let (namespace, name) = (claim.namespace(), claim.name());
        match self.cx.client.delete::<ResourceClaim>(namespace, name, &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}
