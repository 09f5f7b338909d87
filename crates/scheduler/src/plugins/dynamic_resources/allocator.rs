//! Allocates devices to claims on one node with an exhaustive search that takes the first complete solution. A pure
//! function of slices, classes, claims and existing allocations, with a limit on its work.
//!
//! Source: `k8s.io/dynamic-resource-allocation/structured`, KEP-4381, KEP-4816, KEP-4815, KEP-5055, KEP-5075.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use thiserror::Error;

use super::pools::gather;
use super::request::{ALL, Ask, requests};
use super::result::results;
use super::search::Search;
use super::selector::Programs;
use super::taken::Taken;

/// The maximum number of devices in one claim.
pub const MAX_RESULTS: usize = 32;
/// The maximum number of search steps.
const MAX_STEPS: u64 = 10_000_000;
/// The recursion depth above which a search runs on a thread of its own, followed by the maximum depth.
const FRAMES_AT_HAND: usize = 100;
const MAX_FRAMES: usize = 20_000;
const FRAME_BYTES: usize = 8 << 10;

/// Why claims cannot be allocated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// The search exceeded its limit of time or steps.
    #[error("timed out trying to allocate devices")]
    TimedOut,
    /// An error for this node only.
    #[error("{0}")]
    OnNode(String),
    /// The claim, its class or a device is invalid: the error is the same for every node.
    #[error("{0}")]
    Wrong(String),
}

/// The slices and classes to allocate from, with the existing allocations.
pub struct Cluster {
    /// Slices of single nodes, by node name.
    of_node: HashMap<String, Vec<Arc<ResourceSlice>>>,
    for_many: Vec<Arc<ResourceSlice>>,
    classes: HashMap<String, Arc<DeviceClass>>,
    pub taken: Taken,
}

/// The limit on the duration of a search.
pub struct Patience<'a> {
    steps: AtomicU64,
    over: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Patience<'a> {
    /// Limits a search until `over` returns true, or until `MAX_STEPS`.
    pub fn until(over: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { steps: AtomicU64::new(MAX_STEPS), over }
    }

    /// Counts a step of the search. Fails when the limit is reached.
    pub fn step(&self) -> Result<(), AllocateError> {
        let left = self.steps.load(Ordering::Relaxed);
        if left == 0 || left.is_multiple_of(64) && (self.over)() {
            self.steps.store(0, Ordering::Relaxed);
            return Err(AllocateError::TimedOut);
        }
        self.steps.store(left - 1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether the limit is reached.
    pub fn is_over(&self) -> bool {
        self.steps.load(Ordering::Relaxed) == 0 || (self.over)()
    }
}

/// The input that all searches share.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    pub programs: &'a Programs,
    pub patience: &'a Patience<'a>,
    /// Makes a new share ID.
    pub share_id: &'a (dyn Fn() -> String + Sync),
}

impl Cluster {
    pub fn new(slices: Vec<Arc<ResourceSlice>>, classes: Vec<Arc<DeviceClass>>, taken: Taken) -> Self {
        let mut cluster =
            Self { of_node: HashMap::new(), for_many: Vec::new(), classes: HashMap::new(), taken };
        for slice in slices {
            match slice.spec.node_name.as_deref().filter(|n| !n.is_empty()) {
                Some(node) => cluster.of_node.entry(node.to_owned()).or_default().push(slice),
                None => cluster.for_many.push(slice),
            }
        }
        for class in classes {
            cluster.classes.insert(class.metadata.name.clone().unwrap_or_default(), class);
        }
        cluster
    }

    pub fn class(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.classes.get(name)
    }

    /// Returns an allocation for each claim, or `None` when the devices are not sufficient.
    pub fn allocate(
        &self,
        node: &Node,
        claims: &[&ResourceClaim],
        tools: Tools,
    ) -> Result<Option<Vec<AllocationResult>>, AllocateError> {
        let frames: usize = claims.iter().map(|claim| frames(claim)).sum();
        if frames <= FRAMES_AT_HAND {
            return self.search(node, claims, tools);
        }
        let failed = || AllocateError::Wrong("no thread for the search".to_owned());
        if frames > MAX_FRAMES {
            return Err(AllocateError::Wrong("the pod's claims ask for too many devices".to_owned()));
        }
        std::thread::scope(|scope| {
            let builder =
                std::thread::Builder::new().stack_size(frames * FRAME_BYTES + FRAMES_AT_HAND * FRAME_BYTES);
            let thread =
                builder.spawn_scoped(scope, || self.search(node, claims, tools)).map_err(|_| failed())?;
            thread.join().map_err(|_| failed())?
        })
    }

    fn search(
        &self,
        node: &Node,
        claims: &[&ResourceClaim],
        tools: Tools,
    ) -> Result<Option<Vec<AllocationResult>>, AllocateError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let own = self.of_node.get(name).into_iter().flatten();
        let near: Vec<&ResourceSlice> = own.chain(&self.for_many).map(|s| &**s).collect();
        let all: Vec<&ResourceSlice> =
            self.of_node.values().flatten().chain(&self.for_many).map(|s| &**s).collect();
        let pools = gather(&near, node, &all);
        let mut search = Search::new(self, node, claims, pools, tools)?;
        if search.run()? {
            return Ok(Some(results(&search, node, tools.share_id)?));
        }
        if search.pools.iter().any(|p| p.invalid) {
            return Err(AllocateError::OnNode("invalid resource pools were encountered".to_owned()));
        }
        Ok(None)
    }
}

/// The maximum recursion depth of the search for one claim.
fn frames(claim: &ResourceClaim) -> usize {
    let of_ask = |ask: &Ask| match ask.mode {
        ALL => MAX_RESULTS,
        _ => usize::try_from(ask.count).unwrap_or(0).min(MAX_RESULTS),
    };
    let of_request = |asks: Vec<Ask>| asks.iter().map(of_ask).max().unwrap_or(0) + 2;
    1 + requests(claim).iter().map(|r| of_request(Ask::of(r))).sum::<usize>()
}
