//! `cargo xtask soak`: a server under faults, and checks of all that its clients were answered and shown.

mod check;
#[cfg(test)]
mod check_tests;
mod history;
mod linearizability;
mod revisions;
mod watches;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask soak --replay target/soak/seed-1-round-7.json")]
pub struct Args {
    /// Check a history that an earlier run kept once more
    #[arg(long, value_name = "FILE")]
    replay: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    replay(&args.replay)
}

fn replay(path: &Path) -> Result<()> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let history: history::History =
        serde_json::from_slice(&text).with_context(|| format!("{} is not a history", path.display()))?;
    let wrong = check::check(&history);
    wrong.iter().for_each(|sentence| println!("{sentence}"));
    if !wrong.is_empty() {
        bail!("{} violations in {}", wrong.len(), path.display());
    }
    println!("no violation in {} operations", history.ops.len());
    Ok(())
}
