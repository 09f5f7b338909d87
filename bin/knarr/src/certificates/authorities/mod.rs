//! `knarr certificates rotate-ca`: replaces authorities by new ones in three steps, while pods keep running.

mod disk;
pub mod plan;
pub mod served;
pub mod standing;
mod waiting;

#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use nix::fcntl::Flock;

use disk::resume;
pub use disk::{further_token_keys, load};
use plan::{Phase, Rotation, Step, Waiting};

use crate::layout::Layout;
use crate::pki::{self, Pki};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  knarr certificates rotate-ca begin\n  knarr certificates rotate-ca status\n  \
    knarr certificates rotate-ca sign\n  knarr certificates rotate-ca finish\n\n\
    After each step the server must be restarted; pods keep running. docs/certificates.md says what happens and \
    what to wait for."
)]
pub struct RotateCaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the phase of a rotation, and what it waits for
    Status,
    /// Create new authorities, which are trusted beside the old ones
    Begin {
        /// Authorities to rotate [default: all]
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Sign with the new authorities
    Sign {
        /// Do not wait until all clients trust the new authorities
        #[arg(long)]
        force: bool,
    },
    /// Trust only the new authorities
    Finish {
        /// Do not wait until nothing signed by the old authorities is in use
        #[arg(long)]
        force: bool,
    },
    /// Cancel a rotation before its new authorities sign
    Cancel,
}

pub fn run(layout: &Layout, args: &RotateCaArgs) -> Result<()> {
    let folder = layout.pki();
    if !folder.join("ca.key").exists() {
        bail!(
            "{} holds no authorities: name a server's data folder with --data-dir",
            layout.root().display()
        );
    }
    let _lock = pki::lock_soon(&folder)?;
    // First, complete what a killed process left undone.
    resume(&folder)?;
    let current = load(&folder)?;
    let (step, forced) = match &args.action {
        Action::Status => return status(layout, current.as_ref()),
        Action::Begin { names } => (Step::Begin(names.clone()), false),
        Action::Sign { force } => (Step::Sign, *force),
        Action::Finish { force } => (Step::Finish, *force),
        Action::Cancel => (Step::Cancel, false),
    };
    let now = SystemClock.now();
    let on = match &current {
        Some(rotation) => waiting::on(layout, rotation, now)?,
        None => Vec::new(),
    };
    let mut next = plan::take(current.as_ref(), &step, &Waiting { on, forced }, now)?;
    // Servers order rotations by their start times, so a new one must be later than the last, even if the
    // clock was set back.
    if let (Step::Begin(_), Some(last)) = (&step, disk::taken(&folder)?) {
        next.begun = next.begun.max(last.begun.checked_add(Duration::from_secs(1))?);
    }
    if let Step::Begin(_) = step {
        let pki = Pki::open(folder.clone())?;
        pki.authorities()?;
        disk::prepare(&pki, &folder, &next.names).context("the new authorities were not made")?;
    }
    disk::enter(&folder, &next)?;
    println!("{}: {}", next.names.join(", "), next.phase.words());
    println!("restart the server now; pods keep running");
    if let Some(then) = then(next.phase) {
        println!("then {then}");
    }
    Ok(())
}

/// The authorities with which a server starts. No other process changes them until the lock is dropped.
pub struct Opened {
    pub pki: Pki,
    /// The rotation in progress.
    pub rotation: Option<Rotation>,
    pub lock: Flock<File>,
}

/// Opens the folder for a server's start: waits until other processes have released it, and completes a step
/// that one of them left undone.
pub fn open(folder: &Path, clock: Arc<dyn Clock>) -> Result<Opened> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let lock = pki::wait_for_lock(folder)?;
    resume(folder).context("the rotation of authorities cannot continue")?;
    let rotation = load(folder)?;
    Ok(Opened { pki: Pki::open_at(folder.to_owned(), clock)?, rotation, lock })
}

fn then(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Distribute => {
            Some("`knarr certificates rotate-ca sign`, once `rotate-ca status` waits for nothing")
        }
        Phase::Sign => {
            Some("`knarr certificates rotate-ca finish`, once `rotate-ca status` waits for nothing")
        }
        Phase::Finish | Phase::Cancel => None,
    }
}

fn status(layout: &Layout, current: Option<&Rotation>) -> Result<()> {
    let Some(rotation) = current else {
        println!("no rotation is under way");
        return Ok(());
    };
    println!("{}: {}", rotation.names.join(", "), rotation.phase.words());
    println!("begun {}, in this phase since {}", rotation.begun, rotation.since);
    let on = waiting::on(layout, rotation, SystemClock.now())?;
    on.iter().for_each(|on| println!("waits for {on}"));
    if let (true, Some(then)) = (on.is_empty(), then(rotation.phase)) {
        println!("continue with {then}");
    }
    Ok(())
}
