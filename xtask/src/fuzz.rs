//! `cargo xtask fuzz`: broken input for everything that decodes, for longer than the tests do.

use anyhow::Result;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask fuzz                       # the names of all targets\n  \
    cargo xtask fuzz json --seconds 60\n  cargo xtask fuzz apply --seconds 600 --seed 7")]
pub struct Args {
    /// What to fuzz; without it, the names of all targets
    name: Option<String>,
    /// For how long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Of the generator: the same seed is the same run
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let mut command = crate::cargo(&["run", "--quiet", "--release", "--package", "knarr-fuzz", "--"]);
    if let Some(name) = &args.name {
        command.args([name, &args.seconds.to_string(), &args.seed.to_string()]);
    }
    crate::run(command)
}
