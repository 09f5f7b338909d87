//! Usage statistics of a cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Cgroups, Layout};

/// The usage of a cgroup and everything below it. 0 if the controller is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// CPU time since the cgroup was created.
    pub cpu_usage_nanos: u64,
    /// Memory including all caches.
    pub memory_usage_bytes: u64,
    /// Memory without the file cache that was not used recently; eviction decides by this value.
    pub memory_working_set_bytes: u64,
    /// Anonymous memory.
    pub memory_rss_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// Returns the value of `key` in a file of `key value` lines.
pub fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

fn text(folder: Option<&Path>, name: &str) -> String {
    folder.and_then(|folder| fs::read_to_string(folder.join(name)).ok()).unwrap_or_default()
}

fn number(folder: Option<&Path>, name: &str) -> u64 {
    text(folder, name).trim().parse().unwrap_or(0)
}

impl Cgroups {
    /// Returns the bytes of memory in use, including all caches; `None` if no controller counts them.
    pub fn memory_usage(&self, path: &str) -> Option<u64> {
        let full = self.full_path(path);
        let file = match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                let memory = hierarchies.iter().find(|h| h.has("memory"))?;
                memory.mount.join(full).join("memory.usage_in_bytes")
            }
            Layout::V2 { mount } => mount.join(full).join("memory.current"),
        };
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }
}

/// Reads the usage of a v1 cgroup from its folders in the hierarchies.
pub fn read_v1(cpuacct: Option<PathBuf>, memory: Option<PathBuf>, pids: Option<PathBuf>) -> Stats {
    let usage = number(memory.as_deref(), "memory.usage_in_bytes");
    let stat = text(memory.as_deref(), "memory.stat");
    let get = |key: &str| keyed(&stat, key).unwrap_or(0);
    Stats {
        cpu_usage_nanos: number(cpuacct.as_deref(), "cpuacct.usage"),
        memory_usage_bytes: usage,
        memory_working_set_bytes: usage.saturating_sub(get("total_inactive_file")),
        memory_rss_bytes: get("total_rss"),
        page_faults: get("total_pgfault"),
        major_page_faults: get("total_pgmajfault"),
        pids: number(pids.as_deref(), "pids.current"),
    }
}

/// Reads the usage of a v2 cgroup.
pub fn read_v2(folder: &Path) -> Stats {
    let folder = Some(folder);
    let usage = number(folder, "memory.current");
    let stat = text(folder, "memory.stat");
    let get = |key: &str| keyed(&stat, key).unwrap_or(0);
    Stats {
        cpu_usage_nanos: keyed(&text(folder, "cpu.stat"), "usage_usec").unwrap_or(0).saturating_mul(1000),
        memory_usage_bytes: usage,
        memory_working_set_bytes: usage.saturating_sub(get("inactive_file")),
        memory_rss_bytes: get("anon"),
        page_faults: get("pgfault"),
        major_page_faults: get("pgmajfault"),
        pids: number(folder, "pids.current"),
    }
}

#[cfg(test)]
mod tests {
    use super::keyed;

    #[test]
    fn keys_match_whole_words() {
        let text = "oom 1\noom_kill 2\noom_group_kill 3\n";
        assert_eq!(keyed(text, "oom"), Some(1));
        assert_eq!(keyed(text, "oom_kill"), Some(2));
        assert_eq!(keyed(text, "kill"), None);
    }
}
