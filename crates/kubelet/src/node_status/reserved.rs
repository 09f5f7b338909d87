//! Resources of the machine that are reserved from pods: upstream's `--kube-reserved`, `--system-reserved` and
//! `--enforce-node-allocatable`.
//!
//! Source: `k8s.io/kubernetes/cmd/kubelet/app`, `pkg/kubelet/cm/node_container_manager_linux.go`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use knarr_apimachinery::quantity::{Format, Quantity};

use super::machine::Machine;
use super::status::ResourceList;
use super::thresholds::Thresholds;

/// Amounts that are reserved from pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a CPU.
    pub milli_cpu: u64,
    pub memory_bytes: u64,
    pub ephemeral_storage_bytes: u64,
    /// Process ids.
    pub pids: u64,
}

/// The part of the machine's memory that a server reserves for itself and the system, up to the following maximum.
const SERVER_MEMORY_PART: u64 = 20;
const SERVER_MEMORY_MOST: u64 = 512 << 20;
/// The process ids that a server reserves for itself and the system.
const SERVER_PIDS: u64 = 1000;

impl Reserved {
    /// Returns the default reservation of a server: pods shall not starve the control plane in the same process.
    /// Upstream reserves nothing, because its control plane runs in pods. CPU time is not reserved: the weights of
    /// cgroups leave enough to processes outside of the pods' cgroup.
    pub fn of_server(machine: &Machine) -> Self {
        let memory_bytes = (machine.memory_bytes / SERVER_MEMORY_PART).min(SERVER_MEMORY_MOST) >> 20 << 20;
        Self { memory_bytes, pids: SERVER_PIDS, ..Self::default() }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            milli_cpu: self.milli_cpu.saturating_add(other.milli_cpu),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            ephemeral_storage_bytes: self
                .ephemeral_storage_bytes
                .saturating_add(other.ephemeral_storage_bytes),
            pids: self.pids.saturating_add(other.pids),
        }
    }

    /// Returns the reserved amount: thousandths for cpu, whole units for all others; 0 for resources that cannot
    /// be reserved.
    pub fn of(&self, resource: &str) -> u64 {
        match resource {
            "cpu" => self.milli_cpu,
            "memory" => self.memory_bytes,
            "ephemeral-storage" => self.ephemeral_storage_bytes,
            "pid" => self.pids,
            _ => 0,
        }
    }

    fn field(&mut self, resource: &str) -> Option<&mut u64> {
        Some(match resource {
            "cpu" => &mut self.milli_cpu,
            "memory" => &mut self.memory_bytes,
            "ephemeral-storage" => &mut self.ephemeral_storage_bytes,
            "pid" => &mut self.pids,
            _ => return None,
        })
    }

    /// Returns the map as in KubeletConfiguration.
    pub fn to_map(self) -> BTreeMap<String, String> {
        let cpu = i64::try_from(self.milli_cpu).unwrap_or(i64::MAX);
        let whole =
            |amount: u64, format| Quantity::new(i64::try_from(amount).unwrap_or(i64::MAX), format).to_api().0;
        let all = [
            ("cpu", self.milli_cpu, Quantity::from_milli(cpu, Format::DecimalSI).to_api().0),
            ("memory", self.memory_bytes, whole(self.memory_bytes, Format::BinarySI)),
            (
                "ephemeral-storage",
                self.ephemeral_storage_bytes,
                whole(self.ephemeral_storage_bytes, Format::BinarySI),
            ),
            ("pid", self.pids, whole(self.pids, Format::DecimalSI)),
        ];
        all.into_iter()
            .filter(|(_, amount, _)| *amount > 0)
            .map(|(name, _, text)| (name.to_owned(), text))
            .collect()
    }
}

/// Parses `cpu=200m,memory=500Mi,ephemeral-storage=1Gi,pid=1000`; an empty text reserves nothing.
impl FromStr for Reserved {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut reserved = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item
                .split_once('=')
                .ok_or_else(|| format!("{item}: this is not of the form memory=500Mi"))?;
            let (name, value) = (name.trim(), value.trim());
            let Some(field) = reserved.field(name) else {
                return Err(format!("cannot reserve {name:?} resource"));
            };
            let quantity: Quantity = value
                .parse()
                .map_err(|e| format!("failed to parse quantity {value:?} for {name:?} resource: {e}"))?;
            let amount = if name == "cpu" { quantity.milli_value() } else { quantity.value() };
            *field = u64::try_from(amount)
                .map_err(|_| format!("resource quantity for {name:?} cannot be negative: {value}"))?;
        }
        Ok(reserved)
    }
}

/// Whether the cgroup of all pods has a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Enforce {
    /// The limit is the allocatable amount plus the eviction threshold: the node is under pressure before the
    /// kernel kills processes in the pods' cgroup.
    #[default]
    Pods,
    /// No limit but the machine's size.
    Nothing,
}

/// Formats as upstream's names.
impl fmt::Display for Enforce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pods => "pods",
            Self::Nothing => "none",
        })
    }
}

impl FromStr for Enforce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pods" => Ok(Self::Pods),
            "none" | "" => Ok(Self::Nothing),
            "kube-reserved"
            | "system-reserved"
            | "kube-reserved-compressible"
            | "system-reserved-compressible" => {
                Err(format!("{text} is not there: Knarr and the system have no cgroups that it could limit"))
            }
            _ => Err(format!("{text:?} is neither pods nor none")),
        }
    }
}

/// Returns why the reservation and thresholds exceed the capacity; `None` if they do not.
pub fn fault(capacity: &ResourceList, thresholds: &Thresholds, reserved: &Reserved) -> Option<String> {
    let faults: Vec<String> = capacity
        .iter()
        .filter_map(|(name, quantity)| {
            let whole = Quantity::try_from(quantity).ok()?;
            let whole = u64::try_from(if name == "cpu" { whole.milli_value() } else { whole.value() }).unwrap_or(0);
            let kept = reserved.of(name).saturating_add(thresholds.kept(name, whole));
            let shown = if name == "cpu" { format!("{kept}m") } else { kept.to_string() };
            (kept > whole).then(|| {
                format!(
                    "Resource {name:?} has a reservation of {shown} but capacity of {}. Expected capacity >= reservation.",
                    quantity.0
                )
            })
        })
        .collect();
    (!faults.is_empty()).then(|| format!("invalid Node Allocatable configuration. {}", faults.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_status::status::capacity;

    #[test]
    fn reservations_as_upstream_writes_them() {
        let all = "cpu=200m,memory=500Mi,ephemeral-storage=1Gi, pid=1k".parse::<Reserved>().unwrap();
        let want = Reserved {
            milli_cpu: 200,
            memory_bytes: 500 << 20,
            ephemeral_storage_bytes: 1 << 30,
            pids: 1000,
        };
        assert_eq!(all, want);
        let shown: Vec<String> = all.to_map().into_iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(shown, ["cpu=200m", "ephemeral-storage=1Gi", "memory=500Mi", "pid=1k"]);
        assert_eq!("".parse(), Ok(Reserved::default()));
        assert!(Reserved::default().to_map().is_empty());
        for (wrong, why) in [
            ("memory", "memory: this is not of the form memory=500Mi"),
            ("gpu=1", "cannot reserve \"gpu\" resource"),
            ("memory=-1Mi", "resource quantity for \"memory\" cannot be negative: -1Mi"),
            ("cpu=x", "failed to parse quantity \"x\" for \"cpu\" resource: "),
        ] {
            let error = wrong.parse::<Reserved>().unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn what_is_enforced() {
        for (text, want) in
            [("pods", Some(Enforce::Pods)), ("none", Some(Enforce::Nothing)), ("", Some(Enforce::Nothing))]
        {
            assert_eq!(text.parse::<Enforce>().ok(), want);
        }
        assert!("system-reserved".parse::<Enforce>().unwrap_err().contains("no cgroups"));
        assert!("pod".parse::<Enforce>().is_err());
        assert_eq!(Enforce::default().to_string(), "pods");
    }

    #[test]
    fn a_server_keeps_a_part_of_the_memory() {
        let of =
            |memory_bytes| Reserved::of_server(&Machine { memory_bytes, ..Machine::default() }).memory_bytes;
        assert_eq!([of(1 << 30), of(8 << 30), of(64 << 30)], [51 << 20, 409 << 20, 512 << 20]);
    }

    #[test]
    fn no_more_is_kept_than_there_is() {
        let machine = Machine { cpus: 2, memory_bytes: 1 << 30, ..Machine::default() };
        let capacity = capacity(&machine, 10_000, 110);
        let of = |text: &str| fault(&capacity, &Thresholds::default(), &text.parse().unwrap());
        assert_eq!(of("cpu=2,memory=924Mi,ephemeral-storage=9000,pid=1M"), None);
        assert_eq!(
            of("cpu=2001m,memory=925Mi").unwrap(),
            "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of 2001m but capacity of 2. \
             Expected capacity >= reservation. Resource \"memory\" has a reservation of 1074790400 but capacity of 1Gi. \
             Expected capacity >= reservation."
        );
    }
}
