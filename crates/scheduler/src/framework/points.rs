//! The extension points, each a trait; a plugin implements those it takes part in.
//!
//! Filters and scores work in two steps. The plugin looks at a pod's shape once and answers with a [`NodeFilter`] or
//! [`NodeScore`] for it; that one judges nodes. The scheduler keeps it for further pods of the shape, together with its
//! verdicts, and tells it of pods that come and go. What has to be judged anew after which change, the plugin's
//! [`Scope`] says.

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

/// The highest score a plugin gives a node, before weights.
pub const MAX_NODE_SCORE: i64 = 100;

pub trait Plugin: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The events after which a pod that this plugin turned down may be worth another try.
    fn interests(&self) -> &'static [ClusterEvent] {
        &[]
    }

    /// Whether this very change can let the pod fit, as far as the plugin can tell. Cheap, and rather yes than no.
    fn hint(&self, _pod: &PodInfo, _happened: ClusterEvent, _change: &Changed) -> bool {
        true
    }
}

/// What a verdict on a node depends on, apart from the pod's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The node and the pods on it. Judged anew when these change.
    Row,
    /// Other nodes and pods as well. Judged in every cycle; keep counts through `pod_changed`.
    Cluster,
}

/// A node as filters and scores see it. The row may have pods taken off or added on trial.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    pub cluster: &'a Snapshot,
    pub at: NodeIdx,
    pub row: &'a NodeRow,
}

/// Keeps a pod out of the queue while it is not ready to be scheduled at all.
pub trait PreEnqueue: Plugin {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status;
}

/// What a filter plugin makes of a shape.
pub enum PreFilter {
    /// Nothing to check: every node will do.
    Skip,
    /// Check nodes with this; with names, only these nodes come into question.
    Check { filter: Box<dyn NodeFilter>, only: Option<Vec<String>> },
    /// No node will do.
    Reject(Status),
}

impl PreFilter {
    pub fn code(&self) -> Code {
        match self {
            Self::Skip => Code::Skip,
            Self::Check { .. } => Code::Success,
            Self::Reject(status) => status.code,
        }
    }

    pub fn check(filter: impl NodeFilter + 'static) -> Self {
        Self::Check { filter: Box::new(filter), only: None }
    }
}

/// Decides which nodes can take a pod: upstream's PreFilter and Filter.
pub trait Filter: Plugin {
    fn scope(&self) -> Scope;

    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter;

    /// A number that changes with whatever else the plugin reads for this shape (claims, volumes), so that nothing
    /// stale is kept.
    fn version(&self, _cluster: &Snapshot, _shape: &Shape) -> u64 {
        0
    }
}

/// A filter for pods of one shape.
pub trait NodeFilter: Send + Sync {
    fn check(&self, node: &NodeView) -> Status;

    /// As `check`, without the reason.
    fn passes(&self, node: &NodeView) -> bool {
        self.check(node).is_success()
    }

    /// `delta` pods (1 or -1) with this footprint came onto the node. Upstream's AddPod and RemovePod.
    fn pod_changed(&mut self, _cluster: &Snapshot, _node: NodeIdx, _footprint: &Footprint, _delta: i32) {}

    /// What would let a node pass that does not, for whoever asks; nothing where the reason says it all.
    fn remedies(&self, _pod: &PodInfo, _node: &NodeView) -> Vec<Remedy> {
        Vec::new()
    }

    /// A copy to try changes on.
    fn boxed(&self) -> Box<dyn NodeFilter>;
}

/// A change that would let a node pass a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    pub text: String,
    /// How much is missing, in thousandths of what is asked for, where it is an amount: among nodes that lack the same,
    /// the nearest lacks least.
    pub missing: u64,
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self { text, missing: 0 }
    }
}

/// A node, and the pods that have to leave it so that the pod fits.
#[derive(Clone)]
pub struct Room {
    pub node: NodeIdx,
    /// The most important first.
    pub victims: Vec<Arc<PlacedPod>>,
    /// How many of them a disruption budget would keep.
    pub violations: usize,
}

impl Room {
    /// For people.
    pub fn words(&self, cluster: &Snapshot) -> String {
        let (node, victims) = (cluster.row(self.node).name(), self.victims.len());
        format!(
            "preemption: found a potential placement for pod on node {node}, preempting {victims} victims"
        )
    }
}

/// Looks for room when no node passed the filters. The scheduler takes the first, removes the victims and nominates the
/// node.
pub trait PostFilter: Plugin {
    /// The best first; never empty.
    fn post_filter(&self, attempt: &Attempt) -> Result<Vec<Room>, NoRoom>;

    /// Orders rooms that somebody changed, the best first.
    fn rank(&self, _rooms: &mut [Room]) {}
}

/// No room was found.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// For people.
    pub words: String,
    /// An earlier nomination of the pod is of no use any more.
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

/// A cycle that found no node.
pub struct Attempt<'a> {
    pub cluster: &'a Snapshot,
    pub pod: &'a PodInfo,
    /// The filters as they stand for the pod's shape; see `Trial`.
    pub work: &'a Work,
    pub diagnosis: &'a Diagnosis,
}

/// Ranks the nodes that passed: upstream's PreScore, Score and NormalizeScore.
pub trait Score: Plugin {
    fn scope(&self) -> Scope;

    /// `None` when the plugin has no preference for this shape.
    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>>;

    /// As [`Filter::version`].
    fn version(&self, _cluster: &Snapshot, _shape: &Shape) -> u64 {
        0
    }
}

/// A score for pods of one shape.
pub trait NodeScore: Send + Sync {
    /// Told which nodes are about to be scored.
    fn begin(&mut self, _cluster: &Snapshot, _feasible: &[NodeIdx]) {}

    /// Any number; [`NodeScore::normalize`] brings it into 0 to [`MAX_NODE_SCORE`].
    fn score(&self, node: &NodeView) -> i64;

    /// `scores` belong to `nodes`, one each.
    fn normalize(&self, _cluster: &Snapshot, _nodes: &[NodeIdx], _scores: &mut [i64]) {}

    /// As [`NodeFilter::pod_changed`].
    fn pod_changed(&mut self, _cluster: &Snapshot, _node: NodeIdx, _footprint: &Footprint, _delta: i32) {}
}

/// Holds and gives back what a pod will use, around assume and bind.
pub trait Reserve: Plugin {
    fn reserve(&self, state: &mut CycleState, cluster: &Snapshot, pod: &PodInfo, node: &str) -> Status;
    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str);
}

/// Approves, rejects or delays a pod before it is bound.
pub trait Permit: Plugin {
    /// With a `Wait` status, how long to wait at most.
    fn permit(&self, state: &CycleState, pod: &PodInfo, node: &str) -> (Status, Duration);
}

/// How far a cycle is with a pod group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Pods with a node, those of this cycle included.
    pub scheduled: usize,
    /// Pods not tried yet.
    pub remaining: usize,
}

/// Says of a pod group in its cycle whether enough of its pods have found a node: `Wait` while that may still come,
/// `Unschedulable` when it cannot.
pub trait PlacementFeasible: Plugin {
    fn placement_feasible(&self, group: &PodGroup, progress: Progress) -> Status;
}

/// A pod group's cycle that found no nodes for enough of its pods.
pub struct GroupAttempt<'a> {
    pub group: &'a PodGroup,
    /// Its waiting pods.
    pub pods: &'a [Arc<PodInfo>],
}

/// A copy of the cluster to try things on for a pod group.
pub trait GroupTrial {
    fn cluster(&self) -> &Snapshot;

    fn remove(&mut self, node: NodeIdx, pod: &PlacedPod);

    fn add(&mut self, node: NodeIdx, pod: &Arc<PlacedPod>);

    /// Places the whole group, which stays there; the nodes by uid. To be called once.
    fn place(&mut self) -> Result<BTreeMap<Box<str>, Box<str>>, Status>;

    /// Whether the group still fits where it was placed, after pods came to these nodes.
    fn still_fit(&mut self, touched: &BTreeSet<NodeIdx>) -> bool;
}

/// The pods that have to leave so that a group fits.
#[derive(Default)]
pub struct GroupRoom {
    /// Where its pods would go, by uid.
    pub nodes: BTreeMap<Box<str>, Box<str>>,
    /// The most important first; none when they are on their way out already.
    pub victims: Vec<Arc<PlacedPod>>,
    /// How many pods of groups, and groups that leave as a whole, are among them.
    pub disruptions: usize,
    /// How many of the victims a disruption budget would keep.
    pub violations: usize,
    /// For people.
    pub words: String,
}

/// Looks for room for a pod group.
pub trait PodGroupPostFilter: Plugin {
    fn pod_group_post_filter(
        &self,
        attempt: &GroupAttempt,
        trial: &mut dyn GroupTrial,
    ) -> Result<GroupRoom, Status>;
}

/// Work that has to be done before the binding, such as provisioning a volume.
#[async_trait]
pub trait PreBind: Plugin {
    /// Whether there will be work to do for the pod; `Skip` where there is none. Upstream's PreBindPreFlight.
    fn pre_flight(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Status;

    async fn pre_bind(&self, client: &Client, state: &CycleState, pod: &PodInfo, node: &str) -> Status;
}

/// Writes the decision. A `Skip` status hands the pod to the next bind plugin.
#[async_trait]
pub trait Bind: Plugin {
    async fn bind(&self, client: &Client, pod: &PodInfo, node: &str) -> Status;
}

/// Told when a pod is bound.
pub trait PostBind: Plugin {
    fn post_bind(&self, pod: &PodInfo, node: &str);
}

/// The order of waiting pods.
pub trait QueueSort: Plugin {
    /// Pods with smaller keys go first: priority, then arrival.
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
    /// A plugin that takes part in nothing yet; set the points it implements.
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

/// Plugins by extension point, in the order they run.
#[derive(Default, Clone)]
pub struct Points {
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    pub pre_enqueue: Vec<Arc<dyn PreEnqueue>>,
    pub filter: Vec<Arc<dyn Filter>>,
    pub post_filter: Vec<Arc<dyn PostFilter>>,
    /// With their weights.
    pub score: Vec<(Arc<dyn Score>, i64)>,
    pub reserve: Vec<Arc<dyn Reserve>>,
    pub permit: Vec<Arc<dyn Permit>>,
    pub pre_bind: Vec<Arc<dyn PreBind>>,
    pub bind: Vec<Arc<dyn Bind>>,
    pub post_bind: Vec<Arc<dyn PostBind>>,
    pub placement_feasible: Vec<Arc<dyn PlacementFeasible>>,
    pub pod_group_post_filter: Vec<Arc<dyn PodGroupPostFilter>>,
    /// All plugins, once each: for their interests.
    pub all: Vec<Arc<dyn Plugin>>,
}
