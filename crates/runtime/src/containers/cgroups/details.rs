//! Detailed statistics of a cgroup, for metrics. What the kernel does not report is omitted.

use std::fs;
use std::path::{Path, PathBuf};

use super::stats::keyed;

/// The kernel reports user and system time of v1 cgroups in hundredths of a second.
const TICK_NANOS: u64 = 10_000_000;

/// How often and how long a CPU quota has throttled the cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttling {
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_nanos: u64,
}

/// Bytes and operations of one block device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// `/dev/vda`, or the device's numbers if it has no name.
    pub device: String,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Statistics beyond those of `Stats`; `None` if the kernel does not report them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub user_nanos: Option<u64>,
    pub system_nanos: Option<u64>,
    /// Set only if there is a quota.
    pub throttling: Option<Throttling>,
    pub cache_bytes: Option<u64>,
    pub mapped_file_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    pub io: Vec<DeviceIo>,
}

fn text(folder: Option<&Path>, name: &str) -> String {
    folder.and_then(|folder| fs::read_to_string(folder.join(name)).ok()).unwrap_or_default()
}

/// Parses throttling statistics; `unit` is the number of nanoseconds in one unit of the `throttled` value.
fn throttling(cpu_stat: &str, throttled: &str, unit: u64) -> Option<Throttling> {
    let periods = keyed(cpu_stat, "nr_periods").filter(|periods| *periods > 0)?;
    Some(Throttling {
        periods,
        throttled_periods: keyed(cpu_stat, "nr_throttled")?,
        throttled_nanos: keyed(cpu_stat, throttled)?.saturating_mul(unit),
    })
}

/// Reads the statistics of a v1 cgroup from its folders in the hierarchies.
pub fn read_v1(cpu: Option<PathBuf>, cpuacct: Option<PathBuf>, memory: Option<PathBuf>) -> Details {
    let times = text(cpuacct.as_deref(), "cpuacct.stat");
    let ticks = |key: &str| keyed(&times, key).map(|ticks| ticks.saturating_mul(TICK_NANOS));
    let stat = text(memory.as_deref(), "memory.stat");
    Details {
        user_nanos: ticks("user"),
        system_nanos: ticks("system"),
        throttling: throttling(&text(cpu.as_deref(), "cpu.stat"), "throttled_time", 1),
        cache_bytes: keyed(&stat, "total_cache"),
        mapped_file_bytes: keyed(&stat, "total_mapped_file"),
        swap_bytes: keyed(&stat, "total_swap"),
        // Containers are not in the v1 hierarchy that counts I/O.
        io: Vec::new(),
    }
}

/// Reads the statistics of a v2 cgroup.
pub fn read_v2(folder: &Path) -> Details {
    let folder = Some(folder);
    let (cpu, memory) = (text(folder, "cpu.stat"), text(folder, "memory.stat"));
    let micros = |key: &str| keyed(&cpu, key).map(|micros| micros.saturating_mul(1000));
    Details {
        user_nanos: micros("user_usec"),
        system_nanos: micros("system_usec"),
        throttling: throttling(&cpu, "throttled_usec", 1000),
        cache_bytes: keyed(&memory, "file"),
        mapped_file_bytes: keyed(&memory, "file_mapped"),
        swap_bytes: text(folder, "memory.swap.current").trim().parse().ok(),
        io: devices(&text(folder, "io.stat"), device_name),
    }
}

/// Parses lines such as `254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn devices(io_stat: &str, name: impl Fn(&str) -> String) -> Vec<DeviceIo> {
    let line = |line: &str| {
        let (numbers, rest) = line.split_once(' ')?;
        let mut io = DeviceIo { device: name(numbers), ..DeviceIo::default() };
        for (key, value) in rest.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            let value = value.parse().unwrap_or(0);
            match key {
                "rbytes" => io.read_bytes = value,
                "wbytes" => io.written_bytes = value,
                "rios" => io.reads = value,
                "wios" => io.writes = value,
                _ => {}
            }
        }
        Some(io)
    };
    io_stat.lines().filter_map(line).collect()
}

fn device_name(numbers: &str) -> String {
    let link = fs::read_link(format!("/sys/dev/block/{numbers}")).ok();
    let name = link.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    name.map_or_else(|| numbers.to_owned(), |name| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        let root = std::env::temp_dir().join(format!("knarr-cgroup-details-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        for (name, text) in [
            (
                "cpu.stat",
                "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 7\nnr_throttled 2\nthrottled_usec 3\n",
            ),
            ("memory.stat", "anon 1\nfile 20\nfile_mapped 10\n"),
            ("memory.swap.current", "30\n"),
            ("io.stat", "999999:1 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"),
            ("cpuacct.stat", "user 2\nsystem 1\n"),
        ] {
            fs::write(root.join(name), text).unwrap();
        }
        let v2 = read_v2(&root);
        let io = DeviceIo { device: "999999:1".into(), read_bytes: 1, written_bytes: 2, reads: 3, writes: 4 };
        let expected = Details {
            user_nanos: Some(5000),
            system_nanos: Some(4000),
            throttling: Some(Throttling { periods: 7, throttled_periods: 2, throttled_nanos: 3000 }),
            cache_bytes: Some(20),
            mapped_file_bytes: Some(10),
            swap_bytes: Some(30),
            io: vec![io],
        };
        assert_eq!(v2, expected);
        fs::write(root.join("cpu.stat"), "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n").unwrap();
        fs::write(root.join("memory.stat"), "cache 1\ntotal_cache 2\ntotal_mapped_file 3\n").unwrap();
        let v1 = read_v1(Some(root.clone()), Some(root.clone()), Some(root.clone()));
        fs::remove_dir_all(&root).unwrap();
        let expected = Details {
            user_nanos: Some(2 * TICK_NANOS),
            system_nanos: Some(TICK_NANOS),
            cache_bytes: Some(2),
            mapped_file_bytes: Some(3),
            ..Details::default()
        };
        assert_eq!(v1, expected, "no quota, no throttling; no swap accounting, no swap");
        assert_eq!(read_v1(None, None, None), Details::default());
    }
}
