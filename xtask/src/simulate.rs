//! `cargo xtask simulate`: runs many simulations of controllers and scheduler, each by its seed; prints the
//! seeds that failed.

use anyhow::Result;

use crate::{cargo, run};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask simulate --seeds 10000\n  cargo xtask simulate --seed 7                     # one of them again\n  cargo xtask simulate --seed 7 --show pods,jobs    # and what happened to these"
)]
pub struct Args {
    /// First seed; without --seeds the only one
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds
    #[arg(long)]
    seeds: Option<u64>,
    /// Number of parallel simulations [default: one for each processor]
    #[arg(long)]
    jobs: Option<usize>,
    /// Print every change of objects of these plurals
    #[arg(long, value_name = "PLURALS")]
    show: Option<String>,
}

const TEST: &str = "nothing_forbidden_happens_and_the_cluster_comes_to_rest";
/// The default number of seeds.
const SEEDS: u64 = 1000;

pub fn simulate(args: &Args) -> Result<()> {
    let count = args.seeds.unwrap_or(if args.seed.is_some() { 1 } else { SEEDS });
    let mut command = cargo(&["test", "--profile", "simulation", "--package", "knarr-testing"]);
    command.args(["--test", "simulation", "--", "--exact", TEST, "--nocapture"]);
    command.env("KNARR_SEED", args.seed.unwrap_or(0).to_string());
    command.env("KNARR_SEEDS", count.to_string());
    if let Some(jobs) = args.jobs {
        command.env("KNARR_JOBS", jobs.to_string());
    }
    if let Some(plurals) = &args.show {
        command.env("KNARR_SHOW", plurals);
    }
    run(command)
}
