//! `cargo xtask test`: every test there is, the end-to-end ones against the program built with them.

use anyhow::{Result, bail};

use crate::{cargo, release_binary, requirements};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --release\n  cargo xtask test -- --package knarr --test e2e b5_"
)]
pub struct Args {
    /// Drive the release binary in the end-to-end tests
    #[arg(long)]
    release: bool,
    /// Arguments for `cargo test` instead of `--workspace`
    #[arg(last = true, value_name = "ARGUMENTS")]
    cargo: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    // Said before minutes of building are spent.
    let missing = requirements::missing();
    if !missing.is_empty() {
        bail!("the tests need:\n  {}\n`.ci/run` installs them on Debian", missing.join("\n  "));
    }
    let mut command = cargo(&["test"]);
    if args.release {
        command.env("KNARR_BIN", release_binary()?);
    }
    if args.cargo.is_empty() {
        // Every program runs, whichever of them fails: one run tells all there is to mend.
        command.args(["--workspace", "--no-fail-fast"]);
    }
    command.args(&args.cargo);
    crate::run(command)
}
