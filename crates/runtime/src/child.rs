//! Runs programs until they end.

use std::io;
use std::os::fd::AsRawFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::containers::sys;

/// Waits until a process has ended, and kills it if that takes too long.
pub fn wait_within(mut child: Child, timeout: Duration) -> io::Result<ExitStatus> {
    let process = sys::pidfd_open(child.id() as i32)?;
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut polled = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        let ready = sys::check(unsafe { libc::poll(&raw mut polled, 1, left.as_millis() as libc::c_int) });
        match ready {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other(format!("no end within {} s", timeout.as_secs())));
            }
            Ok(_) => return child.wait(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed() {
        let spawn = |seconds: &str| Command::new("sleep").arg(seconds).spawn().unwrap();
        assert!(wait_within(spawn("0"), Duration::from_secs(60)).unwrap().success());
        let child = spawn("1000");
        let pid = child.id();
        let error = wait_within(child, Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().starts_with("no end within"), "{error}");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
