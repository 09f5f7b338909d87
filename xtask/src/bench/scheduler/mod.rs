//! Pods scheduled per second through the API, with every write durable: the workloads of upstream's
//! scheduler_perf on Knarr's scheduler and, if the folder of its programs is given, on upstream's.

mod bound;
mod run;
mod shapes;
mod sides;
mod workloads;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::report::{Report, percentile};
use run::{Arrival, Outcome};
use sides::{ControlPlane, Side};
use workloads::Workload;

/// The time in which an idle process releases the memory of its busiest moment.
const REST: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Options {
    /// Workloads of `scheduler` whose names contain one of these words
    #[arg(long, value_name = "WORD")]
    workload: Vec<String>,
    /// Scheduler and API server of `scheduler` [default: all whose programs exist]
    #[arg(long, value_enum)]
    side: Vec<Side>,
    /// Divide the nodes and pods of `scheduler` by this number
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    shrink: usize,
    /// Create all pods of `scheduler` before scheduling begins
    #[arg(long, conflicts_with = "rate")]
    backlog: bool,
    /// Read the memory of `scheduler` again after an idle minute
    #[arg(long)]
    rest: bool,
    /// Create the pods of `scheduler` at this rate per second
    #[arg(long, value_name = "NUMBER")]
    rate: Option<f64>,
}

pub fn measure(binary: &Path, options: &Options, upstream: Option<&PathBuf>) -> Result<Report> {
    let chosen = workloads::chosen(&options.workload);
    ensure!(!chosen.is_empty(), "no workload has {:?} in its name", options.workload);
    let mut sides = options.side.clone();
    if sides.is_empty() {
        sides.push(Side::Knarr);
        if upstream.is_some() {
            sides.extend([Side::KubeScheduler, Side::Kubernetes]);
        }
    }
    let arrival = match options.rate {
        Some(rate) => Arrival::Rate(rate),
        None if options.backlog => Arrival::Backlog,
        None => Arrival::AtOnce,
    };
    let mut report = Report::new("scheduler");
    for workload in chosen {
        for side in &sides {
            eprintln!("{} on {}", workload.name, side.name());
            let what = format!("{} {}", workload.name, side.name());
            match one(binary, *side, workload, options, arrival, upstream) {
                Ok((outcome, rest)) => {
                    add(&mut report, &what, &outcome, arrival);
                    if let Some(rest) = rest {
                        report.add(&format!("{what} memory at rest"), rest, "MB");
                    }
                }
                Err(error) => {
                    eprintln!("{what}: {error:#}");
                    report.add(&format!("{what} failed"), 1.0, "");
                }
            }
        }
        if let Some(floor) = workload.floor {
            report.add(&format!("{} upstream's threshold", workload.name), f64::from(floor), "pods/s");
        }
    }
    Ok(report)
}

fn one(
    binary: &Path,
    side: Side,
    workload: &Workload,
    options: &Options,
    arrival: Arrival,
    upstream: Option<&PathBuf>,
) -> Result<(Outcome, Option<f64>)> {
    let mut plane = ControlPlane::start(side, binary, upstream.map(PathBuf::as_path))?;
    let outcome = run::run(&mut plane, workload, options.shrink, arrival)?;
    if !options.rest {
        return Ok((outcome, None));
    }
    std::thread::sleep(REST);
    Ok((outcome, Some(plane.used()?.1)))
}

fn add(report: &mut Report, what: &str, outcome: &Outcome, arrival: Arrival) {
    let pods = outcome.pods as f64;
    let rate = outcome.per_second;
    report.add(what, rate, "pods/s");
    if let Arrival::Rate(_) = arrival {
        report.add_times(&format!("{what} creation to binding"), &outcome.latencies);
    } else {
        let created = pods / outcome.creating.as_secs_f64().max(1e-9);
        report.add(&format!("{what} created"), created, "pods/s");
    }
    let cpu = outcome.cpu.as_secs_f64() * 1000.0 / pods;
    report.add(&format!("{what} processor time a pod"), cpu, "ms");
    report.add(&format!("{what} memory"), outcome.memory, "MB");
    let median = percentile(&outcome.latencies, 0.5).as_secs_f64();
    eprintln!("  {rate:.0} pods/s, {cpu:.2} ms a pod, {median:.2} s from creation to binding");
}
