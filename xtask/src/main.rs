//! Project tasks: `cargo xtask <task>`.

mod codegen;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Project tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the field-schema table from the published Kubernetes Go modules (needs `go` and a module proxy)
    Codegen(codegen::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Codegen(args) => codegen::run(&args),
    }
}
