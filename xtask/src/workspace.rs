//! The workspace: its folder, cargo in it, and the binary that it builds.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Returns the workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns a cargo command in the workspace's folder.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Runs a command that must succeed.
pub fn run(mut command: Command) -> Result<()> {
    let line = format!("{command:?}").replace('"', "");
    let status = command.status().with_context(|| format!("cannot run {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// Builds the release binary, unless `KNARR_BIN` names one; returns its path.
pub fn release_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("KNARR_BIN") {
        return PathBuf::from(&path)
            .canonicalize()
            .with_context(|| format!("KNARR_BIN is {}", path.display()));
    }
    run(cargo(&["build", "--release", "--package", "knarr"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let path = target.join("release/knarr");
    path.canonicalize().with_context(|| format!("{} was not built", path.display()))
}
