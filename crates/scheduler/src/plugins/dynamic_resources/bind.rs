//! Writing allocations and reservations into claims before a pod is bound, and taking them back.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;
use knarr_client::{Client, Error, Patch};
use serde_json::json;
use thiserror::Error as ThisError;

use super::devices::Devices;
use super::names::{allocation, is_reserved_for};
use super::ready::{has_conditions, is_late, is_ready};
use super::request::full_name;
use super::tracker::Tracker;
use crate::framework::PodInfo;

/// Keeps a claim from going away while it has devices.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Tries to write a claim that others write as well.
const TRIES: usize = 5;

/// A pod's claims, each with the allocation that it is to get.
pub type Claims = Vec<(Arc<ResourceClaim>, Option<AllocationResult>)>;

/// What was reserved for a pod; the claims are replaced as they are written.
pub struct Reserved(Mutex<Claims>);

#[derive(Debug, ThisError)]
pub enum BindError {
    #[error("claim {0} got deleted in the meantime")]
    Deleted(String),
    #[error("claim {0} got allocated elsewhere in the meantime")]
    Allocated(String),
    #[error("claim {0} got deallocated elsewhere in the meantime")]
    Deallocated(String),
    #[error("{what}: {cause}")]
    Write { what: String, cause: Error },
    #[error("{0}")]
    NotReady(String),
}

impl Reserved {
    pub fn new(claims: Claims) -> Self {
        Self(Mutex::new(claims))
    }

    pub fn claims(&self) -> Claims {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, at: usize, claim: Arc<ResourceClaim>) {
        let mut claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = claims.get_mut(at) {
            of.0 = claim;
        }
    }

    /// Writes what is missing: allocations, finalizers, reservations.
    pub async fn write(&self, client: &Client, tracker: &Tracker, pod: &PodInfo) -> Result<(), BindError> {
        for (at, (claim, allocated)) in self.claims().into_iter().enumerate() {
            if is_reserved_for(&claim, pod.uid()) {
                continue;
            }
            let written = Arc::new(write(client, claim, allocated.as_ref(), pod).await?);
            tracker.wrote(Arc::clone(&written));
            self.replace(at, written);
        }
        Ok(())
    }

    /// Waits until the devices are prepared that have to be.
    pub async fn wait(&self, client: &Client, devices: &Devices) -> Result<(), BindError> {
        if !self.claims().iter().any(|(claim, _)| has_conditions(claim)) {
            return Ok(());
        }
        let mut changes = devices.catalog.changes();
        let mut too_late = std::pin::pin!(client.clock().sleep(devices.binding_timeout));
        let timeout = || BindError::NotReady("device binding timeout: context deadline exceeded".to_owned());
        loop {
            changes.mark_unchanged();
            if self.are_ready(client, devices)? {
                return Ok(());
            }
            tokio::select! {
                () = &mut too_late => return Err(timeout()),
                changed = changes.changed() => changed.map_err(|_| timeout())?,
            }
        }
    }

    fn are_ready(&self, client: &Client, devices: &Devices) -> Result<bool, BindError> {
        for (at, (claim, _)) in self.claims().into_iter().enumerate() {
            let Some(shown) = devices.tracker.get(&devices.catalog, claim.namespace(), claim.name()) else {
                let why = format!("could not find ResourceClaim {:?}", full_name(&claim));
                return Err(BindError::NotReady(why));
            };
            self.replace(at, Arc::clone(&shown));
            if is_ready(&shown).map_err(BindError::NotReady)? {
                continue;
            }
            if is_late(&shown, client.clock().now(), devices.binding_timeout) {
                let why = format!("device binding timeout: claim={}", shown.name());
                return Err(BindError::NotReady(why));
            }
            return Ok(false);
        }
        Ok(true)
    }
}

/// Writes one claim, starting from its newest state where somebody else has written it.
async fn write(
    client: &Client,
    claim: Arc<ResourceClaim>,
    allocated: Option<&AllocationResult>,
    pod: &PodInfo,
) -> Result<ResourceClaim, BindError> {
    let whole = full_name(&claim);
    let mut next = (*claim).clone();
    let mut tries = 1;
    loop {
        match write_once(client, next, allocated, pod).await {
            Err(BindError::Write { cause, .. }) if cause.is_conflict() && tries < TRIES => {}
            done => return done,
        }
        tries += 1;
        next = client.get::<ResourceClaim>(claim.namespace(), claim.name()).await.map_err(|cause| {
            BindError::Write { what: format!("get updated claim {whole} after conflict"), cause }
        })?;
    }
}

async fn write_once(
    client: &Client,
    mut claim: ResourceClaim,
    allocated: Option<&AllocationResult>,
    pod: &PodInfo,
) -> Result<ResourceClaim, BindError> {
    let whole = full_name(&claim);
    let failed = |what: &str| {
        let what = format!("{what} claim {whole}");
        move |cause| BindError::Write { what, cause }
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(BindError::Deleted(whole));
    }
    if allocated.is_some() {
        if allocation(&claim).is_some() {
            return Err(BindError::Allocated(whole));
        }
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            claim = client.update(&claim).await.map_err(failed("add finalizer to"))?;
        }
    }
    let status = claim.status.get_or_insert_default();
    if let Some(allocated) = allocated {
        status.allocation = Some(allocated.clone());
    }
    let Some(allocation) = &mut status.allocation else { return Err(BindError::Deallocated(whole)) };
    allocation.allocation_timestamp.get_or_insert_with(|| Time(client.clock().now()));
    status.reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
    });
    let what = if allocated.is_some() { "add allocation and reservation to" } else { "add reservation to" };
    client.update_status(&claim).await.map_err(failed(what))
}

/// Takes a pod's reservation back.
pub async fn give_up(client: Client, claim: Arc<ResourceClaim>, pod_uid: String) {
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": claim.uid()},
        "status": {"reservedFor": [{"$patch": "delete", "uid": pod_uid}]}}));
    let sent = client.patch::<ResourceClaim>(claim.namespace(), claim.name(), Some("status"), &patch).await;
    if let Err(error) = sent
        && !error.is_not_found()
    {
        tracing::warn!(claim = %full_name(&claim), %error, "claim still reserved");
    }
}

/// Gives the claim's devices back, so that it can get others.
pub async fn deallocate(client: Client, claim: Arc<ResourceClaim>) {
    let mut next = (*claim).clone();
    next.status = None;
    if let Err(error) = client.update_status(&next).await
        && !error.is_not_found()
    {
        tracing::warn!(claim = %full_name(&claim), %error, "claim not deallocated");
    }
}
