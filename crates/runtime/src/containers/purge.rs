//! Removes every trace of sandboxes and containers, whether or not their shims still live.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::cgroups::Cgroups;
use super::state::{self, SandboxFolder};
use super::{Error, Result, sys};

const DEATH_ATTEMPTS: u32 = 400;
const DEATH_PAUSE: Duration = Duration::from_millis(5);

/// What there was to remove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PurgeReport {
    pub sandboxes: usize,
    pub processes: usize,
    pub mounts: usize,
}

/// Kills shims and containers, removes cgroups, mounts and the state folder. Blocks for up to seconds.
/// `cgroup_roots` are those given to the runtime, such as `/kubepods` and `/knarr-shims`.
pub fn purge(state_dir: &Path, cgroup_roots: &[&str]) -> Result<PurgeReport> {
    let mut report = PurgeReport::default();
    let state_dir = match fs::canonicalize(state_dir) {
        Ok(path) => Some(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::file("open", state_dir)(error)),
    };
    if let Some(state_dir) = &state_dir {
        // Shims first: containers die with them, and nothing is started any more.
        for id in state::folder_names(&state::sandboxes(state_dir)) {
            report.sandboxes += 1;
            let folder = SandboxFolder::new(state::sandboxes(state_dir).join(id));
            report.processes += usize::from(kill_shim(&folder));
        }
    }
    for root in cgroup_roots {
        let cgroups = Cgroups::detect(root)?;
        report.processes += cgroups.processes("").len();
        cgroups.kill_all("");
        cgroups.remove("")?;
    }
    if let Some(state_dir) = &state_dir {
        report.mounts = state::unmount_below(state_dir);
        crate::remove_folder(state_dir).map_err(Error::file("remove", state_dir))?;
    }
    Ok(report)
}

/// Kills the shim whose pid the folder names, if that pid still is this sandbox's shim, and waits for
/// its end. Whether there was one.
pub(super) fn kill_shim(folder: &SandboxFolder) -> bool {
    let text = fs::read_to_string(folder.pid_file()).unwrap_or_default();
    let Ok(pid) = text.trim().parse::<i32>() else { return false };
    if pid <= 1 || !is_shim(pid, folder) {
        return false;
    }
    if sys::kill(pid, libc::SIGKILL).is_err() {
        return false;
    }
    for _ in 0..DEATH_ATTEMPTS {
        if !is_shim(pid, folder) {
            break;
        }
        std::thread::sleep(DEATH_PAUSE);
    }
    true
}

/// Pids are used again; the command line tells whose this one is. A zombie's is empty.
fn is_shim(pid: i32, folder: &SandboxFolder) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == folder.path().as_os_str().as_bytes())
}
