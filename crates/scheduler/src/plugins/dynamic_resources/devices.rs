//! The state shared by the plugin's extension points: slices, classes and claims with their allocations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice,
};
use knarr_api::devices::resourceclaim::foreign;
use knarr_api::kind::Kind;

use super::allocator::{AllocateError, Cluster, Patience, Tools};
use super::bind::Special;
use super::extended::{self, Extended, OnNode, ResourceClasses};
use super::names::{allocation, name_of, pod_claims};
use super::pools::selects;
use super::ready::{is_late, is_ready};
use super::selector::Programs;
use super::tracker::Tracker;
use crate::background::Background;
use crate::framework::{Catalog, PodInfo, Shape};

/// The shared state of the plugin.
pub struct Devices {
    pub catalog: Arc<Catalog>,
    pub tracker: Arc<Tracker>,
    /// Runs the writes other than PreBind.
    pub background: Arc<Background>,
    pub binding_timeout: Duration,
    filter_timeout: Duration,
    programs: Programs,
    /// The last cluster state, with the version it was made from.
    cluster: Mutex<Option<(u64, Arc<Cluster>)>>,
    shares: AtomicU64,
    /// The device classes that provide extended resources.
    classes: Arc<ResourceClasses>,
}

impl Devices {
    pub fn new(catalog: &Arc<Catalog>, filter_timeout: Duration, binding_timeout: Duration) -> Self {
        Self {
            catalog: Arc::clone(catalog),
            tracker: catalog.shared::<Tracker>(),
            background: catalog.shared::<Background>(),
            binding_timeout,
            filter_timeout,
            programs: Programs::default(),
            cluster: Mutex::default(),
            shares: AtomicU64::new(0),
            classes: catalog.shared::<ResourceClasses>(),
        }
    }

    /// Returns the pod's claims. The error says which claim the pod must wait for.
    pub fn claims_of(&self, pod: &Pod) -> Result<Vec<Arc<ResourceClaim>>, String> {
        let mut claims = Vec::new();
        for of in pod_claims(pod) {
            let Some(named) = name_of(pod, of)? else { continue };
            let (namespace, name) = (pod.namespace(), &named.name);
            let Some(claim) = self.tracker.get(&self.catalog, namespace, name) else {
                return Err(format!("could not find ResourceClaim \"{namespace}/{name}\""));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim {name:?} is being deleted"));
            }
            if named.own
                && let Some(why) = foreign(pod, &claim)
            {
                return Err(why);
            }
            claims.push(claim);
        }
        Ok(claims)
    }

    /// Returns the extended resources that the shape requests, if a class provides at least one of them.
    pub fn extended(&self, shape: &Shape) -> Option<Extended> {
        Extended::of(&self.classes, &self.catalog, shape)
    }

    /// Returns the claim for extended resources that an earlier failed binding of the pod has left behind.
    pub fn left_over(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
        let claims = self.catalog.list::<ResourceClaim>(Some(pod.namespace()));
        claims.into_iter().find(|claim| extended::is_of(claim, pod.uid()))
    }

    /// Makes the last of these, the claim for extended resources, the pod's own.
    pub fn own(
        &self,
        mut claims: Vec<Arc<ResourceClaim>>,
        special: Option<OnNode>,
        pod: &PodInfo,
    ) -> (Vec<Arc<ResourceClaim>>, Option<Special>) {
        let Some(OnNode { claim, mappings }) = special else { return (claims, None) };
        let temporary_uid = self.share_id();
        claims.pop();
        claims.push(Arc::new(extended::of_pod(claim, pod, temporary_uid.clone())));
        (claims, Some(Special { temporary_uid, mappings }))
    }

    fn state(&self) -> u64 {
        self.catalog.version::<ResourceClaim>()
            + self.catalog.version::<ResourceSlice>()
            + self.catalog.version::<DeviceClass>()
            + self.catalog.version::<DeviceTaintRule>()
            + self.tracker.version()
    }

    /// The version for [`Filter::version`](crate::framework::Filter::version). Constant for pods without claims, so
    /// that their cached work stays valid.
    pub fn version(&self, shape: &Shape) -> u64 {
        if pod_claims(&shape.pod).is_empty() {
            let mut scalar = shape.footprint.requests.scalar.keys();
            if !scalar.any(|name| extended::may_be_devices(name)) {
                return 0;
            }
            if self.extended(shape).is_none() {
                // The high bit distinguishes these numbers from those of pods with devices.
                return self.catalog.version::<DeviceClass>() | 1 << 63;
            }
        }
        // Claims become late by time, without any event.
        let late =
            self.claims_of(&shape.pod).map_or(0, |claims| claims.iter().filter(|c| self.is_late(c)).count());
        self.state() + late as u64
    }

    /// Returns whether the claim's devices should have been ready by now.
    pub fn is_late(&self, claim: &ResourceClaim) -> bool {
        let now = self.catalog.client().map(|client| client.clock().now());
        now.is_some_and(|now| is_late(claim, now, self.binding_timeout))
    }

    /// Returns whether the claim's allocation, if it has one, can be used on the node.
    pub fn is_available(&self, claim: &ResourceClaim, node: &Node) -> bool {
        let Some(allocation) = allocation(claim) else { return true };
        allocation.node_selector.as_ref().is_none_or(|s| selects(s, node))
            && match is_ready(claim) {
                Ok(ready) => ready || !self.is_late(claim),
                Err(_) => false,
            }
    }

    fn cluster(&self) -> Arc<Cluster> {
        let state = self.state();
        let mut known = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, cluster)) = &*known
            && *of == state
        {
            return Arc::clone(cluster);
        }
        let slices =
            tainted(self.catalog.list::<ResourceSlice>(None), &self.catalog.list::<DeviceTaintRule>(None));
        let classes = self.catalog.list::<DeviceClass>(None);
        let cluster = Arc::new(Cluster::new(slices, classes, self.tracker.taken(&self.catalog)));
        *known = Some((state, Arc::clone(&cluster)));
        cluster
    }

    /// Returns an allocation for each unallocated claim, or `None` when the node's devices are not sufficient.
    pub fn allocate(
        &self,
        node: &Node,
        claims: &[Arc<ResourceClaim>],
    ) -> Result<Option<Vec<AllocationResult>>, AllocateError> {
        let wanting: Vec<&ResourceClaim> =
            claims.iter().filter(|c| allocation(c).is_none()).map(|c| &**c).collect();
        if wanting.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let clock = self.catalog.client().map(|client| Arc::clone(client.clock()));
        let begun = clock.as_ref().map_or(Duration::ZERO, |c| c.monotonic());
        let limit = self.filter_timeout;
        let over = || {
            clock.as_ref().is_some_and(|c| !limit.is_zero() && c.monotonic().saturating_sub(begun) > limit)
        };
        let patience = Patience::until(&over);
        let share_id = || self.share_id();
        let tools = Tools { programs: &self.programs, patience: &patience, share_id: &share_id };
        self.cluster().allocate(node, &wanting, tools)
    }

    /// Returns a new share ID, in the form of a random UUID.
    fn share_id(&self) -> String {
        let n = self.shares.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::new();
        let (high, low) = (rng.u64(..) ^ n, rng.u64(..));
        let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
        let (d, e) = (low >> 48 & 0x3fff | 0x8000, low & 0xffff_ffff_ffff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{e:012x}")
    }
}

/// Returns the slices with the taints that DeviceTaintRules add to their devices.
fn tainted(slices: Vec<Arc<ResourceSlice>>, rules: &[Arc<DeviceTaintRule>]) -> Vec<Arc<ResourceSlice>> {
    let with_rules = |mut slice: Arc<ResourceSlice>| {
        for rule in rules {
            let selector = rule.spec.device_selector.as_ref();
            let is_about = |wanted: Option<&String>, has: &str| wanted.is_none_or(|w| w == has);
            if !is_about(selector.and_then(|s| s.driver.as_ref()), &slice.spec.driver)
                || !is_about(selector.and_then(|s| s.pool.as_ref()), &slice.spec.pool.name)
            {
                continue;
            }
            let device = selector.and_then(|s| s.device.as_ref());
            let all = slice.spec.devices.as_deref().unwrap_or_default();
            if !all.iter().any(|d| is_about(device, &d.name)) {
                continue;
            }
            let own = Arc::make_mut(&mut slice).spec.devices.iter_mut().flatten();
            for found in own.filter(|d| is_about(device, &d.name)) {
                found.taints.get_or_insert_default().push(rule.spec.taint.clone());
            }
        }
        slice
    };
    slices.into_iter().map(with_rules).collect()
}
