//! The `knarr` program: one subcommand per role, one file each.

mod pki;
mod preflight;
mod progress;
mod web;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kubernetes in one small program
#[derive(Parser)]
#[command(name = "knarr", version, after_help = "Examples:\n  knarr server\n  knarr image ls\n  knarr reset --yes")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve files and greet with the host name: the examples' web server
    Web(web::Web),
    /// Print a shell completion script
    #[command(after_help = "Examples:\n  source <(knarr completion bash)")]
    Completion {
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Web(web) => web::run(web),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "knarr", &mut std::io::stdout());
            Ok(())
        }
    }
}
