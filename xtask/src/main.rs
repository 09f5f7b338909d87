//! Project tasks: `cargo xtask <task>`.

mod bench;
mod cis;
mod clients;
mod codegen;
mod conformance;
mod escapes;
mod fuzz;
mod http;
#[path = "../../bin/knarr/tests/e2e/requirements.rs"]
mod requirements;
#[path = "../../bin/knarr/tests/e2e/sandbox.rs"]
#[allow(dead_code, reason = "the end-to-end tests use more of it")]
mod sandbox;
mod simulate;
mod soak;
mod test;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Project tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every test of the workspace, end-to-end ones included
    Test(test::Args),
    /// Run controllers and scheduler through bad days, by the seed
    Simulate(simulate::Args),
    /// Measure the release binary: a table, and last one line of JSON
    Bench(bench::Args),
    /// Run Kubernetes' own conformance suite against the release binary (needs `go`, a module proxy and mmdebstrap)
    Conformance(conformance::Args),
    /// Try the known ways out of containers and pods, on pure cgroup v2, too (as root)
    Escapes(escapes::Args),
    /// Feed broken input to what decodes, for as long as you like
    Fuzz(fuzz::Args),
    /// Run kube-bench with Knarr's profile against a server without flags (as root)
    Cis(cis::Args),
    /// Run other people's clients against a fresh server (as root; gets them from PyPI, npm and the Go module registry)
    Clients(clients::Args),
    /// Run a server under kills and other faults, and check what its clients were answered
    Soak(soak::Args),
    /// Write the field-schema table from the published Kubernetes Go modules (needs `go` and a module proxy)
    Codegen(codegen::Args),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Simulate(args) => simulate::simulate(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Conformance(args) => conformance::run(&args),
        Task::Escapes(args) => escapes::escapes(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Cis(args) => cis::run(&args),
        Task::Clients(args) => clients::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Codegen(args) => codegen::run(&args),
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// cargo, in the workspace's folder.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command that has to succeed.
fn run(mut command: Command) -> Result<()> {
    let line = format!("{command:?}").replace('"', "");
    let status = command.status().with_context(|| format!("cannot run {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// Builds the release binary, unless `KNARR_BIN` names one; returns its path.
fn release_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KNARR_BIN") {
        return PathBuf::from(&path)
            .canonicalize()
            .with_context(|| format!("KNARR_BIN is {}", path.display()));
    }
    run(cargo(&["build", "--release", "--package", "knarr"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let path = target.join("release/knarr");
    path.canonicalize().with_context(|| format!("{} was not built", path.display()))
}
