//! Cgroups on v1 (one hierarchy per controller), hybrid and pure v2 machines.
//!
//! Paths are relative to a root such as `/kubepods`. A controller that the machine lacks is skipped without an
//! error, because the node's capacity reports it elsewhere.

mod details;
mod device_filter;
mod layout;
mod limits;
mod stats;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use details::{Details, DeviceIo, Throttling};
use layout::Layout;
pub use limits::{DeviceRule, Resources, cpu_weight_from_shares};
pub use stats::Stats;

use super::sys;

/// The number of attempts of a removal to wait for killed processes to end, and the pause between them.
const REMOVE_ATTEMPTS: u32 = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup hierarchy is mounted at /sys/fs/cgroup")]
    NotMounted,
    #[error("invalid cgroup path {0:?}")]
    Path(String),
    #[error("cgroup: {what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cgroup {0} still has processes that do not end")]
    Busy(String),
    #[error("cgroup device filter")]
    DeviceFilter(#[source] io::Error),
    #[error("the machine has no cgroup hierarchy that keeps containers from its devices")]
    NoDeviceFilter,
}

type Result<T> = std::result::Result<T, CgroupError>;

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::File { what, path, source }
}

/// A subtree of the machine's cgroups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cgroups {
    root: String,
    layout: Layout,
}

/// Open files with which a new process enters a cgroup.
pub struct JoinHandles {
    /// Open `tasks` files of the v1 hierarchies.
    tasks: Vec<OwnedFd>,
    /// The cgroup v2 directory for clone3.
    pub unified: Option<OwnedFd>,
}

impl JoinHandles {
    /// Moves the calling, single-threaded process. Writing "0" to `tasks` avoids the global lock that makes a
    /// write to `cgroup.procs` wait 5-11 ms for an RCU grace period.
    pub fn enter(&self) -> io::Result<()> {
        for fd in &self.tasks {
            sys::write(fd.as_fd(), b"0")?;
        }
        Ok(())
    }
}

impl Cgroups {
    /// Reads which hierarchies are mounted; `root`, for example `/kubepods`, is created when first needed.
    pub fn detect(root: &str) -> Result<Self> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo")
            .map_err(file_error("read", Path::new("/proc/self/mountinfo")))?;
        let root = root.trim_matches('/').to_owned();
        check_path(&root)?;
        // An empty root would make removal of the root act on the machine's own cgroups.
        if root.is_empty() {
            return Err(CgroupError::Path(root));
        }
        Ok(Self { root, layout: Layout::parse(&mountinfo).ok_or(CgroupError::NotMounted)? })
    }

    /// Returns whether the machine has pure cgroup v2.
    pub fn is_v2(&self) -> bool {
        matches!(self.layout, Layout::V2 { .. })
    }

    /// Returns the path below the mount point of every hierarchy.
    pub fn full_path(&self, path: &str) -> String {
        let path = path.trim_matches('/');
        if path.is_empty() { self.root.clone() } else { format!("{}/{path}", self.root) }
    }

    /// Creates the cgroup and its parents in every hierarchy and sets limits.
    pub fn create(&self, path: &str, resources: &Resources) -> Result<()> {
        check_path(path)?;
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, unified, .. } => {
                for hierarchy in hierarchies {
                    let target = hierarchy.mount.join(&full);
                    if hierarchy.has("cpuset") {
                        create_cpuset(&hierarchy.mount, &full)?;
                    } else {
                        fs::create_dir_all(&target).map_err(file_error("create", &target))?;
                    }
                }
                if let Some(mount) = unified {
                    create_unified(mount, &full)?;
                }
            }
            Layout::V2 { mount } => create_unified(mount, &full)?,
        }
        self.update(path, resources)
    }

    /// Sets the limits that are given and keeps the others.
    pub fn update(&self, path: &str, resources: &Resources) -> Result<()> {
        check_path(path)?;
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, unified, .. } => {
                for hierarchy in hierarchies {
                    let folder = hierarchy.mount.join(&full);
                    for controller in &hierarchy.controllers {
                        for write in limits::v1_writes(controller, resources) {
                            apply(&folder, &write)?;
                        }
                    }
                }
                if let Some(mount) = unified {
                    for write in limits::hybrid_unified_writes(resources) {
                        apply(&mount.join(&full), &write)?;
                    }
                }
            }
            Layout::V2 { mount } => {
                for write in limits::v2_writes(resources) {
                    apply(&mount.join(&full), &write)?;
                }
            }
        }
        Ok(())
    }

    /// Denies all devices except those listed; for a container's own cgroup, before its first process.
    pub fn restrict_devices(&self, path: &str, rules: &[DeviceRule]) -> Result<()> {
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, unified, .. } => {
                let Some(devices) = hierarchies.iter().find(|h| h.has("devices")) else {
                    // Containers may create device nodes, so a container without a filter could access the
                    // host's disks.
                    let mount = unified.as_ref().ok_or(CgroupError::NoDeviceFilter)?;
                    return filter_devices(&mount.join(&full), rules);
                };
                let folder = devices.mount.join(&full);
                write_file(&folder.join("devices.deny"), "a")?;
                for rule in rules {
                    write_file(&folder.join("devices.allow"), &rule.v1_text())?;
                }
                Ok(())
            }
            Layout::V2 { mount } => filter_devices(&mount.join(&full), rules),
        }
    }

    pub fn exists(&self, path: &str) -> bool {
        self.folders(path).iter().any(|folder| folder.is_dir())
    }

    /// Moves a running process; [`JoinHandles::enter`] is faster.
    pub fn add_process(&self, path: &str, pid: i32) -> Result<()> {
        for folder in self.folders(path) {
            write_file(&folder.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Opens the files that a process needs to enter the cgroup when it is cloned.
    pub fn join_handles(&self, path: &str) -> Result<JoinHandles> {
        let full = self.full_path(path);
        let (hierarchies, unified) = match &self.layout {
            Layout::V1 { hierarchies, unified, .. } => (hierarchies.as_slice(), unified.as_ref()),
            Layout::V2 { mount } => (&[][..], Some(mount)),
        };
        let mut tasks = Vec::with_capacity(hierarchies.len());
        for hierarchy in hierarchies {
            let file = hierarchy.mount.join(&full).join("tasks");
            let open = fs::OpenOptions::new().write(true).open(&file).map_err(file_error("open", &file))?;
            tasks.push(OwnedFd::from(open));
        }
        let unified = match unified {
            Some(mount) => {
                let folder = mount.join(&full);
                Some(OwnedFd::from(fs::File::open(&folder).map_err(file_error("open", &folder))?))
            }
            None => None,
        };
        Ok(JoinHandles { tasks, unified })
    }

    /// Returns the ids of the processes in the cgroup and below it, sorted.
    pub fn processes(&self, path: &str) -> Vec<i32> {
        let mut pids: Vec<i32> = Vec::new();
        for folder in self.folders(path) {
            visit(&folder, &mut |folder| {
                let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
            });
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Sends SIGKILL to every process in the cgroup and below it. A process that forks faster than this
    /// function reads is killed by `cgroup.kill` if the kernel has it, otherwise by the next call.
    pub fn kill_all(&self, path: &str) {
        if let Some(folder) = self.unified_folder(path)
            && fs::write(folder.join("cgroup.kill"), "1").is_ok()
        {
            // On hybrid machines, a process may be in the v1 hierarchies only.
            if self.is_v2() {
                return;
            }
        }
        self.signal_all(path, libc::SIGKILL);
    }

    /// Sends a signal to every process in the cgroup and below it.
    pub fn signal_all(&self, path: &str, signal: i32) {
        // Pids are reused: a process is signalled through a pidfd, and only if its pid was seen in the cgroup
        // again after the pidfd was opened.
        let held: Vec<_> = self
            .processes(path)
            .into_iter()
            .filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?)))
            .collect();
        let still_there = self.processes(path);
        for (_, process) in held.iter().filter(|(pid, _)| still_there.binary_search(pid).is_ok()) {
            let _ = sys::pidfd_send_signal(process.as_fd(), signal);
        }
    }

    /// Removes the cgroup and everything below it if no process is left in it. Returns whether it is removed.
    pub fn try_remove(&self, path: &str) -> bool {
        let mut folders = self.folders(path);
        if let Layout::V1 { others, .. } = &self.layout {
            let full = self.full_path(path);
            folders.extend(others.iter().map(|mount| mount.join(&full)));
        }
        let mut gone = true;
        for folder in folders {
            gone &= remove_tree(&folder);
        }
        gone
    }

    /// Removes the cgroup itself if it is empty; a cgroup with processes or children of others stays. Blocks
    /// for up to a second until processes that were killed have ended.
    pub fn remove_if_unused(&self, path: &str) {
        let full = self.full_path(path);
        let mut folders = self.folders(path);
        if let Layout::V1 { others, .. } = &self.layout {
            folders.extend(others.iter().map(|mount| mount.join(&full)));
        }
        for attempt in 0..REMOVE_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(REMOVE_PAUSE);
            }
            for folder in &folders {
                // The kernel refuses to remove a cgroup that is in use.
                let _ = fs::remove_dir(folder);
            }
            if !self.exists(path) || !self.children(path).is_empty() {
                return;
            }
        }
    }

    /// Kills the remaining processes and removes the cgroup and everything below it. Blocks for up to a second.
    pub fn remove(&self, path: &str) -> Result<()> {
        check_path(path)?;
        for attempt in 0..REMOVE_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(REMOVE_PAUSE);
            }
            if self.try_remove(path) {
                return Ok(());
            }
            self.kill_all(path);
        }
        Err(CgroupError::Busy(self.full_path(path)))
    }

    /// Returns the names of the cgroups directly below, sorted.
    pub fn children(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for folder in self.folders(path) {
            names.extend(
                child_folders(&folder)
                    .into_iter()
                    .filter_map(|child| child.file_name().map(|name| name.to_string_lossy().into_owned())),
            );
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Reads the limits in force, as far as possible: the CPU quota and the memory limit.
    pub fn limits(&self, path: &str) -> Resources {
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                let folder =
                    |name: &str| hierarchies.iter().find(|h| h.has(name)).map(|h| h.mount.join(&full));
                limits::read_v1(folder("cpu"), folder("memory"))
            }
            Layout::V2 { mount } => limits::read_v2(&mount.join(&full)),
        }
    }

    pub fn stats(&self, path: &str) -> Stats {
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                let folder =
                    |name: &str| hierarchies.iter().find(|h| h.has(name)).map(|h| h.mount.join(&full));
                stats::read_v1(folder("cpuacct"), folder("memory"), folder("pids"))
            }
            Layout::V2 { mount } => stats::read_v2(&mount.join(&full)),
        }
    }

    /// Reads more detailed statistics than [`Cgroups::stats`].
    pub fn details(&self, path: &str) -> Details {
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                let folder =
                    |name: &str| hierarchies.iter().find(|h| h.has(name)).map(|h| h.mount.join(&full));
                details::read_v1(folder("cpu"), folder("cpuacct"), folder("memory"))
            }
            Layout::V2 { mount } => details::read_v2(&mount.join(&full)),
        }
    }

    /// Returns how many processes of the cgroup the kernel has killed for lack of memory.
    pub fn oom_kills(&self, path: &str) -> u64 {
        let file = match self.memory_folder(path) {
            Some(folder) if self.is_v2() => folder.join("memory.events"),
            Some(folder) => folder.join("memory.oom_control"),
            None => return 0,
        };
        let text = fs::read_to_string(file).unwrap_or_default();
        stats::keyed(&text, "oom_kill").unwrap_or(0)
    }

    /// Returns a descriptor to poll for out-of-memory kills: readable on v1, POLLPRI on v2. `None` if the
    /// machine has none.
    pub fn oom_watch(&self, path: &str) -> Option<OomWatch> {
        let folder = self.memory_folder(path)?;
        if self.is_v2() {
            let file = fs::File::open(folder.join("memory.events")).ok()?;
            let watch = OomWatch { fd: OwnedFd::from(file), v2: true };
            watch.clear();
            return Some(watch);
        }
        let control = fs::File::open(folder.join("memory.oom_control")).ok()?;
        // SAFETY: eventfd returns a new descriptor or -1.
        let event = unsafe {
            let fd = sys::check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)).ok()?;
            OwnedFd::from_raw_fd(fd)
        };
        let line = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
        fs::write(folder.join("cgroup.event_control"), line).ok()?;
        Some(OomWatch { fd: event, v2: false })
    }

    /// Returns the v1 controller sets that have a hierarchy of their own, as mount options; empty on pure v2.
    pub fn v1_hierarchies(&self) -> Vec<String> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => hierarchies.iter().map(|h| h.controllers.join(",")).collect(),
            Layout::V2 { .. } => Vec::new(),
        }
    }

    fn folders(&self, path: &str) -> Vec<PathBuf> {
        let full = self.full_path(path);
        match &self.layout {
            Layout::V1 { hierarchies, unified, .. } => {
                hierarchies.iter().map(|h| &h.mount).chain(unified).map(|mount| mount.join(&full)).collect()
            }
            Layout::V2 { mount } => vec![mount.join(&full)],
        }
    }

    fn unified_folder(&self, path: &str) -> Option<PathBuf> {
        let mount = match &self.layout {
            Layout::V1 { unified, .. } => unified.as_ref()?,
            Layout::V2 { mount } => mount,
        };
        Some(mount.join(self.full_path(path)))
    }

    fn memory_folder(&self, path: &str) -> Option<PathBuf> {
        let mount = match &self.layout {
            Layout::V1 { hierarchies, .. } => &hierarchies.iter().find(|h| h.has("memory"))?.mount,
            Layout::V2 { mount } => mount,
        };
        Some(mount.join(self.full_path(path)))
    }
}

fn filter_devices(folder: &Path, rules: &[DeviceRule]) -> Result<()> {
    let open = fs::File::open(folder).map_err(file_error("open", folder))?;
    device_filter::attach(open.as_fd(), rules).map_err(CgroupError::DeviceFilter)
}

/// Notifies of out-of-memory kills; see [`Cgroups::oom_watch`].
#[derive(Debug)]
pub struct OomWatch {
    fd: OwnedFd,
    v2: bool,
}

impl OomWatch {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn poll_events(&self) -> libc::c_short {
        if self.v2 { libc::POLLPRI } else { libc::POLLIN }
    }

    /// Consumes the notification, so that the next one is seen.
    pub fn clear(&self) {
        let mut buffer = [0; 256];
        if self.v2 {
            // SAFETY: the buffer is valid for its length.
            unsafe { libc::pread(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        } else {
            let _ = sys::read(self.fd.as_fd(), &mut buffer[..8]);
        }
    }
}

fn check_path(path: &str) -> Result<()> {
    let bad =
        path.trim_matches('/').split('/').any(|part| part == "." || part == "..") || path.contains('\0');
    if bad { Err(CgroupError::Path(path.to_owned())) } else { Ok(()) }
}

fn apply(folder: &Path, write: &limits::Write) -> Result<()> {
    let file = folder.join(&write.file);
    match fs::write(&file, &write.value) {
        Ok(()) => Ok(()),
        // This machine lacks the controller or the file (swap accounting, huge page size).
        Err(error) if error.kind() == io::ErrorKind::NotFound && write.optional => Ok(()),
        Err(source) => Err(CgroupError::File { what: "write", path: file, source }),
    }
}

fn write_file(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(file_error("write", path))
}

/// Creates a v1 cpuset. A new one is empty and takes no process until it has the CPUs and memory nodes of its
/// parent.
fn create_cpuset(mount: &Path, full: &str) -> Result<()> {
    let mut folder = mount.to_owned();
    for part in full.split('/').filter(|part| !part.is_empty()) {
        let parent = folder.clone();
        folder.push(part);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(file_error("create", &folder))?,
        }
        for name in ["cpuset.cpus", "cpuset.mems"] {
            let file = folder.join(name);
            let own = fs::read_to_string(&file).map_err(file_error("read", &file))?;
            if own.trim().is_empty() {
                let inherited = fs::read_to_string(parent.join(name)).map_err(file_error("read", &file))?;
                write_file(&file, inherited.trim())?;
            }
        }
    }
    Ok(())
}

/// Creates a v2 cgroup and delegates every controller that each level has to the next level.
fn create_unified(mount: &Path, full: &str) -> Result<()> {
    let mut folder = mount.to_owned();
    for part in full.split('/').filter(|part| !part.is_empty()) {
        let parent = folder.clone();
        folder.push(part);
        delegate_controllers(&parent);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(file_error("create", &folder))?,
        }
    }
    Ok(())
}

fn delegate_controllers(folder: &Path) {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (offered, enabled) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    for controller in offered.split_whitespace() {
        if !enabled.split_whitespace().any(|name| name == controller) {
            // One by one: a controller that cannot be enabled here must not prevent enabling the others.
            let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
}

fn child_folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn visit(folder: &Path, f: &mut dyn FnMut(&Path)) {
    f(folder);
    for child in child_folders(folder) {
        visit(&child, f);
    }
}

/// Removes the folder and those below it; returns false if a process is left in it.
fn remove_tree(folder: &Path) -> bool {
    let mut gone = true;
    for child in child_folders(folder) {
        gone &= remove_tree(&child);
    }
    gone && match fs::remove_dir(folder) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
