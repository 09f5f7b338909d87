//! `knarr scheduler`: runs the scheduler alone, for the cluster of any API server.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context, Result};
use clap::Args;
use knarr_api::gates;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers, Supervisor};
use knarr_scheduler::Scheduler;
use knarr_scheduler::config::Configuration;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::component::{Component, ComponentArgs, Identity, Shown};
use crate::serving::Check;

/// The name that it uses at the API.
pub const NAME: &str = "kube-scheduler";
const IDENTITY: Identity = Identity { name: NAME, port: 10259 };

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

pub fn run(mut args: SchedulerArgs) -> Result<()> {
    let mut config = configuration("--config", args.config.as_deref())?;
    args.component.fill(&config.client_connection, &config.leader_election);
    crate::memory::run_to_end(async {
        let component = Component::start(&args.component, IDENTITY).await?;
        config.generic_workload = gates::GENERIC_WORKLOAD.is_on();
        let client = component.client.clone();
        let running: Arc<Running> = Arc::default();
        let shown = shown(&args.component, &config, &running);
        let supervisor = component.supervisor.clone();
        component
            .run(shown, move |leading| {
                let running = Arc::clone(&running);
                let observe = move |stage: Stage<'_>| match stage {
                    Stage::Started(scheduler) => {
                        running.synced.store(false, Ordering::Relaxed);
                        *running.scheduler() = Arc::downgrade(scheduler);
                    }
                    Stage::Synced => running.synced.store(true, Ordering::Relaxed),
                };
                let client = client.clone().under(&leading);
                schedule(client, config.clone(), &supervisor, observe, leading.until)
            })
            .await
    })
}

/// The scheduler that runs in this process, if it holds the lease.
#[derive(Default)]
struct Running {
    scheduler: Mutex<Weak<Scheduler>>,
    /// Whether its informers have synced.
    synced: AtomicBool,
}

impl Running {
    fn scheduler(&self) -> MutexGuard<'_, Weak<Scheduler>> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error while a running scheduler has not synced; one that waits for the lease is in sync.
    fn in_step(&self) -> Result<(), String> {
        let waits = self.scheduler().strong_count() > 0 && !self.synced.load(Ordering::Relaxed);
        if waits { Err("waiting for handlers to sync".to_owned()) } else { Ok(()) }
    }
}

/// Returns what the pages of the scheduler serve.
fn shown(args: &ComponentArgs, config: &Configuration, running: &Arc<Running>) -> Shown {
    let names = config.profiles.iter().filter_map(|profile| profile.scheduler_name.as_deref());
    let mut profiles: Vec<Value> = names.map(|name| json!({"schedulerName": name})).collect();
    if profiles.is_empty() {
        profiles.push(json!({"schedulerName": "default-scheduler"}));
    }
    let config = json!({"componentconfig": {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": args.lease_config(NAME),
        "clientConnection": args.connection_config(),
        "percentageOfNodesToScore": config.percentage_of_nodes_to_score.unwrap_or(0),
        "podInitialBackoffSeconds": config.pod_initial_backoff_seconds,
        "podMaxBackoffSeconds": config.pod_max_backoff_seconds,
        "profiles": profiles,
    }});
    let seen = Arc::clone(running);
    let checks = move || {
        vec![
            Check { name: "ping".into(), endpoints: &["livez"], result: Ok(()) },
            // A process that shuts down no longer answers.
            Check { name: "shutdown".into(), endpoints: &["readyz"], result: Ok(()) },
            Check { name: "sched-handler-sync".into(), endpoints: &["readyz"], result: seen.in_step() },
        ]
    };
    let running = Arc::clone(running);
    let metrics = move || {
        let scheduler = running.scheduler().upgrade();
        scheduler.map(|scheduler| scheduler.metrics()).unwrap_or_default()
    };
    let (checks, metrics) = (Box::new(checks), Box::new(metrics));
    Shown { checks, count_at: &["healthz", "readyz"], metrics, config }
}

/// Returns the configuration of the file, or the defaults without one; `option` is the flag that named the
/// file.
pub fn configuration(option: &str, file: Option<&Path>) -> Result<Configuration> {
    let Some(file) = file else { return Ok(Configuration::default()) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let read = Configuration::from_yaml(&text).and_then(|config| {
        // The profiles that are used are built once an API server is reached; building them here reports
        // errors early.
        config.profiles(&Arc::default())?;
        Ok(config)
    });
    read.with_context(|| format!("{option} {}", file.display()))
}

/// A stage of a scheduler's start: it is created first, and later it has synced.
pub enum Stage<'a> {
    Started(&'a Arc<Scheduler>),
    Synced,
}

/// Schedules until `stop`, as a supervised task: whenever the scheduler fails, a new one replaces it.
pub fn schedule(
    client: Client,
    config: Configuration,
    supervisor: &Supervisor,
    observe: impl Fn(Stage<'_>) + Send + Sync + 'static,
    stop: CancellationToken,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let observe = Arc::new(observe);
    supervisor.run("scheduler", stop, move |stop| {
        let (client, config, observe) = (client.clone(), config.clone(), Arc::clone(&observe));
        async move { one_life(client, config, &*observe, stop).await }
    })
}

async fn one_life(
    client: Client,
    config: Configuration,
    observe: &(dyn Fn(Stage<'_>) + Send + Sync),
    stop: CancellationToken,
) {
    // Bindings that finish after the stop emit events too.
    let recording = CancellationToken::new();
    let _recorded = recording.clone().drop_guard();
    let recorder = EventRecorder::new(client.clone(), "default-scheduler", "", recording);
    let informers = Arc::new(Informers::new(client, stop.clone()));
    let options = knarr_scheduler::Options { config, seed: seed() };
    let scheduler = match Scheduler::new(&informers, recorder, options) {
        Ok(scheduler) => scheduler,
        Err(error) => return tracing::error!(%error, "the scheduler does not start"),
    };
    observe(Stage::Started(&scheduler));
    if !informers.wait_synced().await {
        return;
    }
    observe(Stage::Synced);
    scheduler.run(stop).await;
}

fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    // Breaking ties needs no secrecy: without the system's randomness, the time serves as the seed.
    if ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).is_err() {
        return jiff::Timestamp::now().as_nanosecond() as u64;
    }
    u64::from_le_bytes(bytes)
}
