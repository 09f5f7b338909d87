//! The extension points, each a trait; a plugin implements those it takes part in.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use knarr_client::Client;

use super::cycle_state::CycleState;
use super::events::Interest;
use super::node_info::NodeInfo;
use super::pod_info::PodInfo;
use super::status::Status;
use crate::cache::Nodes;

/// The highest score a plugin gives a node, before weights.
pub const MAX_NODE_SCORE: i64 = 100;

pub trait Plugin: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The events after which a pod that this plugin turned down is worth another try.
    fn interests(&self) -> &'static [Interest] {
        &[]
    }
}

/// Keeps a pod out of the queue while it is not ready to be scheduled at all.
pub trait PreEnqueue: Plugin {
    fn pre_enqueue(&self, pod: &Pod) -> Status;
}

/// Prepares the filter for one pod, or turns the pod down on every node.
pub trait PreFilter: Plugin {
    /// `Ok(Some(names))` limits the cycle to these nodes; a `Skip` status skips this plugin's filter.
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        nodes: &Nodes,
    ) -> Result<Option<BTreeSet<String>>, Status>;
}

/// Decides whether one node can take the pod.
pub trait Filter: Plugin {
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status;
}

/// Tries to make room when no node passed the filters; returns a node to nominate.
#[async_trait]
pub trait PostFilter: Plugin {
    async fn post_filter(
        &self,
        client: &Client,
        pod: &PodInfo,
        rejected: &[(String, Status)],
    ) -> (Option<String>, Status);
}

/// Prepares scoring over the nodes that passed.
pub trait PreScore: Plugin {
    fn pre_score(&self, state: &mut CycleState, pod: &PodInfo, feasible: &[&NodeInfo]) -> Status;
}

/// Ranks the nodes that passed.
pub trait Score: Plugin {
    /// Any number; [`Score::normalize`] brings it into 0 to [`MAX_NODE_SCORE`].
    fn score(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo, nodes: &Nodes) -> i64;

    fn normalize(&self, _scores: &mut [i64]) {}
}

/// Holds and gives back what a pod will use, around assume and bind.
pub trait Reserve: Plugin {
    fn reserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str) -> Status;
    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str);
}

/// Approves, rejects or delays a pod before it is bound.
pub trait Permit: Plugin {
    /// With a `Wait` status, how long to wait at most.
    fn permit(&self, state: &CycleState, pod: &PodInfo, node: &str) -> (Status, Duration);
}

/// Work that has to be done before the binding, such as provisioning a volume.
#[async_trait]
pub trait PreBind: Plugin {
    async fn pre_bind(&self, client: &Client, pod: &PodInfo, node: &str) -> Status;
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

/// Plugins by extension point, in the order they run.
#[derive(Default, Clone)]
pub struct Points {
    pub queue_sort: Option<Arc<dyn QueueSort>>,
    pub pre_enqueue: Vec<Arc<dyn PreEnqueue>>,
    pub pre_filter: Vec<Arc<dyn PreFilter>>,
    pub filter: Vec<Arc<dyn Filter>>,
    pub post_filter: Vec<Arc<dyn PostFilter>>,
    pub pre_score: Vec<Arc<dyn PreScore>>,
    /// With their weights.
    pub score: Vec<(Arc<dyn Score>, i64)>,
    pub reserve: Vec<Arc<dyn Reserve>>,
    pub permit: Vec<Arc<dyn Permit>>,
    pub pre_bind: Vec<Arc<dyn PreBind>>,
    pub bind: Vec<Arc<dyn Bind>>,
    pub post_bind: Vec<Arc<dyn PostBind>>,
    /// All plugins, once each: for their interests.
    pub all: Vec<Arc<dyn Plugin>>,
}
