//! The AppArmor profile of the program that a process becomes.

use std::fs::OpenOptions;
use std::io::{self, Write};

use super::Failure;

/// The second is the one that all security modules share, of kernels before 5.8.
const FILES: [&str; 2] = ["/proc/self/attr/apparmor/exec", "/proc/self/attr/exec"];

/// The next execve goes into the profile, also in processes that are cloned in between. To be called while /proc is the
/// host's: what a container has mounted there may be anything (CVE-2019-16884).
pub fn on_exec(profile: &str) -> Result<(), Failure> {
    let written = write(FILES[0], profile);
    let written = match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => write(FILES[1], profile),
        other => other,
    };
    written.map_err(Failure::step(format!("unable to apply apparmor profile {profile:?}")))
}

fn write(file: &str, profile: &str) -> io::Result<()> {
    // One write is one command.
    OpenOptions::new().write(true).open(file)?.write_all(format!("exec {profile}").as_bytes())
}
