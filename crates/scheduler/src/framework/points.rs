//! The extension points, each a trait. A plugin implements the ones it takes part in.
//!
//! Filters and scores work in two steps. The plugin reads a pod's shape once and returns a [`NodeFilter`] or
//! [`NodeScore`] for it, which then evaluates nodes. The scheduler keeps that object for further pods of the shape,
//! together with its results, and calls it when pods are placed or removed. The plugin's [`Scope`] defines which
//! changes make results stale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_client::Client;

use super::cycle_state::CycleState;
use super::events::{Changed, ClusterEvent};
use super::footprint::Footprint;
use super::pod_info::PodInfo;
use super::shape::Shape;
use super::status::{Code, Status};
use super::work::Work;
use crate::diagnosis::Diagnosis;
use crate::snapshot::{NodeIdx, NodeRow, PlacedPod, Snapshot};

/// The maximum score of a plugin for a node, before weights.
pub const MAX_NODE_SCORE: i64 = 100;

/// A plugin of the scheduling framework. It implements one or more of the extension points below.
pub trait Plugin: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The events after which a pod that this plugin rejected is worth another attempt.
    fn interests(&self) -> &'static [ClusterEvent] {
        &[]
    }

    /// Returns whether this change may make the pod fit, as far as the plugin can see. Must be cheap; true in case of
    /// doubt.
    fn hint(&self, _pod: &PodInfo, _happened: ClusterEvent, _change: &Changed) -> bool {
        true
    }
}

/// What the result for a node depends on, apart from the pod's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The node and the pods on it. Evaluated again when these change.
    Row,
    /// Other nodes and pods as well. Evaluated in every cycle; the plugin keeps counts through `pod_changed`.
    Cluster,
}

/// A node as filters and scores see it. The row may have pods added or removed on trial.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    pub cluster: &'a Snapshot,
    pub at: NodeIdx,
    pub row: &'a NodeRow,
}

/// Keeps a pod out of the active queue while it must not be scheduled.
pub trait PreEnqueue: Plugin {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status;
}

/// The result of a filter plugin for a shape.
pub enum PreFilter {
    /// Nothing to check: every node passes.
    Skip,
    /// Nodes are checked with this filter. If names are given, all other nodes are excluded.
    Check { filter: Box<dyn NodeFilter>, only: Option<Vec<String>> },
    /// No node passes.
    Reject(Status),
}

impl PreFilter {
    /// The code that metrics record for the result.
    pub fn code(&self) -> Code {
        match self {
            Self::Skip => Code::Skip,
            Self::Check { .. } => Code::Success,
            Self::Reject(status) => status.code,
        }
    }

    /// Checks all nodes with this filter.
    pub fn check(filter: impl NodeFilter + 'static) -> Self {
        Self::Check { filter: Box::new(filter), only: None }
    }
}

/// Decides which nodes can run a pod. Source: upstream's PreFilter and Filter.
pub trait Filter: Plugin {
    fn scope(&self) -> Scope;

    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter;

    /// A number that changes with everything else that the plugin reads for this shape (claims, volumes). Cached work
    /// of another version is dropped.
    fn version(&self, _cluster: &Snapshot, _shape: &Shape) -> u64 {
        0
    }
}

/// A filter for pods of one shape.
pub trait NodeFilter: Send + Sync {
    fn check(&self, node: &NodeView) -> Status;

    /// Like `check`, without the reason.
    fn passes(&self, node: &NodeView) -> bool {
        self.check(node).is_success()
    }

    /// Called when `delta` (1 or -1) pods with this footprint were added to the node. Source: upstream's AddPod and
    /// RemovePod.
    fn pod_changed(&mut self, _cluster: &Snapshot, _node: NodeIdx, _footprint: &Footprint, _delta: i32) {}

    /// Returns changes that would make the node pass, for the what-if report; empty where the reason is enough.
    fn remedies(&self, _pod: &PodInfo, _node: &NodeView) -> Vec<Remedy> {
        Vec::new()
    }

    /// Returns a copy, on which changes can be tried.
    fn boxed(&self) -> Box<dyn NodeFilter>;
}

/// A change that would let a node pass a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    pub text: String,
    /// For amounts: how much is missing, in thousandths of the request. Used to rank nodes that miss the same thing.
    pub missing: u64,
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self { text, missing: 0 }
    }
}

/// A node, with the pods that must be evicted from it to make the pod fit.
#[derive(Clone)]
pub struct Room {
    pub node: NodeIdx,
    /// The victims, the most important first.
    pub victims: Vec<Arc<PlacedPod>>,
    /// The number of victims whose eviction violates a disruption budget.
    pub violations: usize,
}

impl Room {
    /// The message for events and conditions.
    pub fn words(&self, cluster: &Snapshot) -> String {
        let (node, victims) = (cluster.row(self.node).name(), self.victims.len());
        format!(
            "preemption: found a potential placement for pod on node {node}, preempting {victims} victims"
        )
    }
}

/// Makes room for a pod when no node passed the filters, usually by preemption. The scheduler takes the first room,
/// evicts the victims and nominates the pod to the node.
pub trait PostFilter: Plugin {
    /// Returns rooms, the best first; never an empty list.
    fn post_filter(&self, attempt: &Attempt) -> Result<Vec<Room>, NoRoom>;

    /// Sorts rooms that extenders have changed, the best first.
    fn rank(&self, _rooms: &mut [Room]) {}
}

/// The result when no room was found.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// The message for events and conditions.
    pub words: String,
    /// Whether an earlier nomination of the pod must be withdrawn.
    pub withdraw: bool,
}

impl NoRoom {
    pub(super) fn join(&mut self, more: Self) {
        if !self.words.is_empty() && !more.words.is_empty() {
            self.words.push_str(", ");
        }
        self.words.push_str(&more.words);
        self.withdraw |= more.withdraw;
    }
}

/// A scheduling cycle that found no node.
pub struct Attempt<'a> {
    pub cluster: &'a Snapshot,
    pub pod: &'a PodInfo,
    /// The filters in their present state for the pod's shape; see `Trial`.
    pub work: &'a Work,
    pub diagnosis: &'a Diagnosis,
}

/// Ranks the nodes that passed the filters. Source: upstream's PreScore, Score and NormalizeScore.
pub trait Score: Plugin {
    fn scope(&self) -> Scope;

    /// Returns `None` when the plugin has no preference for this shape.
    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>>;

    /// Like [`Filter::version`].
    fn version(&self, _cluster: &Snapshot, _shape: &Shape) -> u64 {
        0
    }
}

/// A score for pods of one shape.
pub trait NodeScore: Send + Sync {
    /// Called with the nodes that will be scored next.
    fn begin(&mut self, _cluster: &Snapshot, _feasible: &[NodeIdx]) {}

    /// Returns any number; [`NodeScore::normalize`] maps it to 0..=[`MAX_NODE_SCORE`].
    fn score(&self, node: &NodeView) -> i64;

    /// Normalizes `scores`, which has one entry for each of `nodes`.
    fn normalize(&self, _cluster: &Snapshot, _nodes: &[NodeIdx], _scores: &mut [i64]) {}

    /// Like [`NodeFilter::pod_changed`].
    fn pod_changed(&mut self, _cluster: &Snapshot, _node: NodeIdx, _footprint: &Footprint, _delta: i32) {}
}

/// Reserves what a pod will use before it is bound, and releases it when the binding fails.
pub trait Reserve: Plugin {
    fn reserve(&self, state: &mut CycleState, cluster: &Snapshot, pod: &PodInfo, node: &str) -> Status;
    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str);
}

/// Approves, rejects or delays a pod before it is bound.
pub trait Permit: Plugin {
    /// Returns the status; with a `Wait` status also the maximum time to wait.
    fn permit(&self, state: &CycleState, pod: &PodInfo, node: &str) -> (Status, Duration);
}

/// The progress of a pod group's cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The number of pods with a node, those of this cycle included.
    pub scheduled: usize,
    /// The number of pods that have not been tried yet.
    pub remaining: usize,
}

/// Decides in a pod group's cycle whether enough of its pods have a node. Returns `Wait` while that is still possible,
/// and `Unschedulable` when it is not.
pub trait PlacementFeasible: Plugin {
    fn placement_feasible(&self, group: &PodGroup, progress: Progress) -> Status;
}

/// A pod group's cycle that found nodes for too few of its pods.
pub struct GroupAttempt<'a> {
    pub group: &'a PodGroup,
    /// The waiting pods of the group.
    pub pods: &'a [Arc<PodInfo>],
}

/// A copy of the cluster on which placements of a pod group are tried.
pub trait GroupTrial {
    fn cluster(&self) -> &Snapshot;

    fn remove(&mut self, node: NodeIdx, pod: &PlacedPod);

    fn add(&mut self, node: NodeIdx, pod: &Arc<PlacedPod>);

    /// Places the whole group on the copy, where it stays. Returns the nodes by the pods' uids. Must be called only
    /// once.
    fn place(&mut self) -> Result<BTreeMap<Box<str>, Box<str>>, Status>;

    /// Returns whether the group still fits where it was placed, after pods were added to these nodes.
    fn still_fit(&mut self, touched: &BTreeSet<NodeIdx>) -> bool;
}

/// The pods that must be evicted to make a group fit.
#[derive(Default)]
pub struct GroupRoom {
    /// The nodes of the group's pods, by uid.
    pub nodes: BTreeMap<Box<str>, Box<str>>,
    /// The victims, the most important first; empty when they are terminating already.
    pub victims: Vec<Arc<PlacedPod>>,
    /// The number of disruptions of pod groups: a group that is evicted as a whole counts once, as does each pod of
    /// other groups.
    pub disruptions: usize,
    /// The number of victims whose eviction violates a disruption budget.
    pub violations: usize,
    /// The message for events and conditions.
    pub words: String,
}

/// Makes room for a pod group, usually by preemption.
pub trait PodGroupPostFilter: Plugin {
    fn pod_group_post_filter(
        &self,
        attempt: &GroupAttempt,
        trial: &mut dyn GroupTrial,
    ) -> Result<GroupRoom, Status>;
}

/// Work that must be done before the binding, such as provisioning a volume.
#[async_trait]
pub trait PreBind: Plugin {
    /// Returns `Skip` if PreBind has no work to do for the pod. Source: upstream's PreBindPreFlight.
    fn pre_flight(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Status;

    async fn pre_bind(&self, client: &Client, state: &CycleState, pod: &PodInfo, node: &str) -> Status;
}

/// Writes the binding. A `Skip` status passes the pod to the next bind plugin.
#[async_trait]
pub trait Bind: Plugin {
    async fn bind(&self, client: &Client, pod: &PodInfo, node: &str) -> Status;
}

/// Called after a pod was bound.
pub trait PostBind: Plugin {
    fn post_bind(&self, pod: &PodInfo, node: &str);
}

/// Orders the waiting pods.
pub trait QueueSort: Plugin {
    /// Returns the sort key, smaller keys first: priority, then arrival.
    fn key(&self, pod: &PodInfo, arrival: u64) -> (i64, u64);
}

/// One plugin with the extension points it takes part in.
#[derive(Clone)]
pub struct Parts {
    pub plugin: Arc<dyn Plugin>,
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    pub pre_enqueue: Option<Arc<dyn PreEnqueue>>,
    pub filter: Option<Arc<dyn Filter>>,
    pub post_filter: Option<Arc<dyn PostFilter>>,
    pub score: Option<Arc<dyn Score>>,
    pub reserve: Option<Arc<dyn Reserve>>,
    pub permit: Option<Arc<dyn Permit>>,
    pub pre_bind: Option<Arc<dyn PreBind>>,
    pub bind: Option<Arc<dyn Bind>>,
    pub post_bind: Option<Arc<dyn PostBind>>,
    pub placement_feasible: Option<Arc<dyn PlacementFeasible>>,
    pub pod_group_post_filter: Option<Arc<dyn PodGroupPostFilter>>,
}

impl Parts {
    /// Returns a plugin without extension points. The caller sets the points that it implements.
    pub fn of(plugin: Arc<dyn Plugin>) -> Self {
        Self {
            plugin,
            queue_sort: None,
            pre_enqueue: None,
            filter: None,
            post_filter: None,
            score: None,
            reserve: None,
            permit: None,
            pre_bind: None,
            bind: None,
            post_bind: None,
            placement_feasible: None,
            pod_group_post_filter: None,
        }
    }
}

/// The plugins of each extension point, in the order in which they run.
#[derive(Default, Clone)]
pub struct Points {
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    pub pre_enqueue: Vec<Arc<dyn PreEnqueue>>,
    pub filter: Vec<Arc<dyn Filter>>,
    pub post_filter: Vec<Arc<dyn PostFilter>>,
    /// The score plugins with their weights.
    pub score: Vec<(Arc<dyn Score>, i64)>,
    pub reserve: Vec<Arc<dyn Reserve>>,
    pub permit: Vec<Arc<dyn Permit>>,
    pub pre_bind: Vec<Arc<dyn PreBind>>,
    pub bind: Vec<Arc<dyn Bind>>,
    pub post_bind: Vec<Arc<dyn PostBind>>,
    pub placement_feasible: Vec<Arc<dyn PlacementFeasible>>,
    pub pod_group_post_filter: Vec<Arc<dyn PodGroupPostFilter>>,
    /// Each plugin once, for their interests.
    pub all: Vec<Arc<dyn Plugin>>,
}
