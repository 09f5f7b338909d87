//! AppArmor on the host: which profiles are loaded, and the default one for containers, which this program loads itself.
//!
//! Source: containerd's behaviour (`contrib/apparmor`), the kernel's `apparmorfs`.

mod profile;

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::wait_within;

pub use profile::DEFAULT_PROFILE;

/// A line for each loaded profile: `NAME (MODE)`.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
/// The program that turns a profile's text into what the kernel takes.
const PARSER: &str = "apparmor_parser";
/// The server's start waits for it.
const PARSER_TIMEOUT: Duration = Duration::from_secs(30);
/// Of what it says, more than a pipe holds.
const MAX_SAID: u64 = 64 << 10;
const PARSER_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{PARSER} is not installed")]
    NoParser,
    #[error("run {PARSER}")]
    Run(#[source] io::Error),
    #[error("{PARSER}: {0}")]
    Parser(String),
}

/// Whether the kernel has a profile of this name.
pub fn is_loaded(name: &str) -> io::Result<bool> {
    Ok(lists(&fs::read_to_string(LOADED)?, name))
}

/// Names may have blanks and parentheses themselves.
fn lists(profiles: &str, name: &str) -> bool {
    profiles.lines().filter_map(|line| line.rsplit_once(" (")).any(|(loaded, _)| loaded == name)
}

/// The profile that this process is under, if it is under one.
fn own() -> Option<String> {
    confined(&fs::read_to_string("/proc/self/attr/current").ok()?)
}

/// Of what the kernel says of a process: `NAME (MODE)`, or `unconfined`.
fn confined(label: &str) -> Option<String> {
    let (name, _) = label.trim_end_matches(['\0', '\n']).rsplit_once(" (")?;
    // As in a quoted string of a profile.
    (!name.contains(['"', '\\', '\n'])).then(|| name.to_owned())
}

/// Loads [`DEFAULT_PROFILE`], in place of one that an older version has loaded. Blocks.
pub fn load_default() -> Result<(), LoadError> {
    let folders = PARSER_FOLDERS.iter().map(|folder| Path::new(folder).join(PARSER));
    let parser = folders.into_iter().find(|path| path.is_file()).ok_or(LoadError::NoParser)?;
    let mut child = Command::new(parser)
        .args(["--replace", "--skip-cache", "--quiet"])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(LoadError::Run)?;
    // Far less than a pipe holds; a parser that ends early says why.
    let written =
        child.stdin.take().map(|mut stdin| stdin.write_all(profile::text(own().as_deref()).as_bytes()));
    let stderr = child.stderr.take();
    let status = wait_within(child, PARSER_TIMEOUT).map_err(LoadError::Run)?;
    match (status.success(), written) {
        (true, Some(Ok(()))) => Ok(()),
        (true, Some(Err(error))) => Err(LoadError::Run(error)),
        (true, None) => Err(LoadError::Run(io::ErrorKind::BrokenPipe.into())),
        (false, _) => {
            let mut said = Vec::new();
            // What cannot be read is not said.
            let _ = stderr.map(|stderr| stderr.take(MAX_SAID).read_to_end(&mut said));
            let said = String::from_utf8_lossy(&said);
            let said =
                said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
            Err(LoadError::Parser(if said.is_empty() { status.to_string() } else { said }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_profiles() {
        let profiles =
            "/usr/bin/man (enforce)\nweb (complain)\nodd (name) (enforce)\nknarr-default (enforce)\n";
        for (name, loaded) in [
            ("web", true),
            ("odd (name)", true),
            ("odd", false),
            (DEFAULT_PROFILE, true),
            ("web (complain)", false),
            ("we", false),
            ("", false),
        ] {
            assert_eq!(lists(profiles, name), loaded, "{name}");
        }
        assert!(!lists("", "web"));
    }

    #[test]
    fn the_own_profile() {
        for (label, name) in [
            ("unconfined\n", None),
            ("", None),
            ("lxc-container-default (enforce)\n", Some("lxc-container-default")),
            ("odd (name) (complain)", Some("odd (name)")),
            ("a\" { } (enforce)", None),
        ] {
            assert_eq!(confined(label).as_deref(), name, "{label}");
        }
    }
}
