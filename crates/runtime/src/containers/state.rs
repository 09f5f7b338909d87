//! The state folder: its layout, and writing its files so that a crash leaves the old or the new content, never
//! half.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cgroups::Cgroups;
use super::protocol::incompatible;
use super::spec::SandboxConfig;

/// The folder of one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxFolder(PathBuf);

/// Written once by the server before the shim starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// The protocol version of the server and of the shim that it started; see `protocol::VERSION`.
    #[serde(default)]
    pub version: u32,
    pub config: SandboxConfig,
    pub created_at: Timestamp,
    pub cgroups: Cgroups,
    pub shim_cgroups: Cgroups,
}

/// The state of a sandbox left by an earlier server, or by one of another version.
pub enum Left {
    Record(Box<SandboxRecord>),
    /// A sandbox that this version cannot manage: the reason, and its pod's cgroup if that can be read.
    Foreign {
        why: String,
        cgroup_parent: Option<String>,
    },
    /// The server died before it had written the record.
    Nothing,
}

impl Left {
    /// Reads the record of a sandbox folder.
    pub fn read(folder: &SandboxFolder) -> Self {
        let foreign = |why: String| Self::Foreign { why, cgroup_parent: None };
        let record = match fs::read(folder.record()) {
            Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
                Ok(record) => record,
                Err(error) => return foreign(format!("its record is damaged: {error}")),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::Nothing,
            // Processes may still run in the sandbox, so it does not count as empty.
            Err(error) => return foreign(format!("its record cannot be read: {error}")),
        };
        let version =
            record["version"].as_u64().map_or(0, |version| u32::try_from(version).unwrap_or(u32::MAX));
        let cgroup_parent = record["config"]["cgroup_parent"].as_str().map(str::to_owned);
        let why = match (incompatible(version), serde_json::from_value::<SandboxRecord>(record)) {
            (None, Ok(record)) => return Self::Record(Box::new(record)),
            (None, Err(error)) => format!("its record, of version {version}, is not understood: {error}"),
            (Some(why), _) => why,
        };
        Self::Foreign { why, cgroup_parent }
    }
}

impl SandboxFolder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn record(&self) -> PathBuf {
        self.0.join("sandbox.json")
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("shim.sock")
    }

    pub fn pid_file(&self) -> PathBuf {
        self.0.join("shim.pid")
    }

    /// The file that receives the shim's standard error.
    pub fn shim_log(&self) -> PathBuf {
        self.0.join("shim.log")
    }

    /// The bind mount that keeps the network namespace alive.
    pub fn netns(&self) -> PathBuf {
        self.0.join("netns")
    }

    /// The bind mount that keeps the user namespace alive, if the sandbox has one.
    pub fn userns(&self) -> PathBuf {
        self.0.join("userns")
    }

    /// The pod's /dev/shm.
    pub fn shm(&self) -> PathBuf {
        self.0.join("shm")
    }

    /// The procfs of the pid namespace that containers share, if the sandbox has one.
    pub fn procfs(&self) -> PathBuf {
        self.0.join("proc")
    }

    /// A marker file that exists once the shim was asked to stop.
    pub fn stopped_mark(&self) -> PathBuf {
        self.0.join("stopped")
    }

    pub fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    pub fn container(&self, id: &str) -> PathBuf {
        self.containers().join(id)
    }

    pub fn spec(&self, id: &str) -> PathBuf {
        self.container(id).join("spec.json")
    }

    pub fn status(&self, id: &str) -> PathBuf {
        self.container(id).join("status.json")
    }

    /// Returns the ids of the containers that have a folder, sorted.
    pub fn container_ids(&self) -> Vec<String> {
        folder_names(&self.containers())
    }
}

/// Returns the folder that holds the sandboxes of a state folder.
pub fn sandboxes(state_dir: &Path) -> PathBuf {
    state_dir.join("sandboxes")
}

/// Returns the names of the folders in a folder, sorted; none if it does not exist.
pub fn folder_names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

/// Replaces a file atomically. It is not synced: after a power loss, none of the processes it describes is
/// alive.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec(value).map_err(io::Error::other)?)?;
    fs::rename(&temporary, path)
}

/// Reads and decodes a file; `None` if it is missing or damaged.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Creates a folder, with its parents, that only root may enter.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Unmounts everything at or below `folder`, inner mounts first, and returns how many mounts there were.
pub fn unmount_below(folder: &Path) -> usize {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut count = 0;
    for point in mount_points_below(&mountinfo, folder).iter().rev() {
        let Ok(point) = super::sys::path_cstring(point) else { continue };
        count += usize::from(super::mount_api::unmount_detach(&point).is_ok());
    }
    count
}

/// Returns the mount points at or below `folder`, in the order they were mounted.
fn mount_points_below(mountinfo: &str, folder: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| PathBuf::from(unescape(point))).filter(|point| point.starts_with(folder)).collect()
}

/// Decodes the octal escapes that mountinfo uses for space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points() {
        let info = "1 0 1:1 / / rw - ext4 a rw\n2 1 1:2 / /s/a\\040b rw - tmpfs t rw\n3 1 1:2 / /sx rw - tmpfs t rw\n";
        assert_eq!(mount_points_below(info, Path::new("/s")), [PathBuf::from("/s/a b")]);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_one_that_was_never_written() {
        let path = std::env::temp_dir().join(format!("knarr-left-{}", std::process::id()));
        let folder = SandboxFolder::new(&path);
        fs::create_dir_all(&path).unwrap();
        assert!(matches!(Left::read(&folder), Left::Nothing));
        fs::write(folder.record(), "{").unwrap();
        assert!(matches!(Left::read(&folder), Left::Foreign { .. }));
        fs::remove_file(folder.record()).unwrap();
        // The record exists, but reading it fails.
        fs::create_dir(folder.record()).unwrap();
        assert!(matches!(Left::read(&folder), Left::Foreign { .. }));
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn json_round_trip_and_damage() {
        let folder = std::env::temp_dir().join(format!("knarr-state-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.json");
        write_json(&path, &7).unwrap();
        assert_eq!(read_json::<i32>(&path), Some(7));
        fs::write(&path, "").unwrap();
        assert_eq!(read_json::<i32>(&path), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
