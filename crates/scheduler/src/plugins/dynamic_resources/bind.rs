//! Writes allocations and reservations into claims before a pod is bound, and removes them again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Time};
use knarr_api::kind::Kind;
use knarr_client::events::EventType;
use knarr_client::{Client, Error, Patch};
use serde_json::json;
use thiserror::Error as ThisError;

use super::devices::Devices;
use super::extended::{self, IN_MEMORY, Mapping};
use super::names::{allocation, is_reserved_for};
use super::ready::{has_conditions, is_late, is_ready};
use super::request::full_name;
use super::taken::results;
use crate::framework::PodInfo;
use crate::metrics::{Measured, Metric};

/// The finalizer that keeps an allocated claim from being deleted.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The prefix of timeout errors, which metrics count separately.
const TIMEOUT: &str = "device binding timeout";
const FAILED: &str = "device binding failed";
/// The number of attempts to write a claim in case of conflicts.
const TRIES: usize = 5;

/// A pod's claims, each with the allocation to write, if any.
pub type Claims = Vec<(Arc<ResourceClaim>, Option<AllocationResult>)>;

/// The maximum time until the informer shows a created claim.
const SHOWN_WITHIN: Duration = Duration::from_secs(120);

/// Data about the claim for extended resources, which is the last one in the list.
#[derive(Debug, Clone)]
pub struct Special {
    /// The claim's uid until it is created.
    pub temporary_uid: String,
    pub mappings: Vec<Mapping>,
}

/// The claims reserved for a pod. Each claim is replaced by its new version when it is written.
pub struct Reserved {
    claims: Mutex<Claims>,
    special: Option<Special>,
}

/// Why a pod's claims could not be written.
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
    pub fn new(claims: Claims, special: Option<Special>) -> Self {
        Self { claims: Mutex::new(claims), special }
    }

    pub fn special(&self) -> Option<&Special> {
        self.special.as_ref()
    }

    pub fn claims(&self) -> Claims {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, at: usize, claim: Arc<ResourceClaim>) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = claims.get_mut(at) {
            of.0 = claim;
        }
    }

    /// Writes missing allocations, finalizers and reservations.
    pub async fn write(&self, client: &Client, devices: &Devices, pod: &PodInfo) -> Result<(), BindError> {
        let tracker = &devices.tracker;
        for (at, (claim, allocated)) in self.claims().into_iter().enumerate() {
            if let Some(special) = self.special.as_ref().filter(|_| claim.name() == IN_MEMORY) {
                self.create(client, devices, pod, (at, claim, allocated), special).await?;
                continue;
            }
            if is_reserved_for(&claim, pod.uid()) {
                continue;
            }
            let written = Arc::new(write(client, claim, allocated.as_ref(), pod).await?);
            tracker.wrote(Arc::clone(&written));
            self.replace(at, written);
        }
        Ok(())
    }

    /// Creates the claim for extended resources with its allocation, and records it in the pod's status.
    async fn create(
        &self,
        client: &Client,
        devices: &Devices,
        pod: &PodInfo,
        (at, claim, allocated): (usize, Arc<ResourceClaim>, Option<AllocationResult>),
        special: &Special,
    ) -> Result<(), BindError> {
        let created = client.create(&extended::to_create(&claim)).await;
        knarr_client::metrics::claim_created(created.is_ok(), false);
        let created = created.map_err(|cause| {
            let what = format!("create claim for extended resources {}/", claim.namespace());
            BindError::Write { what, cause }
        })?;
        let created = Arc::new(created);
        self.replace(at, Arc::clone(&created));
        let written = Arc::new(write(client, created, allocated.as_ref(), pod).await?);
        self.replace(at, Arc::clone(&written));
        // Until the informer shows the claim, its devices count through the in-flight allocation.
        shown(client, devices, &written).await;
        let mappings = match devices.catalog.get::<Pod>(pod.namespace(), &pod.name) {
            Some(whole) => extended::named(&special.mappings, &whole),
            None => Vec::new(),
        };
        devices.tracker.wrote(Arc::clone(&written));
        devices.tracker.cancel(&special.temporary_uid);
        let status = json!({"resourceClaimName": written.name(), "requestMappings": mappings});
        let patch = Patch::Strategic(json!({"status": {"extendedResourceClaimStatus": status}}));
        let sent = client.patch::<Pod>(pod.namespace(), &pod.name, Some("status"), &patch).await;
        sent.map(drop).map_err(|cause| {
            let what = format!("update pod {}/{} ExtendedResourceClaimStatus", pod.namespace(), pod.name);
            BindError::Write { what, cause }
        })
    }

    /// Waits until all devices with binding conditions are ready.
    pub async fn wait(
        &self,
        client: &Client,
        devices: &Devices,
        pod: &PodInfo,
        node: &str,
    ) -> Result<(), BindError> {
        if !self.claims().iter().any(|(claim, _)| has_conditions(claim)) {
            return Ok(());
        }
        let measured = devices.catalog.shared::<Measured>();
        let Some((metrics, recorder)) = measured.get() else { return self.prepared(client, devices).await };
        let text = format!("waiting for binding conditions for device on node {node}");
        let recorder = recorder.as_component(pod.scheduler_name());
        recorder.event_about(pod.reference(), EventType::Normal, "BindingConditionsPending", text);
        let begun = metrics.now();
        let done = self.prepared(client, devices).await;
        let status = match &done {
            Ok(()) => "success",
            Err(BindError::NotReady(why)) if why.starts_with(TIMEOUT) => "timeout",
            Err(BindError::NotReady(why)) if why.starts_with(FAILED) => "failure",
            Err(_) => "error",
        };
        for (claim, _) in self.claims() {
            for result in results(&claim) {
                let labels = [result.driver.as_str(), pod.scheduler_name(), status];
                metrics.since(Metric::BindingConditionsWait, &labels, begun);
                if result.binding_conditions.as_ref().is_some_and(|c| !c.is_empty()) {
                    metrics.add(Metric::BindingConditions, &labels, 1.0);
                }
            }
        }
        done
    }

    async fn prepared(&self, client: &Client, devices: &Devices) -> Result<(), BindError> {
        let mut changes = devices.catalog.changes();
        let mut too_late = std::pin::pin!(client.clock().sleep(devices.binding_timeout));
        let timeout = || BindError::NotReady("device binding timeout: context deadline exceeded".to_owned());
        loop {
            changes.mark_unchanged();
            if self.are_ready(client, devices)? {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = &mut too_late => return Err(timeout()),
                () = devices.background.ending() => {
                    return Err(BindError::NotReady("context canceled".to_owned()));
                }
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

/// Writes one claim. After a conflict it starts again from the claim's newest version.
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

/// Waits until the informer shows a created claim, at most `SHOWN_WITHIN`.
async fn shown(client: &Client, devices: &Devices, claim: &ResourceClaim) {
    let mut changes = devices.catalog.changes();
    let mut too_late = std::pin::pin!(client.clock().sleep(SHOWN_WITHIN));
    loop {
        changes.mark_unchanged();
        if devices.catalog.get::<ResourceClaim>(claim.namespace(), claim.name()).is_some() {
            return;
        }
        tokio::select! {
            () = &mut too_late => return,
            () = devices.background.ending() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Deletes a claim for extended resources whose pod was not bound.
pub async fn delete(client: Client, claim: Arc<ResourceClaim>) {
    let (namespace, name) = (claim.namespace(), claim.name());
    let mut next = (*claim).clone();
    let mut tries = 1;
    let freed = loop {
        next.metadata.finalizers.iter_mut().for_each(|list| list.retain(|f| f != FINALIZER));
        match client.update(&next).await {
            Err(error) if error.is_conflict() && tries < TRIES => {}
            done => break done.map(drop),
        }
        tries += 1;
        match client.get::<ResourceClaim>(namespace, name).await {
            Ok(newest) => next = newest,
            Err(error) => break Err(error),
        }
    };
    let deleted = match freed {
        Ok(()) => client.delete::<ResourceClaim>(namespace, name, &DeleteOptions::default()).await.map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = deleted
        && !error.is_not_found()
    {
        tracing::warn!(claim = %full_name(&claim), %error, "failed to delete the claim");
    }
}

/// Removes the pod's reservation from the claim.
pub async fn give_up(client: Client, claim: Arc<ResourceClaim>, pod_uid: String) {
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": claim.uid()},
        "status": {"reservedFor": [{"$patch": "delete", "uid": pod_uid}]}}));
    let sent = client.patch::<ResourceClaim>(claim.namespace(), claim.name(), Some("status"), &patch).await;
    if let Err(error) = sent
        && !error.is_not_found()
    {
        tracing::warn!(claim = %full_name(&claim), %error, "failed to remove the reservation from the claim");
    }
}

/// Removes the claim's allocation, so that it can get other devices.
pub async fn deallocate(client: Client, claim: Arc<ResourceClaim>) {
    let mut next = (*claim).clone();
    next.status = None;
    if let Err(error) = client.update_status(&next).await
        && !error.is_not_found()
    {
        tracing::warn!(claim = %full_name(&claim), %error, "failed to deallocate the claim");
    }
}
