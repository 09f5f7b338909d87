//! `cargo xtask bench NAME`: measures the release binary in its own sandbox; prints a table, and one line of
//! JSON at the end.

mod apiserver;
pub mod cluster;
mod creates;
mod idle;
mod list;
mod pod_start;
mod process;
mod report;
mod rollout;
mod scheduler;
mod scheduler_core;
mod size;
mod start;

use anyhow::Result;
use clap::ValueEnum;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask bench start --runs 20\n  cargo xtask bench creates --json\n  \
    KNARR_BIN=/usr/bin/knarr cargo xtask bench size"
)]
pub struct Args {
    /// What to measure
    name: Name,
    /// Number of starts, pods, seconds or lists; each bench has its own default
    #[arg(long)]
    runs: Option<usize>,
    /// Folder with `kube-apiserver`, `kube-scheduler`, `kube-controller-manager` and `etcd`, for `apiserver`,
    /// `scheduler` and `rollout` to measure them too
    #[arg(long, value_name = "FOLDER")]
    upstream: Option<std::path::PathBuf>,
    /// Number of objects of `list` and `apiserver`, and of pods of `rollout`
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Number of nodes of `scheduler-core`
    #[arg(long, default_value_t = 5_000)]
    nodes: usize,
    #[command(flatten)]
    scheduler: scheduler::Options,
    /// Print only the line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Time from the start of the process to a Ready node: first start on an empty folder, and the next one
    Start,
    /// Memory and CPU time of an idle cluster, empty and with pods
    Idle,
    /// Time from the creation of a pod to its Running, as an API client sees it
    PodStart,
    /// Creates per second, each durable before it is answered
    Creates,
    /// Creates, gets, lists and watches of many pods, compared with kube-apiserver with `--upstream`
    Apiserver,
    /// One LIST of many pods
    List,
    /// Pods scheduled per second through the API, with the workloads of upstream's scheduler_perf
    Scheduler,
    /// Pods scheduled per second without an API on `--nodes` nodes, by the shape of the pods
    SchedulerCore,
    /// A rollout of a Deployment of `--objects` pods on simulated nodes; with `--upstream` by
    /// kube-controller-manager too
    Rollout,
    /// Size of the binary
    Size,
}

pub fn run(args: &Args) -> Result<()> {
    if cfg!(debug_assertions) {
        // This program generates the load: unoptimized, it would be the bottleneck.
        let mut command = crate::cargo(&["run", "--quiet", "--release", "--package", "xtask", "--"]);
        command.args(std::env::args_os().skip(1));
        return crate::run(command);
    }
    let report = match args.name {
        Name::SchedulerCore => scheduler_core::measure(args.nodes, args.runs.unwrap_or(10_000))?,
        _ => of_binary(args)?,
    };
    if !args.json {
        print!("{}", report.table());
    }
    println!("{}", report.json());
    Ok(())
}

/// Runs the benches that measure the release binary.
fn of_binary(args: &Args) -> Result<report::Report> {
    let binary = crate::release_binary()?;
    Ok(match args.name {
        Name::Start => start::measure(&binary, args.runs.unwrap_or(10))?,
        Name::Idle => idle::measure(&binary, args.runs.unwrap_or(30))?,
        Name::PodStart => pod_start::measure(&binary, args.runs.unwrap_or(100))?,
        Name::Creates => creates::measure(&binary, args.runs.unwrap_or(5))?,
        Name::Apiserver => {
            apiserver::measure(&binary, args.runs.unwrap_or(5), args.objects, args.upstream.as_ref())?
        }
        Name::List => list::measure(&binary, args.runs.unwrap_or(10), args.objects)?,
        Name::Rollout => rollout::measure(&binary, args.objects, args.upstream.as_ref())?,
        Name::Size => size::measure(&binary)?,
        Name::Scheduler => scheduler::measure(&binary, &args.scheduler, args.upstream.as_ref())?,
        Name::SchedulerCore => scheduler_core::measure(args.nodes, args.runs.unwrap_or(10_000))?,
    })
}
