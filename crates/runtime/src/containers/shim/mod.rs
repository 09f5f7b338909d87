//! The shim: one small single-threaded process per sandbox that outlives the server.
//!
//! It holds the sandbox's network, IPC and UTS namespaces, is the parent of the containers' first processes,
//! writes their logs, and records their exit codes.

mod connection;
mod container;
mod exec;
mod launch;
mod output;
mod pause;
mod requests;
mod serve;
mod setup;
mod user_namespace;

use std::io::Write;
use std::os::fd::AsFd;

use super::protocol::{self, Ready};
use super::state::{self, SandboxFolder, SandboxRecord};
use super::sys::{self, Forked};

/// The entry point of the binary's hidden `shim` command. `args` are the arguments after the command's name:
/// the sandbox's folder. Must be called while the process has one thread.
pub fn shim_main(args: impl IntoIterator<Item = String>) -> i32 {
    let Some(folder) = args.into_iter().next() else {
        note(format_args!("the sandbox's folder is missing"));
        return 2;
    };
    match detach(SandboxFolder::new(folder)) {
        Ok(code) => code,
        Err(error) => {
            announce(&Ready::Error(error));
            1
        }
    }
}

/// Clones the actual shim; the first process ends at once, so that the shim has no parent and no session of the
/// server.
fn detach(folder: SandboxFolder) -> Result<i32, String> {
    let _ = sys::close_from(3);
    let record: SandboxRecord = state::read_json(&folder.record())
        .ok_or_else(|| format!("{} is missing", folder.record().display()))?;
    if record.version != protocol::VERSION {
        // The program on disk was replaced while the server was running.
        let (server, own) = (record.version, protocol::VERSION);
        return Err(format!("the server speaks version {server} of the shim's protocol, this shim {own}"));
    }
    let cgroups = &record.shim_cgroups;
    cgroups.create("", &Default::default()).map_err(chain)?;
    let join = cgroups.join_handles("").map_err(chain)?;
    // SAFETY: this process has one thread.
    match unsafe { sys::clone3(0, join.unified.as_ref().map(AsFd::as_fd)) } {
        Err(error) => Err(format!("fork: {error}")),
        Ok(Forked::Parent { .. }) => Ok(0),
        Ok(Forked::Child) => {
            let result = join.enter().map_err(|error| format!("enter cgroup: {error}"));
            drop(join);
            Ok(live(result, folder, record))
        }
    }
}

fn live(entered: Result<(), String>, folder: SandboxFolder, record: SandboxRecord) -> i32 {
    let shim = entered.and_then(|()| setup::sandbox(folder.clone(), record));
    let mut shim = match shim {
        Ok(shim) => shim,
        Err(error) => {
            setup::tear_down(&folder);
            announce(&Ready::Error(error));
            return 1;
        }
    };
    announce(&Ready::Pid { pid: std::process::id() as i32, version: protocol::VERSION });
    setup::leave_standard_streams();
    match shim.serve() {
        Ok(()) => 0,
        Err(error) => {
            note(format_args!("{error}"));
            1
        }
    }
}

fn announce(ready: &Ready) {
    if let Ok(mut line) = serde_json::to_vec(ready) {
        line.push(b'\n');
        let _ = std::io::stdout().write_all(&line);
    }
}

/// Writes a line to the shim's log. A line that cannot be written is dropped: `eprintln!` would panic, and a
/// full disk would end the shim and its containers.
fn note(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "shim: {text}");
}

/// Joins an error and its sources to the one line that the server gets.
fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {}", sys::errno_text_of(&error.to_string()));
        source = error.source();
    }
    text
}
