//! Resource limits, the control files that set them, and reading the limits in force.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Limits as in the container runtime interface; a limit that is `None` stays unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Relative weight, 2 to 262144; 1024 corresponds to a request of one CPU.
    pub cpu_shares: Option<u64>,
    /// Microseconds per period; negative is unlimited.
    pub cpu_quota: Option<i64>,
    /// Microseconds; 100000 if only a quota is given.
    pub cpu_period: Option<u64>,
    /// Bytes; negative is unlimited.
    pub memory_limit: Option<i64>,
    /// Bytes of memory plus swap; negative is unlimited.
    pub memory_swap_limit: Option<i64>,
    /// Processes and threads; 0 or less is unlimited.
    pub pids_limit: Option<i64>,
    pub cpuset_cpus: Option<String>,
    pub cpuset_mems: Option<String>,
    /// Bytes by page size, in the kernel's spelling (`2MB`, `1GB`).
    pub hugepage_limits: BTreeMap<String, u64>,
    /// cgroup v2 files and their content, written last.
    pub unified: BTreeMap<String, String>,
}

/// A device that a container may use; `None` numbers mean all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRule {
    pub block: bool,
    pub major: Option<u32>,
    pub minor: Option<u32>,
    /// Any of `r`, `w`, `m`.
    pub access: String,
}

impl DeviceRule {
    /// Returns the rule as a line of v1's `devices.allow`.
    pub fn v1_text(&self) -> String {
        let number = |n: Option<u32>| n.map_or("*".to_owned(), |n| n.to_string());
        let kind = if self.block { 'b' } else { 'c' };
        format!("{kind} {}:{} {}", number(self.major), number(self.minor), self.access)
    }

    /// Returns the rules for every container: creating any node, and access to the standard devices.
    pub fn defaults() -> Vec<Self> {
        let rule =
            |block, major, minor, access: &str| Self { block, major, minor, access: access.to_owned() };
        let mut rules = vec![rule(false, None, None, "m"), rule(true, None, None, "m")];
        // null, zero, full, random, urandom; tty, console, ptmx; pseudo-terminals.
        for (major, minor) in [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)] {
            rules.push(rule(false, Some(major), Some(minor), "rwm"));
        }
        rules.push(rule(false, Some(136), None, "rwm"));
        rules
    }
}

/// One control file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub file: String,
    pub value: String,
    /// Whether a missing file is not an error.
    pub optional: bool,
}

fn write(file: &str, value: impl ToString) -> Write {
    Write { file: file.to_owned(), value: value.to_string(), optional: true }
}

/// Converts v1 shares (2 to 262144) to a cgroup v2 weight (1 to 10000): the curve through the minima, the
/// defaults (1024 and 100) and the maxima that runc and the kubelet use.
pub fn cpu_weight_from_shares(shares: u64) -> u64 {
    match shares {
        0 => 0,
        1..=2 => 1,
        262_144.. => 10_000,
        _ => {
            let log = (shares as f64).log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            10f64.powf(exponent).ceil() as u64
        }
    }
}

fn v1_limit(value: i64) -> i64 {
    if value < 0 { -1 } else { value }
}

fn v2_limit(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

fn pids_value(limit: i64) -> String {
    if limit <= 0 { "max".to_owned() } else { limit.to_string() }
}

/// Returns the writes for one v1 controller, in order.
pub fn v1_writes(controller: &str, r: &Resources) -> Vec<Write> {
    let mut out = Vec::new();
    match controller {
        "cpu" => {
            out.extend(r.cpu_shares.map(|v| write("cpu.shares", v.max(2))));
            out.extend(r.cpu_period.map(|v| write("cpu.cfs_period_us", v)));
            out.extend(r.cpu_quota.map(|v| write("cpu.cfs_quota_us", v1_limit(v))));
        }
        "memory" => {
            let limit = r.memory_limit.map(|v| write("memory.limit_in_bytes", v1_limit(v)));
            let swap = r.memory_swap_limit.map(|v| write("memory.memsw.limit_in_bytes", v1_limit(v)));
            // The limit of memory plus swap must never be below that of memory: if both are lifted, lift the
            // sum first.
            if r.memory_swap_limit.is_some_and(|v| v < 0) {
                out.extend(swap.into_iter().chain(limit));
            } else {
                out.extend(limit.into_iter().chain(swap));
            }
        }
        "pids" => out.extend(r.pids_limit.map(|v| write("pids.max", pids_value(v)))),
        "cpuset" => {
            let filled = |v: &Option<String>| v.clone().filter(|v| !v.is_empty());
            out.extend(filled(&r.cpuset_cpus).map(|v| write("cpuset.cpus", v)));
            out.extend(filled(&r.cpuset_mems).map(|v| write("cpuset.mems", v)));
        }
        "hugetlb" => {
            for (size, limit) in &r.hugepage_limits {
                out.push(write(&format!("hugetlb.{size}.limit_in_bytes"), limit));
                out.push(write(&format!("hugetlb.{size}.rsvd.limit_in_bytes"), limit));
            }
        }
        _ => {}
    }
    out
}

/// Returns the writes for the v2 hierarchy of a hybrid machine.
pub fn hybrid_unified_writes(r: &Resources) -> Vec<Write> {
    hugetlb_v2(r)
}

fn hugetlb_v2(r: &Resources) -> Vec<Write> {
    let mut out = Vec::new();
    for (size, limit) in &r.hugepage_limits {
        out.push(write(&format!("hugetlb.{size}.max"), limit));
        out.push(write(&format!("hugetlb.{size}.rsvd.max"), limit));
    }
    out
}

/// Returns the writes on a pure v2 machine, in order.
pub fn v2_writes(r: &Resources) -> Vec<Write> {
    let mut out = Vec::new();
    out.extend(r.cpu_shares.filter(|v| *v > 0).map(|v| write("cpu.weight", cpu_weight_from_shares(v))));
    if r.cpu_quota.is_some() || r.cpu_period.is_some() {
        let quota = r.cpu_quota.filter(|v| *v > 0).map_or("max".to_owned(), |v| v.to_string());
        out.push(write("cpu.max", format!("{quota} {}", r.cpu_period.unwrap_or(100_000))));
    }
    if let Some(total) = r.memory_swap_limit {
        let swap = match r.memory_limit {
            Some(limit) if total >= 0 && limit >= 0 => (total - limit).max(0),
            _ => -1,
        };
        out.push(write("memory.swap.max", v2_limit(swap)));
    }
    out.extend(r.memory_limit.map(|v| write("memory.max", v2_limit(v))));
    out.extend(r.pids_limit.map(|v| write("pids.max", pids_value(v))));
    let filled = |v: &Option<String>| v.clone().filter(|v| !v.is_empty());
    out.extend(filled(&r.cpuset_cpus).map(|v| write("cpuset.cpus", v)));
    out.extend(filled(&r.cpuset_mems).map(|v| write("cpuset.mems", v)));
    out.extend(hugetlb_v2(r));
    for (file, value) in &r.unified {
        if !file.contains('/') {
            out.push(write(file, value));
        }
    }
    out
}

/// From here on, v1 means unlimited: it shows the highest number of bytes that is a whole number of pages.
const UNLIMITED: i64 = 1 << 62;

/// Parses a limit in the form of either version; negative is unlimited.
fn shown_limit(text: &str) -> Option<i64> {
    match text.trim() {
        "max" => Some(-1),
        number => number.parse().ok().map(|n: i64| if (0..UNLIMITED).contains(&n) { n } else { -1 }),
    }
}

fn read_limit(folder: &Path, file: &str) -> Option<i64> {
    shown_limit(&fs::read_to_string(folder.join(file)).ok()?)
}

/// Reads the limits of a v1 cgroup.
pub fn read_v1(cpu: Option<PathBuf>, memory: Option<PathBuf>) -> Resources {
    Resources {
        cpu_quota: cpu.and_then(|folder| read_limit(&folder, "cpu.cfs_quota_us")),
        memory_limit: memory.and_then(|folder| read_limit(&folder, "memory.limit_in_bytes")),
        ..Resources::default()
    }
}

/// Reads the limits of a v2 cgroup.
pub fn read_v2(folder: &Path) -> Resources {
    let cpu = fs::read_to_string(folder.join("cpu.max")).ok();
    Resources {
        cpu_quota: cpu.and_then(|text| shown_limit(text.split_whitespace().next()?)),
        memory_limit: read_limit(folder, "memory.max"),
        ..Resources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_the_kernel_shows_them() {
        for (text, expected) in [
            ("max\n", Some(-1)),
            ("-1\n", Some(-1)),
            ("0\n", Some(0)),
            ("67108864\n", Some(64 << 20)),
            // With pages of 4 KiB and of 64 KiB.
            ("9223372036854771712\n", Some(-1)),
            ("9223372036854710272\n", Some(-1)),
            ("\n", None),
        ] {
            assert_eq!(shown_limit(text), expected, "{text:?}");
        }
    }

    #[test]
    fn v2_limits_are_read() {
        let folder = std::env::temp_dir().join(format!("knarr-limits-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut found = vec![read_v2(&folder)];
        for (cpu, memory) in [("20000 100000\n", "67108864\n"), ("max 100000\n", "max\n")] {
            fs::write(folder.join("cpu.max"), cpu).unwrap();
            fs::write(folder.join("memory.max"), memory).unwrap();
            found.push(read_v2(&folder));
        }
        fs::remove_dir_all(&folder).unwrap();
        let found: Vec<_> = found.iter().map(|r| (r.cpu_quota, r.memory_limit)).collect();
        assert_eq!(found, [(None, None), (Some(20_000), Some(64 << 20)), (Some(-1), Some(-1))]);
    }

    #[test]
    fn weights() {
        for (shares, weight) in [(0, 0), (2, 1), (1024, 100), (262_144, 10_000), (1 << 20, 10_000), (102, 17)]
        {
            assert_eq!(cpu_weight_from_shares(shares), weight, "{shares}");
        }
    }

    fn lines(writes: Vec<Write>) -> Vec<String> {
        writes.into_iter().map(|w| format!("{}={}", w.file, w.value)).collect()
    }

    #[test]
    fn v2_files() {
        let r = Resources {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            memory_limit: Some(1 << 20),
            memory_swap_limit: Some(1 << 20),
            pids_limit: Some(0),
            unified: BTreeMap::from([("memory.oom.group".into(), "1".into()), ("../x".into(), "1".into())]),
            ..Resources::default()
        };
        let want = [
            "cpu.weight=100",
            "cpu.max=50000 100000",
            "memory.swap.max=0",
            "memory.max=1048576",
            "pids.max=max",
            "memory.oom.group=1",
        ];
        assert_eq!(lines(v2_writes(&r)), want);
    }

    #[test]
    fn v1_files() {
        let r = Resources {
            cpu_shares: Some(0),
            cpu_quota: Some(-5),
            cpu_period: Some(100_000),
            memory_limit: Some(-1),
            memory_swap_limit: Some(-1),
            ..Resources::default()
        };
        assert_eq!(
            lines(v1_writes("cpu", &r)),
            ["cpu.shares=2", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=-1"]
        );
        assert_eq!(
            lines(v1_writes("memory", &r)),
            ["memory.memsw.limit_in_bytes=-1", "memory.limit_in_bytes=-1"]
        );
        assert!(v1_writes("blkio", &r).is_empty());
    }

    #[test]
    fn device_rules_as_text() {
        let rules = DeviceRule::defaults();
        assert_eq!(rules[0].v1_text(), "c *:* m");
        assert_eq!(rules[2].v1_text(), "c 1:3 rwm");
        assert_eq!(rules[10].v1_text(), "c 136:* rwm");
    }
}
