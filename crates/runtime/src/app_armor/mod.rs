//! AppArmor on the host: lists the loaded profiles, and loads the default profile for containers.
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

/// A file with one line for each loaded profile: `NAME (MODE)`.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
/// The program that compiles a profile's text and loads it into the kernel.
const PARSER: &str = "apparmor_parser";
/// The limit for the parser, for which the server's start waits.
const PARSER_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit for the parser's error output, which is more than a pipe holds.
const MAX_OUTPUT: u64 = 64 << 10;
const PARSER_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Why the default profile could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{PARSER} is not installed")]
    NoParser,
    #[error("run {PARSER}")]
    Run(#[source] io::Error),
    #[error("{PARSER}: {0}")]
    Parser(String),
}

/// Returns whether the kernel has a profile with this name.
pub fn is_loaded(name: &str) -> io::Result<bool> {
    Ok(lists(&fs::read_to_string(LOADED)?, name))
}

/// Searches the list of profiles. Names may contain blanks and parentheses.
fn lists(profiles: &str, name: &str) -> bool {
    profiles.lines().filter_map(|line| line.rsplit_once(" (")).any(|(loaded, _)| loaded == name)
}

/// Returns the profile of this process, if it is confined.
fn own() -> Option<String> {
    confined(&fs::read_to_string("/proc/self/attr/current").ok()?)
}

/// Parses the kernel's label of a process: `NAME (MODE)`, or `unconfined`.
fn confined(label: &str) -> Option<String> {
    let (name, _) = label.trim_end_matches(['\0', '\n']).rsplit_once(" (")?;
    // A name with these characters could not be used in a quoted string of a profile.
    (!name.contains(['"', '\\', '\n'])).then(|| name.to_owned())
}

/// Loads [`DEFAULT_PROFILE`] and replaces one that an older version has loaded. Blocks.
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
    // The text is much shorter than a pipe holds; if the parser ends early, its output explains why.
    let written =
        child.stdin.take().map(|mut stdin| stdin.write_all(profile::text(own().as_deref()).as_bytes()));
    let stderr = child.stderr.take();
    let status = wait_within(child, PARSER_TIMEOUT).map_err(LoadError::Run)?;
    match (status.success(), written) {
        (true, Some(Ok(()))) => Ok(()),
        (true, Some(Err(error))) => Err(LoadError::Run(error)),
        (true, None) => Err(LoadError::Run(io::ErrorKind::BrokenPipe.into())),
        (false, _) => {
            let mut output = Vec::new();
            // Output that cannot be read is omitted.
            let _ = stderr.map(|stderr| stderr.take(MAX_OUTPUT).read_to_end(&mut output));
            let output = String::from_utf8_lossy(&output);
            let output =
                output.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
            Err(LoadError::Parser(if output.is_empty() { status.to_string() } else { output }))
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
