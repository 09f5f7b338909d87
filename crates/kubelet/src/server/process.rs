//! The resource usage of this process, with the metric names of Prometheus' clients.

use std::fs;

use super::families::Family;

/// The kernel counts CPU time and start times in hundredths of a second.
const TICKS: f64 = 100.0;

pub fn families() -> Vec<Family> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let fds = fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
    read(
        &text("/proc/self/stat"),
        &text("/proc/self/status"),
        &text("/proc/self/limits"),
        &text("/proc/stat"),
        fds,
    )
}

fn read(stat: &str, status: &str, limits: &str, machine: &str, fds: Option<usize>) -> Vec<Family> {
    // The name in parentheses may contain blanks.
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    // Fields are numbered from 1 as in proc(5); the first two end with the parenthesis.
    let field = |n: usize| fields.get(n - 3).copied();
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib * 1024.0)
    };
    let booted = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let max_fds = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let max_fds = max_fds.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
    let start = booted.zip(field(22)).map(|(booted, ticks)| booted + ticks / TICKS);
    let family = |name, kind, help, value: Option<f64>| {
        let mut family = Family::new(name, kind, help);
        if let Some(value) = value {
            family.add(Vec::new(), value, None);
        }
        family
    };
    vec![
        family("process_cpu_seconds_total", "counter", "CPU time of this process, in seconds.", cpu),
        family("process_max_fds", "gauge", "The limit on open file descriptors.", max_fds),
        family("process_open_fds", "gauge", "Open file descriptors.", fds.map(|n| n as f64)),
        family("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", bytes("VmRSS")),
        family(
            "process_start_time_seconds",
            "gauge",
            "When the process started, in seconds since 1970.",
            start,
        ),
        family("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", bytes("VmSize")),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::families::render;
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        let stat = format!("7 (a b) c) S {} 150 50 {} 300 0", ["0"; 10].join(" "), ["0"; 6].join(" "));
        let limits = "Limit  Soft  Hard\nMax open files            1024    4096   files\n";
        let families = read(&stat, "VmSize:\t 4 kB\nVmRSS:\t 2 kB\n", limits, "btime 1000\n", Some(9));
        let text = render(&families);
        let values: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "process_cpu_seconds_total 2",
                "process_max_fds 1024",
                "process_open_fds 9",
                "process_resident_memory_bytes 2048",
                "process_start_time_seconds 1003",
                "process_virtual_memory_bytes 4096",
            ]
        );
        assert_eq!(render(&read("", "", "", "", None)), "", "no values are invented");
    }
}
