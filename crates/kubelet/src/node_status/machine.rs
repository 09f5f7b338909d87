//! The machine's size and its current usage.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// The properties that do not change while the machine runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u64,
    pub memory_bytes: u64,
    /// Reserved huge pages in bytes, by page size in KiB.
    pub huge_pages: BTreeMap<u64, u64>,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    pub swap_bytes: u64,
}

/// The size and the free part of a file system, in bytes and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// The current usage of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory_available_bytes: u64,
    /// The memory that all pods together may still use, in bytes, if they have a common limit.
    pub pods_memory_left_bytes: Option<u64>,
    /// The file system of the kubelet's data.
    pub node_fs: FileSystem,
    /// The number of processes and threads.
    pub pids: u64,
    pub max_pids: u64,
}

impl Machine {
    pub fn read() -> Self {
        let meminfo = text("/proc/meminfo");
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            memory_bytes: meminfo_bytes(&meminfo, "MemTotal"),
            huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
            machine_id: first_of(&["/etc/machine-id", "/var/lib/dbus/machine-id"]),
            system_uuid: first_of(&["/sys/class/dmi/id/product_uuid", "/etc/machine-id"]),
            boot_id: first_of(&["/proc/sys/kernel/random/boot_id"]),
            kernel_version: first_of(&["/proc/sys/kernel/osrelease"]),
            os_image: os_image(&[text("/etc/os-release"), text("/usr/lib/os-release")]),
            swap_bytes: meminfo_bytes(&meminfo, "SwapTotal"),
        }
    }
}

impl Usage {
    /// Reads the current usage. `data_dir` is any path on the file system to measure.
    pub fn read(data_dir: &Path) -> io::Result<Self> {
        let limit = |path: &str| text(path).trim().parse::<u64>().unwrap_or(u64::MAX);
        Ok(Self {
            memory_available_bytes: meminfo_bytes(&text("/proc/meminfo"), "MemAvailable"),
            pods_memory_left_bytes: None,
            node_fs: FileSystem::read(data_dir)?,
            pids: threads(&text("/proc/loadavg")),
            max_pids: limit("/proc/sys/kernel/pid_max").min(limit("/proc/sys/kernel/threads-max")),
        })
    }
}

impl FileSystem {
    pub fn read(path: &Path) -> io::Result<Self> {
        let stat = statvfs(path)?;
        let block = stat.fragment_size();
        Ok(Self {
            capacity_bytes: stat.blocks().saturating_mul(block),
            available_bytes: stat.blocks_available().saturating_mul(block),
            inodes: stat.files(),
            inodes_free: stat.files_free(),
        })
    }
}

/// Returns the name of this machine's architecture in Go and Kubernetes.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn first_of(paths: &[&str]) -> String {
    paths.iter().map(|path| text(path).trim().to_owned()).find(|t| !t.is_empty()).unwrap_or_default()
}

fn meminfo_bytes(meminfo: &str, key: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Returns the number of threads: the fourth field of /proc/loadavg is `running/all`.
fn threads(loadavg: &str) -> u64 {
    let field = loadavg.split_whitespace().nth(3).and_then(|f| f.split_once('/'));
    field.and_then(|(_, all)| all.parse().ok()).unwrap_or(0)
}

fn os_image(files: &[String]) -> String {
    let line = files.iter().find_map(|f| f.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")));
    let name = line.map(|value| value.trim().trim_matches(['"', '\''])).unwrap_or("");
    if name.is_empty() { "Linux".to_owned() } else { name.to_owned() }
}

fn huge_pages(dir: &Path) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = name.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB")?.parse::<u64>().ok());
        if let Some(kib) = size {
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).unwrap_or_default();
            let count: u64 = count.trim().parse().unwrap_or(0);
            found.insert(kib, count.saturating_mul(kib).saturating_mul(1024));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        let meminfo = "MemTotal:       24562568 kB\nMemFree:  1 kB\nMemAvailable:   100 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), 24562568 * 1024);
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable"), 102400);
        assert_eq!(meminfo_bytes(meminfo, "Nothing"), 0);
        assert_eq!(threads("0.10 0.20 0.30 2/345 6789\n"), 345);
        assert_eq!(threads(""), 0);
    }

    #[test]
    fn names_of_systems() {
        for (file, want) in [
            ("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", "Debian GNU/Linux 12 (bookworm)"),
            ("PRETTY_NAME=Alpine\n", "Alpine"),
            ("", "Linux"),
        ] {
            assert_eq!(os_image(&[String::new(), file.to_owned()]), want);
        }
    }

    #[test]
    fn this_machine() {
        let machine = Machine::read();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.kernel_version.is_empty());
        let usage = Usage::read(Path::new("/")).unwrap();
        assert!(usage.node_fs.capacity_bytes >= usage.node_fs.available_bytes && usage.pids > 0);
        assert!(usage.memory_available_bytes <= machine.memory_bytes);
    }
}
