//! DynamicResources: a node must have the devices that the pod's claims request. Devices are allocated when the node is
//! chosen, and claims are reserved for the pod before it is bound.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources`, KEP-4381.

mod allocator;
mod bind;
mod capacity;
mod constraint;
mod counters;
mod devices;
pub mod extended;
mod groups;
mod hints;
mod names;
mod pools;
mod ready;
mod request;
mod result;
mod search;
mod selector;
mod taken;
#[cfg(test)]
mod tests;
mod tracker;
#[cfg(test)]
mod upstream_tests;

use crate::config::go_duration::GoDuration;
use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice,
};
use knarr_api::kind::Kind;
use knarr_client::Client;
use serde::Deserialize;

use self::allocator::AllocateError;
use self::bind::{Reserved, delete, give_up};
use self::devices::Devices;
use self::extended::{Extended, OnNode};
use self::names::{allocation, is_reserved_for};
use self::request::{Ask, full_name, requests};
use crate::framework::points::{MAX_NODE_SCORE, NodeView};
use crate::framework::{
    Action, Attempt, Changed, ClusterEvent, CycleState, Descriptor, Filter, NoRoom, NodeFilter, NodeScore,
    Parts, Plugin, PodInfo, PostFilter, PreBind, PreEnqueue, PreFilter, Reserve, Resource, Room, Scope,
    Score, Shape, Status,
};
use crate::snapshot::{NodeIdx, NodeRow, Snapshot};

pub const NAME: &str = "DynamicResources";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 2,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        let filter_timeout = args.filter_timeout.unwrap_or(GoDuration::from_secs(10)).get();
        let binding_timeout = args.binding_timeout.unwrap_or(GoDuration::from_secs(600)).get();
        build.catalog.watch::<ResourceClaim>();
        build.catalog.watch::<ResourceSlice>();
        build.catalog.watch::<DeviceClass>();
        build.catalog.watch::<DeviceTaintRule>();
        let devices = Arc::new(Devices::new(build.catalog, filter_timeout, binding_timeout));
        let plugin = Arc::new(DynamicResources { devices });
        Ok(Parts {
            pre_enqueue: Some(plugin.clone()),
            filter: Some(plugin.clone()),
            post_filter: Some(plugin.clone()),
            pod_group_post_filter: Some(plugin.clone()),
            score: Some(plugin.clone()),
            reserve: Some(plugin.clone()),
            pre_bind: Some(plugin.clone()),
            ..Parts::of(plugin)
        })
    },
};

/// The maximum number of alternatives of a request.
const MAX_ALTERNATIVES: usize = 8;
const UNAVAILABLE: &str = "resourceclaim not available on the node";

#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    /// The maximum duration of the search on one node; zero means no limit.
    filter_timeout: Option<GoDuration>,
    /// The maximum time until devices are ready.
    binding_timeout: Option<GoDuration>,
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        let rules = [
            ("filterTimeout", self.filter_timeout, 0, "must be zero or positive"),
            ("bindingTimeout", self.binding_timeout, 1, "must be at least 1 second"),
        ];
        for (name, given, least, why) in rules {
            if let Some(given) = given.filter(|given| *given < GoDuration::from_secs(least)) {
                errors.push(Error::invalid(&path.child(name), given.to_string(), why));
            }
        }
        errors
    }
}

struct DynamicResources {
    devices: Arc<Devices>,
}

/// The filter for pods with claims.
struct HasDevices {
    devices: Arc<Devices>,
    claims: Vec<Arc<ResourceClaim>>,
    extended: Option<Arc<Extended>>,
    /// Results by node, each for one version of the node. Changes of the pods on the node do not affect them.
    known: Mutex<HashMap<String, (Arc<Node>, Status)>>,
    /// An error that ends the attempt.
    failed: Mutex<Option<Status>>,
}

impl HasDevices {
    fn new(devices: Arc<Devices>, claims: Vec<Arc<ResourceClaim>>, extended: Option<Arc<Extended>>) -> Self {
        Self { devices, claims, extended, known: Mutex::default(), failed: Mutex::default() }
    }

    fn judge(&self, row: &NodeRow) -> Status {
        let node = &*row.node;
        let mut unavailable = false;
        for claim in &self.claims {
            unavailable |= !self.devices.is_available(claim, node);
        }
        let claims = match with_extended(&self.claims, self.extended.as_deref(), row) {
            Ok((claims, _)) => claims,
            Err(status) => return status,
        };
        match self.devices.allocate(node, &claims) {
            Ok(Some(_)) if unavailable => Status::unresolvable(UNAVAILABLE),
            Ok(Some(_)) => Status::SUCCESS,
            Ok(None) => Status::unresolvable("cannot allocate all claims"),
            Err(AllocateError::OnNode(why)) => Status::unresolvable(why),
            Err(AllocateError::TimedOut) => {
                Status::error(format!("node {}: {}", node.name(), AllocateError::TimedOut))
            }
            Err(AllocateError::Wrong(why)) => Status::error(why),
        }
    }
}

impl NodeFilter for HasDevices {
    fn check(&self, view: &NodeView) -> Status {
        if let Some(failed) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            return failed.clone();
        }
        let node = &view.row.node;
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((judged, status)) = known.get(node.name())
                && Arc::ptr_eq(judged, node)
            {
                return status.clone();
            }
        }
        let status = self.judge(view.row);
        if !status.is_success() && !status.is_rejected() {
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.clone());
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(node.name().to_owned(), (Arc::clone(node), status.clone()));
        status
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(Self::new(Arc::clone(&self.devices), self.claims.clone(), self.extended.clone()))
    }
}

/// Returns the claims, plus one for the extended resources that devices of this node must provide.
fn with_extended(
    claims: &[Arc<ResourceClaim>],
    extended: Option<&Extended>,
    row: &NodeRow,
) -> Result<(Vec<Arc<ResourceClaim>>, Option<OnNode>), Status> {
    let special = extended.map(|e| e.on(row)).transpose()?.flatten();
    let mut all = claims.to_vec();
    all.extend(special.as_ref().map(|s| Arc::new(s.claim.clone())));
    Ok((all, special))
}

/// Scores earlier alternatives of a request higher.
struct Preferred {
    devices: Arc<Devices>,
    claims: Vec<Arc<ResourceClaim>>,
    extended: Option<Arc<Extended>>,
}

impl NodeScore for Preferred {
    fn score(&self, view: &NodeView) -> i64 {
        let Ok((claims, _)) = with_extended(&self.claims, self.extended.as_deref(), view.row) else {
            return 0;
        };
        let made = self.devices.allocate(&view.row.node, &claims).ok().flatten().unwrap_or_default();
        let mut made = made.iter();
        let all = self.claims.iter().map(|claim| (claim, allocation(claim).or_else(|| made.next())));
        all.filter_map(|(claim, allocation)| Some(rank(claim, allocation?))).sum()
    }

    fn normalize(&self, _: &Snapshot, _: &[NodeIdx], scores: &mut [i64]) {
        let best = scores.iter().copied().max().unwrap_or(0);
        if best > 0 {
            scores.iter_mut().for_each(|score| *score = *score * MAX_NODE_SCORE / best);
        }
    }
}

fn rank(claim: &ResourceClaim, allocation: &AllocationResult) -> i64 {
    let results = allocation.devices.as_ref().and_then(|d| d.results.as_deref()).unwrap_or_default();
    let taken: BTreeSet<&str> = results.iter().map(|r| r.request.as_str()).collect();
    let of_request = |request| {
        let asks = Ask::of(request).into_iter().enumerate().filter(|(_, ask)| ask.parent.is_some());
        let taken = asks.filter(|(_, ask)| taken.contains(ask.full_name().as_str()));
        taken.map(|(at, _)| MAX_ALTERNATIVES.saturating_sub(at) as i64).sum::<i64>()
    };
    requests(claim).iter().map(of_request).sum()
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            const NEW_OR_CHANGED: Action = Action::ADD.or(Action::UPDATE);
            &[
                ClusterEvent::new(
                    Resource::Node,
                    Action::ADD.or(Action::NODE_LABEL).or(Action::NODE_ALLOCATABLE),
                ),
                ClusterEvent::new(Resource::ResourceClaim, NEW_OR_CHANGED.or(Action::DELETE)),
                ClusterEvent::new(Resource::TargetPod, Action::POD_GENERATED_CLAIM),
                ClusterEvent::new(Resource::DeviceClass, NEW_OR_CHANGED),
                ClusterEvent::new(Resource::ResourceSlice, NEW_OR_CHANGED),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        match happened.resource {
            Resource::ResourceClaim => hints::claim_helps(&self.devices, pod, change),
            Resource::TargetPod => change.new::<Pod>().is_none_or(|pod| self.devices.claims_of(pod).is_ok()),
            _ => true,
        }
    }
}

impl PreEnqueue for DynamicResources {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status {
        match self.devices.claims_of(pod.pod()) {
            Ok(_) => Status::SUCCESS,
            Err(why) => Status::unresolvable(why),
        }
    }
}

impl DynamicResources {
    /// Returns why these claims fit on no node at present.
    fn turned_down(&self, claims: &[Arc<ResourceClaim>]) -> Option<Status> {
        for claim in claims.iter().filter(|c| allocation(c).is_none()) {
            let whole = full_name(claim);
            if self.devices.tracker.is_in_flight(claim.uid()) {
                let why = format!("resource claim {whole} is in the process of being allocated");
                return Some(Status::unresolvable(why));
            }
            for request in requests(claim) {
                let asks = Ask::of(request);
                if asks.is_empty() {
                    let name = &request.name;
                    let why = format!("resource claim {whole}, request {name}: unknown request type");
                    return Some(Status::unresolvable(why));
                }
                for ask in asks {
                    let (name, class) = (ask.full_name(), ask.class_name);
                    if class.is_empty() {
                        return Some(Status::error(format!("request {name}: unsupported request type")));
                    }
                    if self.devices.catalog.get::<DeviceClass>("", class).is_none() {
                        let why = format!("request {name}: device class {class} does not exist");
                        return Some(Status::unresolvable(why));
                    }
                }
            }
        }
        None
    }
}

impl Filter for DynamicResources {
    /// The search for devices is expensive: with cluster scope it only runs for nodes that pass all other filters.
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        self.devices.version(shape)
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        let extended = self.devices.extended(shape).map(Arc::new);
        let claims = match self.devices.claims_of(&shape.pod) {
            Ok(claims) if claims.is_empty() && extended.is_none() => return PreFilter::Skip,
            Ok(claims) => claims,
            Err(why) => return PreFilter::Reject(Status::unresolvable(why)),
        };
        match self.turned_down(&claims) {
            Some(status) => PreFilter::Reject(status),
            None => PreFilter::check(HasDevices::new(Arc::clone(&self.devices), claims, extended)),
        }
    }
}

impl PostFilter for DynamicResources {
    /// Finds no room, but deallocates an unused claim that keeps its pod from being scheduled.
    fn post_filter(&self, attempt: &Attempt) -> Result<Vec<Room>, NoRoom> {
        let nothing = NoRoom { words: String::new(), withdraw: false };
        let by_us = attempt.diagnosis.rejected().filter(|(_, verdict)| verdict.plugin == NAME);
        let nodes: Vec<_> = by_us.map(|(at, _)| &*attempt.cluster.row(at).node).collect();
        if !self.give_back(attempt.pod, &nodes) {
            return Err(nothing);
        }
        Err(NoRoom { words: "deallocation of ResourceClaim completed".to_owned(), withdraw: false })
    }
}

impl DynamicResources {
    /// Deallocates a claim of the waiting pod that is not available on one of these nodes and has no other users.
    /// Returns false when there is none.
    fn give_back(&self, pod: &PodInfo, nodes: &[&Node]) -> bool {
        let Ok(claims) = self.devices.claims_of(pod.pod()) else { return false };
        let unused = claims.into_iter().find(|claim| {
            let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
            allocation(claim).is_some()
                && reserved.iter().all(|r| r.uid == pod.uid())
                && reserved.len() <= 1
                && nodes.iter().any(|node| !self.devices.is_available(claim, node))
        });
        let Some(claim) = unused else { return false };
        if let Some(client) = self.devices.catalog.client() {
            self.devices.background.run(bind::deallocate(client.clone(), claim));
        }
        true
    }
}

impl Score for DynamicResources {
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        self.devices.version(shape)
    }

    fn pre_score(&self, _: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let claims = self.devices.claims_of(&shape.pod).ok()?;
        let chooses = |claim: &Arc<ResourceClaim>| {
            requests(claim).iter().any(|r| r.first_available.as_ref().is_some_and(|s| !s.is_empty()))
        };
        let devices = Arc::clone(&self.devices);
        let extended = self.devices.extended(shape).map(Arc::new);
        let chosen = claims.iter().any(chooses);
        chosen.then(|| Box::new(Preferred { devices, claims, extended }) as Box<dyn NodeScore>)
    }
}

impl Reserve for DynamicResources {
    fn reserve(&self, state: &mut CycleState, cluster: &Snapshot, pod: &PodInfo, node: &str) -> Status {
        let extended = self.devices.extended(&pod.shape);
        let claims = match self.devices.claims_of(pod.pod()) {
            Ok(claims) if claims.is_empty() && extended.is_none() => return Status::SUCCESS,
            Ok(claims) => claims,
            Err(why) => return Status::unresolvable(why),
        };
        if extended.is_some()
            && let Some(stale) = self.devices.left_over(pod)
        {
            if let Some(client) = self.devices.catalog.client() {
                self.devices.background.run(delete(client.clone(), stale));
            }
            return Status::unresolvable("cannot schedule extended resource claim");
        }
        let Some(row) = cluster.named(node) else { return Status::error(format!("node {node:?} not found")) };
        let (claims, special) = match with_extended(&claims, extended.as_ref(), row) {
            Ok((claims, special)) => self.devices.own(claims, special, pod),
            Err(status) => return status,
        };
        if claims.is_empty() {
            return Status::SUCCESS;
        }
        let made = match self.devices.allocate(&row.node, &claims) {
            Ok(Some(made)) => made,
            Ok(None) => return Status::error("claim allocation not found for node"),
            Err(why) => return Status::error(why.to_string()),
        };
        let mut made = made.into_iter();
        let mut reserved = Vec::new();
        for claim in claims {
            let allocation = if allocation(&claim).is_none() { made.next() } else { None };
            if let Some(allocation) = &allocation {
                let mut next = (*claim).clone();
                next.status.get_or_insert_default().allocation = Some(allocation.clone());
                self.devices.tracker.begin(Arc::new(next));
            }
            reserved.push((claim, allocation));
        }
        state.write(Reserved::new(reserved, special));
        Status::SUCCESS
    }

    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, _: &str) {
        let Some(reserved) = state.read::<Reserved>() else { return };
        if let Some(special) = reserved.special() {
            self.devices.tracker.cancel(&special.temporary_uid);
        }
        for (claim, allocated) in reserved.claims() {
            if allocated.is_some() {
                self.devices.tracker.cancel(claim.uid());
            }
            if reserved.special().is_some() && extended::is_of(&claim, pod.uid()) {
                let written = claim.name() != extended::IN_MEMORY;
                if let Some(client) = self.devices.catalog.client().filter(|_| written) {
                    self.devices.background.run(delete(client.clone(), claim));
                }
                continue;
            }
            if allocation(&claim).is_some()
                && is_reserved_for(&claim, pod.uid())
                && let Some(client) = self.devices.catalog.client()
            {
                self.devices.background.run(give_up(client.clone(), claim, pod.uid.to_string()));
            }
        }
    }
}

#[async_trait]
impl PreBind for DynamicResources {
    fn pre_flight(&self, state: &CycleState, _: &PodInfo, _: &str) -> Status {
        if state.read::<Reserved>().is_some() { Status::SUCCESS } else { Status::SKIP }
    }

    async fn pre_bind(&self, client: &Client, state: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let Some(reserved) = state.read::<Reserved>() else { return Status::SUCCESS };
        if let Err(error) = reserved.write(client, &self.devices, pod).await {
            return Status::error(error.to_string());
        }
        match reserved.wait(client, &self.devices, pod, node).await {
            Ok(()) => Status::SUCCESS,
            Err(error) => Status::error(error.to_string()),
        }
    }
}
