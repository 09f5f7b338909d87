//! `cargo xtask test`: every test there is, the end-to-end ones against the release binary.

use anyhow::{Result, bail};

use crate::{cargo, release_binary, requirements};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test -- --package knarr --test e2e b5_")]
pub struct Args {
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
    let binary = release_binary()?;
    let mut command = cargo(&["test"]);
    if args.cargo.is_empty() {
        command.arg("--workspace");
    }
    command.args(&args.cargo).env("KNARR_BIN", binary);
    crate::run(command)
}
