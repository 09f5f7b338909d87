//! The AppArmor profile of the program that a process becomes.

use std::fs::OpenOptions;
use std::io::{self, Write};

use super::Failure;

/// The second file is shared by all security modules; kernels before 5.8 have only that one.
const FILES: [&str; 2] = ["/proc/self/attr/apparmor/exec", "/proc/self/attr/exec"];

/// Sets the profile for the next execve; processes that are cloned before that execve inherit the setting. Must be
/// called while /proc is the host's: a container may have mounted anything there (CVE-2019-16884).
pub fn on_exec(profile: &str) -> Result<(), Failure> {
    let written = write(FILES[0], profile);
    let written = match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => write(FILES[1], profile),
        other => other,
    };
    written.map_err(Failure::step(format!("unable to apply apparmor profile {profile:?}")))
}

fn write(file: &str, profile: &str) -> io::Result<()> {
    // The kernel takes each write as one command.
    OpenOptions::new().write(true).open(file)?.write_all(format!("exec {profile}").as_bytes())
}
