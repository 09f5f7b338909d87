//! Simulated nodes: they register, renew their leases and report their pods as running, but run nothing.
//!
//! For trying a control plane at a size that no one machine has. All nodes share one watch of pods and one of nodes,
//! and a few workers: a node costs a few hundred bytes and one lease renewal each ten seconds.

mod addresses;
mod leases;
mod objects;
mod pods;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;
use knarr_client::{Client, Informers, Result};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A pod with this annotation succeeds after so many seconds; others run until they are deleted.
pub const RUN_SECONDS: &str = "knarr.dev/run-seconds";

/// Requests under way at once, of all nodes together.
const CONCURRENCY: usize = 64;
/// How often a node's status is written though nothing changed.
const STATUS_PERIOD: Duration = Duration::from_secs(300);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What the simulated nodes look like.
#[derive(Debug, Clone)]
pub struct Options {
    pub count: usize,
    /// Names are the prefix and a number: `simulated-0001`.
    pub name_prefix: String,
    /// Quantities of one node.
    pub cpu: String,
    pub memory: String,
    pub pods: u32,
    /// Between a pod's binding and its being Ready.
    pub start_latency: Duration,
    /// Between a pod's deletion and its end, within its grace period.
    pub stop_latency: Duration,
    pub labels: BTreeMap<String, String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            count: 1,
            name_prefix: "simulated".to_owned(),
            cpu: "32".to_owned(),
            memory: "256Gi".to_owned(),
            pods: 110,
            start_latency: Duration::ZERO,
            stop_latency: Duration::ZERO,
            labels: BTreeMap::new(),
        }
    }
}

impl Options {
    /// The names of all nodes, in order.
    pub fn names(&self) -> Vec<String> {
        let digits = self.count.to_string().len().max(4);
        (1..=self.count).map(|n| format!("{}-{n:0digits$}", self.name_prefix)).collect()
    }
}

/// Registers the nodes and keeps them alive until `stop`. `registered` is told how many are there, now and then.
pub async fn run(
    options: Options,
    client: Client,
    informers: &Informers,
    stop: CancellationToken,
    registered: impl Fn(usize) + Send + Sync + 'static,
) {
    let (options, names) = (Arc::new(options.clone()), Arc::new(options.names()));
    let pods = informers.informer::<Pod>();
    let nodes = informers.informer::<Node>();
    nodes.wait_synced().await;
    pods.wait_synced().await;
    let tasks = TaskTracker::new();
    tasks.spawn(pods::run(
        Arc::clone(&options),
        client.clone(),
        pods,
        nodes.clone(),
        Arc::clone(&names),
        stop.clone(),
    ));
    tasks.spawn(leases::run(client.clone(), Arc::clone(&names), stop.clone()));
    // A node that somebody deletes comes back, as a real one registers again.
    let (again, mut wanted) = tokio::sync::mpsc::channel::<String>(1024);
    let own: std::collections::BTreeSet<String> = names.iter().cloned().collect();
    nodes.add_handler(move |event| {
        if let knarr_client::Event::Deleted(node) = event
            && own.contains(node.name())
        {
            // A full queue loses nothing for good: the periodic status write finds the node missing.
            let _ = again.try_send(node.name().to_owned());
        }
    });
    register_all(&options, &client, &names, &stop, registered).await;
    let mut refresh = Refresh::new(&names);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(name) = wanted.recv() => register(&options, &client, &name, &stop).await,
            () = client.clock().sleep(refresh.pause()) => {
                if let Some(name) = refresh.next() {
                    register(&options, &client, &name, &stop).await;
                }
            }
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// Walks round all nodes once per [`STATUS_PERIOD`].
struct Refresh {
    names: Arc<Vec<String>>,
    at: usize,
}

impl Refresh {
    fn new(names: &Arc<Vec<String>>) -> Self {
        Self { names: Arc::clone(names), at: 0 }
    }

    fn pause(&self) -> Duration {
        STATUS_PERIOD / u32::try_from(self.names.len().max(1)).unwrap_or(u32::MAX)
    }

    fn next(&mut self) -> Option<String> {
        let name = self.names.get(self.at).cloned();
        self.at = (self.at + 1) % self.names.len().max(1);
        name
    }
}

async fn register_all(
    options: &Arc<Options>,
    client: &Client,
    names: &[String],
    stop: &CancellationToken,
    registered: impl Fn(usize) + Send + Sync + 'static,
) {
    let slots = Arc::new(Semaphore::new(CONCURRENCY));
    let done = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let registered = Arc::new(registered);
    let tasks = TaskTracker::new();
    for name in names {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        if stop.is_cancelled() {
            return;
        }
        let (options, client, name, stop) = (Arc::clone(options), client.clone(), name.clone(), stop.clone());
        let (done, registered) = (Arc::clone(&done), Arc::clone(&registered));
        tasks.spawn(async move {
            register(&options, &client, &name, &stop).await;
            registered(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
            drop(slot);
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// Makes the node, or brings its status up to date; tries until it works or `stop`.
async fn register(options: &Options, client: &Client, name: &str, stop: &CancellationToken) {
    let mut retry = FIRST_RETRY;
    while let Err(error) = try_register(options, client, name).await {
        tracing::debug!(node = name, %error, "not registered");
        tokio::select! {
            () = stop.cancelled() => return,
            () = client.clock().sleep(retry) => {}
        }
        retry = (retry * 2).min(LAST_RETRY);
    }
}

async fn try_register(options: &Options, client: &Client, name: &str) -> Result<()> {
    let now = client.clock().now();
    let node = objects::node(options, name, now);
    match client.create(&node).await {
        Ok(_) => Ok(()),
        Err(e) if e.is_already_exists() => {
            let patch = objects::status_patch(&node);
            client.patch::<Node>("", name, Some("status"), &patch).await.map(|_| ())
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_they_count() {
        let names = Options { count: 12, ..Options::default() }.names();
        assert_eq!((names[0].as_str(), names[11].as_str()), ("simulated-0001", "simulated-0012"));
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(sorted, names);
    }

    #[test]
    fn the_refresh_goes_round() {
        let names = Arc::new(vec!["a".to_owned(), "b".to_owned()]);
        let mut refresh = Refresh::new(&names);
        let order: Vec<_> = (0..3).filter_map(|_| refresh.next()).collect();
        assert_eq!(order, ["a", "b", "a"]);
        assert_eq!(refresh.pause(), STATUS_PERIOD / 2);
    }
}
