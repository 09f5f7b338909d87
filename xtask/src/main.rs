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
    /// Run every test of the workspace, including the end-to-end tests
    Test(test::Args),
    /// Simulate controllers and scheduler with faults, by seed
    Simulate(simulate::Args),
    /// Measure the release binary: print a table, and one line of JSON at the end
    Bench(bench::Args),
    /// Run Kubernetes' own conformance suite against the release binary (needs `go`, a module proxy and mmdebstrap)
    Conformance(conformance::Args),
    /// Attempt known escapes of containers and pods, also on pure cgroup v2 (as root)
    Escapes(escapes::Args),
    /// Fuzz the decoders
    Fuzz(fuzz::Args),
    /// Run kube-bench with Knarr's profile against a server without flags (as root)
    Cis(cis::Args),
    /// Run other projects' clients against a fresh server (as root; downloads from PyPI, npm and the Go
    /// module registry)
    Clients(clients::Args),
    /// Run a server under kills and other faults, and check the answers that its clients got
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
