//! `knarr scheduler`: the scheduler alone, for the cluster of any API server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use knarr_api::gates;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use knarr_scheduler::Scheduler;
use knarr_scheduler::config::Configuration;
use tokio_util::sync::CancellationToken;

use crate::component::{Component, ComponentArgs};

/// Its name towards the API.
pub const NAME: &str = "kube-scheduler";

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr scheduler --kubeconfig scheduler.kubeconfig\n  \
    knarr scheduler --kubeconfig scheduler.kubeconfig --config profiles.yaml --leader-elect=false\n\n\
    A cluster has one scheduler for each schedulerName: `knarr server --disable-scheduler` runs none itself.")]
pub struct SchedulerArgs {
    /// File with a KubeSchedulerConfiguration: profiles, plugins and their arguments
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    component: ComponentArgs,
}

pub fn run(args: SchedulerArgs) -> Result<()> {
    let mut config = configuration("--config", args.config.as_deref())?;
    crate::memory::runtime()?.block_on(async {
        let component = Component::start(&args.component, NAME).await?;
        config.generic_workload = gates::GENERIC_WORKLOAD.is_on();
        let client = component.client.clone();
        component.run(move |stop| schedule(client.clone(), config.clone(), |_| {}, stop)).await
    })
}

/// What the file says, or the defaults without one; `option` named it.
pub fn configuration(option: &str, file: Option<&Path>) -> Result<Configuration> {
    let Some(file) = file else { return Ok(Configuration::default()) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let read = Configuration::from_yaml(&text).and_then(|config| {
        // Profiles are made for real once there is an API server; what is wrong with them is told now.
        config.profiles(&Arc::default())?;
        Ok(config)
    });
    read.with_context(|| format!("{option} {}", file.display()))
}

/// Schedules until `stop`; `started` gets the scheduler once it is set up.
pub async fn schedule(
    client: Client,
    config: Configuration,
    started: impl FnOnce(&Arc<Scheduler>),
    stop: CancellationToken,
) {
    let recorder = EventRecorder::new(client.clone(), "default-scheduler", "", stop.clone());
    let informers = Arc::new(Informers::new(client, stop.clone()));
    let options = knarr_scheduler::Options { config, seed: seed() };
    let scheduler = match Scheduler::new(&informers, recorder, options) {
        Ok(scheduler) => scheduler,
        Err(error) => return tracing::error!(%error, "the scheduler does not start"),
    };
    started(&scheduler);
    tokio::select! {
        () = informers.wait_synced() => {}
        () = stop.cancelled() => return,
    }
    scheduler.run(stop).await;
}

fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    // A choice among equals needs no secrecy: without the system's randomness, time will do.
    if ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).is_err() {
        return jiff::Timestamp::now().as_nanosecond() as u64;
    }
    u64::from_le_bytes(bytes)
}
