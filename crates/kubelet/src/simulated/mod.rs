//! Simulated nodes: nodes without machines, whose pods run nothing but report as real ones do.
//!
//! [`run`] joins many of them to a cluster from one process. Each registers, renews its lease, writes its status,
//! and emits events about itself. The pods bound to it become Running and Ready, end, and are removed. There is no
//! task and no typed object per node or pod: changes and timers put keys on two work queues, one for heartbeats
//! and one for pods, with a bounded number of workers each.
//!
//! A pod's annotations control it:
//! - `knarr.dev/run-seconds: "5"`: its containers end that long after their start (not with `restartPolicy: Always`);
//! - `knarr.dev/exit-code: "1"`: what they end with; anything but 0 makes the pod Failed.

mod addresses;
mod events;
mod node;
mod pod;
mod runner;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Taint;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use tokio_util::sync::CancellationToken;

/// The label of all simulated nodes; its value is `true`.
pub const LABEL: &str = "knarr.dev/simulated";
pub const RUN_SECONDS_ANNOTATION: &str = "knarr.dev/run-seconds";
pub const EXIT_CODE_ANNOTATION: &str = "knarr.dev/exit-code";

/// The maximal number of nodes, as there are no addresses for more.
pub const MAX_NODES: u32 = 16_384;

/// The number of nodes, and their properties.
#[derive(Debug, Clone)]
pub struct Options {
    /// At most [`MAX_NODES`].
    pub count: u32,
    /// The prefix of the nodes' names: `<prefix>-0001` and so on.
    pub name_prefix: String,
    pub cpus: u64,
    pub memory_bytes: u64,
    pub ephemeral_storage_bytes: u64,
    pub max_pods: u32,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// The time from a pod's binding until it is Running; each pod takes between half and one and a half of it.
    pub start_latency: Duration,
    /// The time from a pod's deletion to its removal, at most its grace period.
    pub stop_latency: Duration,
    /// The number of concurrent requests to the API server for pods, and the same number for heartbeats.
    pub concurrency: usize,
}

impl Options {
    pub fn new(count: u32) -> Self {
        Self {
            count: count.min(MAX_NODES),
            name_prefix: "simulated".to_owned(),
            cpus: 8,
            memory_bytes: 32 << 30,
            ephemeral_storage_bytes: 100 << 30,
            max_pods: 110,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            start_latency: Duration::from_millis(100),
            stop_latency: Duration::from_millis(100),
            concurrency: 32,
        }
    }

    /// The name of node `index`, counted from 0.
    pub fn node_name(&self, index: u32) -> String {
        format!("{}-{:04}", self.name_prefix, index + 1)
    }

    /// Returns the index of the node of this name, if it is one of these.
    pub fn node_index(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(self.name_prefix.as_str())?.strip_prefix('-')?;
        let index = digits.parse::<u32>().ok()?.checked_sub(1)?;
        (index < self.count && self.node_name(index) == name).then_some(index)
    }
}

/// Runs the nodes until `stop` is cancelled. The client needs the rights of all of them.
pub fn run(
    options: Options,
    client: Client,
    informers: Arc<Informers>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    // What ends at the stop has its events, too.
    let recording = CancellationToken::new();
    let recorder = EventRecorder::new(client.clone(), "kubelet", "", recording.clone());
    Box::pin(async move {
        let _recorded = recording.drop_guard();
        runner::Runner::new(options, client, recorder.clone(), &informers).run(&informers, stop).await;
        recorder.written().await;
    })
}

#[cfg(test)]
mod name_tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_index() {
        let options = Options::new(5000);
        for index in [0, 1, 998, 4999] {
            assert_eq!(options.node_index(&options.node_name(index)), Some(index));
        }
        assert_eq!(options.node_name(4999), "simulated-5000");
        for name in
            ["simulated-0000", "simulated-5001", "simulated-1", "simulated-00001", "other-0001", "simulated"]
        {
            assert_eq!(options.node_index(name), None, "{name}");
        }
    }
}
