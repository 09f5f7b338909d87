//! Thresholds of free resources: below one, the node reports pressure. Upstream's `--eviction-hard`.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/eviction` (signals, syntax of thresholds, upstream's defaults).

use std::str::FromStr;

use knarr_apimachinery::quantity::Quantity;

use super::machine::{Machine, Usage};

/// An amount of a resource: a number of bytes, inodes or process ids, or a part of the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    Number(u64),
    /// A part of the whole, 0 to 1.
    Part(f64),
}

/// A threshold of zero.
const NONE: Amount = Amount::Number(0);

impl Amount {
    /// Returns the amount as a number, for a resource of this size.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Amount::Number(number) => number,
            Amount::Part(part) => (whole as f64 * part) as u64,
        }
    }
}

/// The amounts of each resource that must stay free.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    pub memory_available: Amount,
    pub node_fs_available: Amount,
    pub node_fs_inodes_free: Amount,
    pub pid_available: Amount,
}

impl Thresholds {
    pub(crate) const NONE: Thresholds = Thresholds {
        memory_available: NONE,
        node_fs_available: NONE,
        node_fs_inodes_free: NONE,
        pid_available: NONE,
    };
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            memory_available: Amount::Number(100 << 20),
            node_fs_available: Amount::Part(0.10),
            node_fs_inodes_free: Amount::Part(0.05),
            ..Self::NONE
        }
    }
}

/// The resources that the machine is short of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

impl Thresholds {
    /// Compares `memory.available` with the free memory of the machine, and with the memory that all pods together
    /// may still use. Upstream does the latter with `allocatableMemory.available`: pods must not use reserved
    /// memory.
    pub fn pressure(&self, machine: &Machine, usage: &Usage) -> Pressure {
        let below = |left: u64, whole: u64, kept: Amount| whole > 0 && left < kept.of(whole);
        let fs = &usage.node_fs;
        let pids_left = usage.max_pids.saturating_sub(usage.pids);
        Pressure {
            memory: below(usage.memory_available_bytes, machine.memory_bytes, self.memory_available)
                || usage
                    .pods_memory_left_bytes
                    .is_some_and(|left| below(left, machine.memory_bytes, self.memory_available)),
            disk: below(fs.available_bytes, fs.capacity_bytes, self.node_fs_available)
                || below(fs.inodes_free, fs.inodes, self.node_fs_inodes_free),
            pids: below(pids_left, usage.max_pids, self.pid_available),
        }
    }

    /// Returns the part of a node's resource that pods cannot have, because it must stay free.
    pub fn kept(&self, resource: &str, whole: u64) -> u64 {
        match resource {
            "memory" => self.memory_available.of(whole),
            "ephemeral-storage" => self.node_fs_available.of(whole),
            _ => 0,
        }
    }

    fn of_signal(&mut self, signal: &str) -> Option<&mut Amount> {
        Some(match signal {
            "memory.available" => &mut self.memory_available,
            "nodefs.available" => &mut self.node_fs_available,
            "nodefs.inodesFree" => &mut self.node_fs_inodes_free,
            "pid.available" => &mut self.pid_available,
            _ => return None,
        })
    }
}

/// Parses `memory.available<100Mi,nodefs.available<10%`; resources that are not named may be used up.
impl FromStr for Thresholds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut thresholds = Self::NONE;
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (signal, value) = item
                .split_once('<')
                .ok_or_else(|| format!("{item}: this is not of the form memory.available<100Mi"))?;
            let known = "known are memory.available, nodefs.available, nodefs.inodesFree and pid.available";
            let amount = thresholds
                .of_signal(signal.trim())
                .ok_or_else(|| format!("{item}: {signal} is not looked at: {known}"))?;
            *amount = parse_amount(value.trim()).map_err(|why| format!("{item}: {why}"))?;
        }
        Ok(thresholds)
    }
}

fn parse_amount(text: &str) -> Result<Amount, String> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.parse().map_err(|_| format!("{text} is not a percentage"))?;
        return match percent {
            // As upstream, 0% and 100% count as no threshold.
            0.0 | 100.0 => Ok(NONE),
            _ if (0.0..100.0).contains(&percent) => Ok(Amount::Part(percent / 100.0)),
            _ => Err(format!("{text} is not between 0% and 100%")),
        };
    }
    let quantity: Quantity = text.parse().map_err(|_| format!("{text} is no quantity"))?;
    let positive = u64::try_from(quantity.value()).ok().filter(|number| *number > 0);
    positive.map(Amount::Number).ok_or_else(|| format!("{text} is not more than 0 (0% stands for nothing)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_status::machine::FileSystem;

    #[test]
    fn what_is_below_its_threshold_is_short() {
        let machine = Machine { memory_bytes: 1 << 30, ..Machine::default() };
        let usage = |memory: u64, disk: u64, inodes: u64, pids: u64| Usage {
            memory_available_bytes: memory << 20,
            pods_memory_left_bytes: None,
            node_fs: FileSystem {
                capacity_bytes: 100,
                available_bytes: disk,
                inodes: 100,
                inodes_free: inodes,
            },
            pids,
            max_pids: 100,
        };
        let table = [
            (usage(100, 10, 5, 100), Pressure::default()),
            (usage(99, 10, 5, 0), Pressure { memory: true, ..Pressure::default() }),
            (usage(100, 9, 5, 0), Pressure { disk: true, ..Pressure::default() }),
            (usage(100, 10, 4, 0), Pressure { disk: true, ..Pressure::default() }),
        ];
        for (usage, want) in table {
            assert_eq!(Thresholds::default().pressure(&machine, &usage), want, "{usage:?}");
        }
        // The machine has free memory, but none that pods may use.
        let pods = |left: u64| Usage { pods_memory_left_bytes: Some(left << 20), ..usage(900, 10, 5, 0) };
        for (left, memory) in [(100, false), (99, true)] {
            assert_eq!(Thresholds::default().pressure(&machine, &pods(left)).memory, memory);
        }
        let pids: Thresholds = "pid.available<10%".parse().unwrap();
        let short = Pressure { pids: true, ..Pressure::default() };
        assert_eq!(pids.pressure(&machine, &usage(0, 0, 0, 91)), short);
        assert_eq!(pids.pressure(&machine, &usage(0, 0, 0, 90)), Pressure::default());
    }

    #[test]
    fn thresholds_as_upstream_writes_them() {
        let defaults = "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%";
        assert_eq!(defaults.parse(), Ok(Thresholds::default()));
        let some = Thresholds {
            node_fs_available: Amount::Number(1 << 30),
            pid_available: Amount::Number(1000),
            ..Thresholds::NONE
        };
        assert_eq!("nodefs.available<1Gi, pid.available<1k".parse(), Ok(some));
        for nothing in ["", "nodefs.available<0%", "memory.available<100%"] {
            assert_eq!(nothing.parse(), Ok(Thresholds::NONE), "{nothing}");
        }
        for (wrong, why) in [
            ("nodefs.available", "nodefs.available: this is not of the form"),
            ("nodefs.available<", "nodefs.available<:  is no quantity"),
            ("nodefs.available<x%", "nodefs.available<x%: x% is not a percentage"),
            ("nodefs.available<101%", "nodefs.available<101%: 101% is not between"),
            ("nodefs.available<-1%", "nodefs.available<-1%: -1% is not between"),
            ("nodefs.available<NaN%", "nodefs.available<NaN%: NaN% is not between"),
            ("memory.available<0", "memory.available<0: 0 is not more than 0"),
            ("memory.available<-1Mi", "memory.available<-1Mi: -1Mi is not more than 0"),
            ("imagefs.available<15%", "imagefs.available<15%: imagefs.available is not looked at: known are"),
        ] {
            let error = wrong.parse::<Thresholds>().unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
