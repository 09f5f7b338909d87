//! What the kernel knows of this process, read when somebody asks for metrics.

use super::{Metric, Metrics};

/// Clock ticks a second, as Linux shows them to programs.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

impl Metrics {
    /// Sets the `process_*` families.
    pub fn sample_process(&self) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let stat = read("/proc/self/stat");
        // The second field is the program's name in parentheses and may hold anything.
        let fields: Vec<f64> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect())
            .unwrap_or_default();
        let field = |n: usize| fields.get(n - 3).copied().unwrap_or(0.0);
        self.set(Metric::ProcessCpu, &[], (field(14) + field(15)) / TICKS);
        self.set(Metric::ProcessVirtual, &[], field(23));
        self.set(Metric::ProcessResident, &[], field(24) * PAGE);
        let booted = read("/proc/stat");
        let booted = booted.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        self.set(Metric::ProcessStart, &[], booted.unwrap_or(0.0) + field(22) / TICKS);
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        self.set(Metric::ProcessFds, &[], open as f64);
        let limits = read("/proc/self/limits");
        let most = limits
            .lines()
            .find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse::<f64>().ok());
        self.set(Metric::ProcessMaxFds, &[], most.unwrap_or(0.0));
    }
}
