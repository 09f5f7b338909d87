//! The state of the host that no attack may change; changes are reported and reverted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// Files that make the kernel run a program, or that control it.
const KERNEL_FILES: [&str; 4] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/sys/kernel/uevent_helper",
    "/proc/sys/kernel/domainname",
];
/// In the form of a container log, so that a reader that takes the file for a log shows it.
pub const CONTENT: &str = "2026-01-01T00:00:00Z stdout F what only the host has\n";
pub const WORDS: &str = "what only the host has";

/// A folder that no pod mounts, with a file, and the state of the host.
pub struct Host {
    pub marker: PathBuf,
    /// MAJOR:MINOR of a disk that the host can open, `0:0` if it has none.
    pub disk: String,
    before: BTreeMap<PathBuf, String>,
    program: (PathBuf, u64, u32),
    log: Option<File>,
}

impl Host {
    /// Records the state. The marker is created in `folder`; `program` is the runtime's executable.
    pub fn new(folder: &Path, program: PathBuf) -> Self {
        let marker = make_marker(&folder.join("marker"));
        let meta = fs::metadata(&program).expect("the program");
        let disk = disk(folder).unwrap_or_else(|| "0:0".to_owned());
        Self {
            marker,
            disk,
            before: kernel_files(),
            program: (program, meta.len(), meta.mode()),
            log: kernel_log(),
        }
    }

    /// Returns what has changed, one line each.
    pub fn changes(&mut self) -> Vec<String> {
        let mut changes = marker_changes(&self.marker);
        for (path, before) in &self.before {
            let now = fs::read_to_string(path).unwrap_or_default();
            if now != *before {
                changes.push(format!("{} is {now:?}, was {before:?}", path.display()));
                let _ = fs::write(path, before);
            }
        }
        let (program, size, mode) = &self.program;
        let meta = fs::metadata(program).expect("the program");
        if (meta.len(), meta.mode()) != (*size, *mode) {
            changes.push(format!("{} has been changed", program.display()));
            let _ = fs::set_permissions(program, fs::Permissions::from_mode(*mode));
        }
        let marker = self.marker.to_string_lossy().into_owned();
        let told = self.log.as_mut().map(records).unwrap_or_default();
        let bad = |line: &&String| line.contains(&marker) || line.contains("sysrq: HELP");
        changes.extend(told.iter().filter(bad).map(|line| format!("the kernel's log has: {line}")));
        changes
    }
}

/// Creates a folder with one file, both open to everyone, so that their modes do not protect them.
pub fn make_marker(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).expect("folder");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("mode");
    let file = folder.join("of-the-host");
    fs::write(&file, CONTENT).expect("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("mode");
    folder.to_owned()
}

/// Returns what was added to the marker beside its file, and what happened to the file.
pub fn marker_changes(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut changes: Vec<String> = entries
        .filter(|path| !path.ends_with("of-the-host"))
        .map(|path| format!("{} was made on the host", path.display()))
        .collect();
    let content = fs::read_to_string(folder.join("of-the-host")).unwrap_or_default();
    if content != CONTENT {
        changes.push(format!("the host's file in {} is {content:?}", folder.display()));
    }
    changes
}

fn kernel_files() -> BTreeMap<PathBuf, String> {
    let agents = ["/sys/fs/cgroup/release_agent".into()].into_iter().chain(
        fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path().join("release_agent")),
    );
    let paths = KERNEL_FILES.iter().map(PathBuf::from).chain(agents);
    paths.filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?))).collect()
}

/// Returns the first disk for which a device node can be created and opened here.
fn disk(folder: &Path) -> Option<String> {
    let path = folder.join("disk");
    let disks = fs::read_dir("/sys/class/block").ok()?.flatten();
    let mut numbers = disks.filter_map(|disk| fs::read_to_string(disk.path().join("dev")).ok());
    numbers.find_map(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        mknod(&path, SFlag::S_IFBLK, Mode::S_IRUSR, device).ok()?;
        let opens =
            File::open(&path).is_ok_and(|file| file.metadata().is_ok_and(|meta| meta.rdev() == device));
        fs::remove_file(&path).ok()?;
        opens.then(|| text.trim().to_owned())
    })
}

/// Opens the kernel's log at its present end.
fn kernel_log() -> Option<File> {
    let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
    log.seek(SeekFrom::End(0)).ok()?;
    Some(log)
}

fn records(log: &mut File) -> Vec<String> {
    let (mut records, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        match log.read(&mut buffer) {
            Ok(0) => return records,
            Ok(length) => records.push(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            // Records that were overwritten meanwhile.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => return records,
        }
    }
}
