//! `knarr agent --simulate`: nodes that register and report, but run nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::kubeconfig::Access;
use knarr_client::{Event, Informers};
use knarr_kubelet::simulated;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::AgentArgs;
use crate::access;
use crate::progress::Progress;
use crate::signals;

pub async fn run(
    args: &AgentArgs,
    given: &Access,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
    count: u32,
) -> Result<()> {
    let stop = CancellationToken::new();
    let client = access::client(given, clock, "kubelet")?;
    if !access::may(&client, "create", "", "nodes").await? {
        bail!(
            "the user of {} may not create nodes: take an administrator's kubeconfig",
            args.kubeconfig.display()
        );
    }
    let informers = Arc::new(Informers::new(client.clone(), stop.clone()));
    let mut options = simulated::Options::new(count);
    options.labels = args.node.labels()?;
    if let Some(name) = args.node.given_name() {
        options.name_prefix = name.to_owned();
    }
    let wanted = usize::try_from(options.count)?;
    let first_and_last = (options.node_name(0), options.node_name(options.count.saturating_sub(1)));
    let mut registered = registered(&informers, options.clone());
    let supervisor = client.supervisor().clone();
    let running = supervisor.spawn("simulated-nodes", stop.clone(), move |stop| {
        let informers = Arc::new(informers.until(stop.clone()));
        simulated::run(options.clone(), client.clone(), informers, stop)
    });
    progress
        .step("simulated nodes", async {
            tokio::select! {
                done = registered.wait_for(|n| *n >= wanted) => {
                    done.context("the watch of nodes ended")?;
                }
                () = signals::wait_for_stop() => {
                    stop.cancel();
                    bail!("stopped before all nodes were registered");
                }
            }
            Ok(((), format!("{} to {}", first_and_last.0, first_and_last.1)))
        })
        .await?;
    progress.ready(&["they live until this ends; `kubectl get nodes` shows them".to_owned()]);
    signals::wait_for_stop().await;
    stop.cancel();
    running.await.context("the simulated nodes ended unexpectedly")
}

/// Returns how many of the nodes are registered, with updates.
fn registered(informers: &Informers, options: simulated::Options) -> watch::Receiver<usize> {
    let (sender, receiver) = watch::channel(0usize);
    let seen = std::sync::Mutex::new(BTreeSet::new());
    informers.informer::<Node>().add_handler(move |event| {
        let Some(index) = options.node_index(event.object().name()) else { return };
        let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let changed = match event {
            Event::Deleted(_) => seen.remove(&index),
            _ => seen.insert(index),
        };
        if changed {
            // Without a receiver, the count is no longer needed.
            let _ = sender.send(seen.len());
        }
    });
    receiver
}
