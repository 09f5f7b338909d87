//! Removes every trace of sandboxes and containers, whether or not their shims are still alive. Cgroups above
//! them that another data folder may share are kept.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::cgroups::Cgroups;
use super::state::{self, SandboxFolder, SandboxRecord};
use super::{Error, Result, sys};

const DEATH_ATTEMPTS: u32 = 400;
const DEATH_PAUSE: Duration = Duration::from_millis(5);

/// Counts of what was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PurgeReport {
    pub sandboxes: usize,
    pub processes: usize,
    pub mounts: usize,
}

/// The cgroups that a runtime used.
#[derive(Debug, Clone, Copy)]
pub struct PurgeCgroups<'a> {
    /// As given to the runtime, for example `/kubepods`.
    pub root: &'a str,
    pub shims: &'a str,
    /// Cgroups of pods below `root` that may have no sandbox, for example `burstable/podUID`.
    pub pods: &'a [String],
}

/// Kills the shims and containers of the state folder, and removes their cgroups, their mounts and the folder.
/// Blocks for up to seconds.
pub fn purge(state_dir: &Path, of: PurgeCgroups<'_>) -> Result<PurgeReport> {
    let mut report = PurgeReport::default();
    let state_dir = match fs::canonicalize(state_dir) {
        Ok(path) => Some(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::file("open", state_dir)(error)),
    };
    let (cgroups, shims) = (Cgroups::detect(of.root)?, Cgroups::detect(of.shims)?);
    let mut own: Vec<(Cgroups, String)> =
        of.pods.iter().map(|path| (cgroups.clone(), path.clone())).collect();
    if let Some(state_dir) = &state_dir {
        // Kill the shims first: their containers die with them, and no shim can start another one.
        for id in state::folder_names(&state::sandboxes(state_dir)) {
            report.sandboxes += 1;
            let folder = SandboxFolder::new(state::sandboxes(state_dir).join(id));
            report.processes += usize::from(kill_shim(&folder));
            own.extend(cgroups_of(&folder));
        }
    }
    for (cgroups, path) in own {
        report.processes += cgroups.processes(&path).len();
        cgroups.kill_all(&path);
        cgroups.remove(&path)?;
    }
    for folder in ["besteffort", "burstable", ""] {
        cgroups.remove_if_unused(folder);
    }
    shims.remove_if_unused("");
    if let Some(state_dir) = &state_dir {
        report.mounts = state::unmount_below(state_dir);
        crate::remove_folder(state_dir).map_err(Error::file("remove", state_dir))?;
    }
    Ok(report)
}

/// Returns the cgroups of a sandbox: its pod's, or those of its containers if the pod has none.
fn cgroups_of(folder: &SandboxFolder) -> Vec<(Cgroups, String)> {
    let Some(record) = state::read_json::<SandboxRecord>(&folder.record()) else { return Vec::new() };
    let parent = record.config.cgroup_parent.as_str();
    let paths = match parent.trim_matches('/') {
        "" => state::folder_names(&folder.containers()),
        parent => vec![parent.to_owned()],
    };
    paths.into_iter().map(|path| (record.cgroups.clone(), path)).collect()
}

/// Kills the shim whose pid the folder records, if that process still is this sandbox's shim, and waits until
/// it has ended. Returns whether there was one.
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

/// Decides by the command line whether the process is this sandbox's shim, because pids are reused. The command
/// line of a zombie is empty.
fn is_shim(pid: i32, folder: &SandboxFolder) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == folder.path().as_os_str().as_bytes())
}
