//! `cargo xtask soak`: runs a server under faults, and checks all answers and events that its clients got.

mod check;
#[cfg(test)]
mod check_tests;
mod client;
mod faults;
mod ground;
mod history;
mod linearizability;
mod objects;
mod report;
mod revisions;
mod round;
mod survivors;
mod watcher;
mod watches;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use fastrand::Rng;

use faults::Fault;
use ground::{Ground, Needs};
use history::History;
use report::Report;
use survivors::Survivors;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask soak --kills 1000 --faults kill\n  cargo xtask soak --minutes 30 --seed 7\n  \
    cargo xtask soak --minutes 10 --faults etcd,kill -o json\n  cargo xtask soak --replay target/soak/seed-1-round-7.json"
)]
pub struct Args {
    /// Number of minutes
    #[arg(long, default_value_t = 1, conflicts_with = "kills")]
    minutes: u64,
    /// Number of kills of the server, after which the run ends
    #[arg(long)]
    kills: Option<u64>,
    /// Seed of the random choices: which requests, which faults, when
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults of the server, one of them in each round
    #[arg(long, value_delimiter = ',', default_value = "kill,pause,disk,memory,files")]
    faults: Vec<Fault>,
    /// Output format
    #[arg(short, long, default_value = "table")]
    output: Output,
    /// Only check a stored history of an earlier run again
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// A client considers a request lost after this time without an answer.
const PATIENCE: Duration = Duration::from_millis(1500);

pub fn run(args: &Args) -> Result<()> {
    match &args.replay {
        Some(path) => replay(path),
        None => soak(args),
    }
}

fn replay(path: &Path) -> Result<()> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let history: History =
        serde_json::from_slice(&text).with_context(|| format!("{} is not a history", path.display()))?;
    let wrong = check::check(&history);
    wrong.iter().for_each(|sentence| println!("{sentence}"));
    if !wrong.is_empty() {
        bail!("{} violations in {}", wrong.len(), path.display());
    }
    println!("no violation in {} operations", history.ops.len());
    Ok(())
}

fn soak(args: &Args) -> Result<()> {
    let has = |fault| args.faults.contains(&fault);
    if has(Fault::Etcd) && has(Fault::Disk) {
        bail!("with `etcd` the state is not in the data folder: leave out `disk`");
    }
    if args.kills.is_some() && !args.faults.iter().any(|f| !matches!(f, Fault::Pause | Fault::Files)) {
        bail!("none of these faults kills the server: give --minutes instead of --kills");
    }
    let needs = Needs {
        small_disk: has(Fault::Disk),
        memory_group: has(Fault::Memory),
        clock: has(Fault::Clock),
        etcd: has(Fault::Etcd),
    };
    let mut ground = Ground::new(&crate::release_binary()?, needs)?;
    ground.start()?;
    let access = ground.access()?.with_timeout(PATIENCE);
    round::eventually("make the custom resource", || {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let made = access.connect()?.json("POST", path, Some(&objects::definition()));
        let served = || access.connect()?.send("GET", &objects::RESOURCES[2].path(None), None);
        served().map_err(|e| made.err().unwrap_or(e))
    })?;
    let begun = Instant::now();
    let mut report = Report::default();
    let mut survivors = Survivors::default();
    let mut rng = Rng::with_seed(args.seed);
    let mut values = 1;
    let goes_on = |report: &Report| match args.kills {
        Some(kills) => report.total.kills < kills,
        None => begun.elapsed() < Duration::from_secs(60 * args.minutes),
    };
    for number in 1.. {
        if !goes_on(&report) {
            break;
        }
        let fault = *rng.choice(&args.faults).context("no faults")?;
        let shared = client::Shared {
            access: access.clone(),
            namespace: format!("round-{number}"),
            began: begun,
            values: AtomicU64::new(values),
            stop: AtomicBool::new(false),
            give_up: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            generation: AtomicU64::new(ground.starts),
        };
        let outcome = round::run(fault, &mut ground, &shared, &mut rng)?;
        values = shared.value();
        survivors.add(&shared.namespace, &outcome.history);
        report.add(fault, &outcome);
        eprintln!("{:6.1} s  {fault:?}: {}", begun.elapsed().as_secs_f64(), report.progress());
        if !outcome.wrong.is_empty() {
            let file = keep(args.seed, number, &outcome.history)?;
            let log = file.with_extension("log");
            std::fs::copy(ground.log(), &log).with_context(|| format!("cannot write {}", log.display()))?;
            report.wrong.push(format!("round {number}, {fault:?}, {}:", file.display()));
            report.wrong.extend(outcome.wrong);
            break;
        }
    }
    if report.wrong.is_empty() {
        report.add_wrong(survivors.check(&access)?);
    }
    match args.output {
        Output::Table => print!("{}", report.table()),
        Output::Json => println!("{}", report.json(args.seed, begun.elapsed())),
    }
    report.wrong.iter().take(20).for_each(|sentence| eprintln!("{sentence}"));
    if !report.wrong.is_empty() {
        bail!("{} violations with seed {}", report.wrong.len(), args.seed);
    }
    Ok(())
}

/// Writes a history to a file for `--replay`.
fn keep(seed: u64, round: u64, history: &History) -> Result<PathBuf> {
    let folder = crate::root().join("target/soak");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("seed-{seed}-round-{round}.json"));
    std::fs::write(&file, serde_json::to_vec(history)?)?;
    Ok(file)
}
