//! Metrics of this process from the kernel, read when a client requests metrics.

use super::{Metric, Metrics};

/// Clock ticks per second, as Linux reports them to programs.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

/// Returns only the `process_*` families in the Prometheus text format, for components of their own.
pub fn of_process() -> String {
    let metrics = Metrics::default();
    metrics.sample_process();
    metrics.0.render_those(|family| family.name.starts_with("process_"))
}

impl Metrics {
    /// Sets the `process_*` families.
    pub fn sample_process(&self) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let stat = read("/proc/self/stat");
        // The second field is the program's name in parentheses and may contain any character.
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
        self.set(Metric::ProcessMaxFds, &[], limit(&limits, "Max open files"));
        self.set(Metric::ProcessVirtualMax, &[], limit(&limits, "Max address space"));
        let network = read("/proc/self/net/netstat");
        self.set(Metric::ProcessReceived, &[], of_network(&network, "InOctets"));
        self.set(Metric::ProcessTransmitted, &[], of_network(&network, "OutOctets"));
    }
}

/// Returns the soft limit; for an unlimited one, the maximum number.
fn limit(limits: &str, name: &str) -> f64 {
    let found = limits.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next());
    match found {
        Some("unlimited") => u64::MAX as f64,
        Some(number) => number.parse().unwrap_or(0.0),
        None => 0.0,
    }
}

/// Returns a number from the pair of lines, names and values, that begin with `IpExt`.
fn of_network(text: &str, name: &str) -> f64 {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix("IpExt:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0.0 };
    let pair = names.split_whitespace().zip(values.split_whitespace()).find(|(n, _)| *n == name);
    pair.and_then(|(_, value)| value.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), 1024.0);
        assert_eq!(limit(limits, "Max address space"), 18_446_744_073_709_551_615.0);
        let network = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 30 40\n";
        assert_eq!((of_network(network, "InOctets"), of_network(network, "OutOctets")), (30.0, 40.0));
        assert_eq!(of_network("", "InOctets"), 0.0);
    }
}
