//! The kernel's statistics of a process.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Memory of a process, in MB (10^6 bytes).
pub struct Memory {
    pub rss: f64,
    /// The RSS, with pages that several processes share divided among them.
    pub pss: f64,
    /// The highest RSS so far.
    pub peak: f64,
}

pub fn memory(pid: u32) -> Result<Memory> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).context("smaps_rollup")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("status")?;
    Ok(Memory { rss: field(&rollup, "Rss:")?, pss: field(&rollup, "Pss:")?, peak: field(&status, "VmHWM:")? })
}

fn field(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let kib: f64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kib * 1024.0 / 1e6)
}

/// Returns the CPU time that a process has used so far.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("stat")?;
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks =
        |n: usize| after_name.split(' ').nth(n).and_then(|w| w.parse::<u64>().ok()).unwrap_or_default();
    // Fields 14 and 15 of proc_pid_stat(5), in ticks of 10 ms on every Linux that runs this.
    Ok(Duration::from_millis((ticks(11) + ticks(12)) * 10))
}

/// Returns the context switches of all threads so far: how often the process woke up.
pub fn wake_ups(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.and_then(|v| v.trim().parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(sum)
}

/// Returns the processes of the same pid namespace as `pid` that have the argument `word`.
pub fn beside(pid: u32, word: &str) -> Result<Vec<u32>> {
    let namespace = fs::read_link(format!("/proc/{pid}/ns/pid"))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(other) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let same = fs::read_link(entry.path().join("ns/pid")).is_ok_and(|n| n == namespace);
        if same && line.split(|b| *b == 0).any(|argument| argument == word.as_bytes()) {
            found.push(other);
        }
    }
    found.sort_unstable();
    Ok(found)
}
