//! The `knarr` program: one subcommand per role, one file each.

#[macro_use]
mod output;

mod access;
mod addons;
mod agent;
mod api_flags;
mod backup;
mod certificate;
mod certificates;
mod check;
mod cidrs;
mod component;
mod control_plane;
mod controller_flags;
mod controller_manager;
mod example_images;
mod explain;
mod followed_kubeconfig;
mod image;
mod kubeconfig;
mod layout;
mod leading;
mod logging;
mod memory;
mod node;
mod node_network;
mod node_reference;
mod node_runtime;
mod oom_score;
mod open_files;
mod picture;
mod pki;
mod pod_network;
mod preflight;
mod private_files;
mod progress;
mod renewal;
mod reset;
mod scheduler;
mod scheduling_questions;
mod scrub;
mod server;
mod serving;
mod shown_flags;
mod signals;
mod signer;
mod simulate;
mod store;
mod web;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kubernetes in one small program
#[derive(Parser)]
#[command(
    name = "knarr",
    version,
    after_help = "Examples:\n  knarr server\n  knarr agent --kubeconfig worker-1.kubeconfig\n  knarr image ls\n  knarr explain pod web-1\n  knarr simulate -f web.yaml\n  knarr backup -o cluster.knarr\n  knarr reset --yes"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "made once, at the start")]
enum Command {
    /// Run a cluster: control plane and node in one process
    Server(server::ServerArgs),
    /// Run a node of an existing cluster
    Agent(agent::AgentArgs),
    /// Run the scheduler alone
    Scheduler(Box<scheduler::SchedulerArgs>),
    /// Run controllers alone
    ControllerManager(Box<controller_manager::ControllerManagerArgs>),
    /// Work with the node's images
    Image(image::ImageArgs),
    /// Write a kubeconfig for a user or a node
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Show certificates and when they expire
    Certificates(certificates::CertificatesArgs),
    /// Explain why a pod is on its node or on none
    Explain(explain::ExplainArgs),
    /// Show where the pods of manifests would be placed
    Simulate(simulate::SimulateArgs),
    /// Write the cluster's state and keys to a file
    Backup(backup::BackupArgs),
    /// Restore a cluster from a backup
    Restore(backup::restore::RestoreArgs),
    /// Check the cluster's data for damage, and repair it
    Check(check::CheckArgs),
    /// Remove every trace of a node
    Reset(reset::ResetArgs),
    /// Serve files or a greeting with the host name: the web server of the examples
    Web(web::Web),
    /// Print a shell completion script
    #[command(after_help = "Examples:\n  source <(knarr completion bash)")]
    Completion { shell: clap_complete::Shell },
}

fn main() -> ExitCode {
    keep_pages_small();
    // A shim has one thread and very little memory, so it is started before anything else.
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|a| a == layout::SHIM) {
        open_files::restore();
        let folder = arguments.into_iter().skip(1).map(|a| a.to_string_lossy().into_owned());
        let code = knarr_runtime::containers::shim_main(folder);
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let command = Cli::parse().command;
    logging::start();
    if serves(&command) {
        shown_flags::ShownFlags::note(Cli::command());
        open_files::raise();
    }
    if matches!(command, Command::Server(_) | Command::Agent(_)) {
        oom_score::protect();
    }
    match run(command) {
        Ok(()) if output::is_whole() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Turns transparent huge pages off for this process. The allocator asks for huge pages, of which an idle
/// process fills little: they cost 6 MB in a shim that needs a tenth of that, and a third of the server's
/// memory. Child processes inherit the setting; containers get huge pages back before they start.
fn keep_pages_small() {
    // SAFETY: a plain system call. A kernel that does not know the option refuses it, which does no harm.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Returns whether a command runs until it is stopped and serves clients.
fn serves(command: &Command) -> bool {
    matches!(
        command,
        Command::Server(_) | Command::Agent(_) | Command::Scheduler(_) | Command::ControllerManager(_)
    )
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Server(args) => server::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Scheduler(args) => scheduler::run(*args),
        Command::ControllerManager(args) => controller_manager::run(*args),
        Command::Image(args) => image::run(args),
        Command::Kubeconfig(args) => kubeconfig::run(args),
        Command::Certificates(args) => certificates::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Restore(args) => backup::restore::run(args),
        Command::Check(args) => check::run(args),
        Command::Reset(args) => reset::run(args),
        Command::Web(web) => web::run(web),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "knarr", &mut script);
            print!("{}", String::from_utf8_lossy(&script));
            Ok(())
        }
    }
}
