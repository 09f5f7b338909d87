//! `cargo xtask conformance`: runs Kubernetes' own conformance suite against a fresh cluster of two nodes.
//!
//! The repository contains nothing of the suite: the suite, kubectl and the programs of its test images are
//! built from the published Go modules, and the other images are assembled from Debian packages.

mod archive;
mod causes;
mod cluster;
mod images;
mod layers;
mod registry;
mod report;
mod suite;
mod table;
mod upstream;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use jiff::{Timestamp, Unit};
use sha2::{Digest, Sha256};

use report::{Results, Run, Spec};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask conformance --focus 'sig-node.*Probing'\n  cargo xtask conformance --list\n  \
    cargo xtask conformance --skip Serial --nodes 4\n  \
    cargo xtask conformance --all --focus UserNamespacesSupport"
)]
pub struct Args {
    /// Run only the specs whose name matches
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Leave out the specs whose name matches
    #[arg(long, value_name = "REGEX")]
    skip: Option<String>,
    /// Select from the whole suite; results of specs outside of conformance are not stored
    #[arg(long, conflicts_with = "fresh")]
    all: bool,
    /// Print the names of the specs instead of running them
    #[arg(long)]
    list: bool,
    /// Number of specs to run in parallel
    #[arg(long, value_name = "N", default_value_t = 4)]
    nodes: usize,
    /// Folder for builds, images, logs and results
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Discard the results of earlier runs instead of replacing only those of the specs that run
    #[arg(long)]
    fresh: bool,
    /// Do not update docs/CONFORMANCE.md
    #[arg(long)]
    no_table: bool,
    /// Commit that the binary of KNARR_BIN was built from; a binary that is built here has the tree's commit
    #[arg(long, value_name = "HASH")]
    commit: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let cache = args.cache.clone().unwrap_or_else(|| {
        std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| crate::root().join("target"), PathBuf::from)
            .join("conformance")
    });
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let cache = cache.canonicalize()?;
    let programs = upstream::Programs::build(&cache)?;
    let choice = suite::Choice { all: args.all, focus: args.focus.as_deref(), skip: args.skip.as_deref() };
    if args.list {
        let names = suite::list(&programs, &cache, choice)?;
        names.iter().for_each(|name| println!("{name}"));
        println!("{} specs", names.len());
        return Ok(());
    }
    let binary = crate::release_binary()?;
    let run = Run { began: began(), of: what_is_run(args.commit.as_deref(), &binary)? };
    let images = images::make(&programs, &cache)?;
    let cluster = cluster::Cluster::start(&binary, &images)?;
    let specs = suite::run(&programs, &cluster, &cache, choice, args.nodes)?;
    cluster.keep_logs(&cache)?;
    if !args.all {
        keep(args, &cache, &specs, &run)?;
    }
    println!("{}", report::summary(&specs));
    Ok(())
}

fn keep(args: &Args, cache: &Path, specs: &[Spec], run: &Run) -> Result<()> {
    let known = cache.join("results.json");
    let mut results = if args.fresh { Results::default() } else { Results::open(&known)? };
    results.replace(specs, run);
    results.save(&known)?;
    if !args.no_table {
        let path = crate::root().join("docs/CONFORMANCE.md");
        std::fs::write(&path, table::page(&results))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn began() -> String {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now).to_string()
}

/// Returns the commit of the binary under test, as far as it is known.
fn what_is_run(commit: Option<&str>, binary: &Path) -> Result<String> {
    if let Some(commit) = commit {
        return Ok(format!("commit `{commit}`"));
    }
    if std::env::var_os("KNARR_BIN").is_some() {
        let bytes = std::fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
        return Ok(format!("a binary from elsewhere (SHA-256 {:x})", Sha256::digest(bytes)));
    }
    let changed = if git(&["status", "--porcelain"])?.is_empty() { "" } else { ", with changes" };
    Ok(format!("commit `{}`{changed}", git(&["rev-parse", "HEAD"])?))
}

/// Returns the output of a git command in the tree.
fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(crate::root()).output();
    let output = output.context("cannot run git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
