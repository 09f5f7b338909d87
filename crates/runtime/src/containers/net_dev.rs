//! Traffic counters of the network interfaces in a process's network namespace.

use std::fs;

/// The counters of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    pub name: String,
    pub received: InterfaceCounts,
    pub transmitted: InterfaceCounts,
}

/// The counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// Returns the counters of all interfaces except the loopback; none if the process has ended.
pub fn interfaces_of(pid: i32) -> Vec<InterfaceStats> {
    parse(&fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default())
}

/// Parses lines of the form `  eth0: BYTES PACKETS ERRORS DROPPED …`, with eight numbers received and eight
/// transmitted.
fn parse(text: &str) -> Vec<InterfaceStats> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let counts = |at: usize| {
            let get = |n: usize| numbers.get(at + n).copied();
            Some(InterfaceCounts { bytes: get(0)?, packets: get(1)?, errors: get(2)?, dropped: get(3)? })
        };
        let name = name.trim();
        (name != "lo").then_some(())?;
        Some(InterfaceStats { name: name.to_owned(), received: counts(0)?, transmitted: counts(8)? })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let text = "Inter-|   Receive |  Transmit\n face |bytes packets|bytes\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n\
                    \u{20} eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n bad: 1 2\n";
        let eth0 = InterfaceStats {
            name: "eth0".into(),
            received: InterfaceCounts { bytes: 1, packets: 2, errors: 3, dropped: 4 },
            transmitted: InterfaceCounts { bytes: 5, packets: 6, errors: 7, dropped: 8 },
        };
        assert_eq!(parse(text), [eth0]);
        assert!(interfaces_of(-1).is_empty());
    }
}
