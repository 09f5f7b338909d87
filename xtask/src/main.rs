//! Project tasks: `cargo xtask <task>`.

mod bench;
mod cis;
mod clients;
mod codegen;
mod conformance;
mod escapes;
mod fuzz;
mod http;
mod simulate;
mod soak;
mod test;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use knarr_sandbox::{requirements, sandbox};
pub(crate) use workspace::{cargo, release_binary, root, run};

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
