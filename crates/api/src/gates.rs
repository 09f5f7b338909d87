//! Feature gates that are off by default and decide which fields the API accepts. They are set once, when the process
//! starts, and read wherever objects are defaulted.

use std::sync::atomic::{AtomicBool, Ordering};

/// A feature gate of the whole process.
#[derive(Debug)]
pub struct Gate(AtomicBool);

/// Pods name a PodGroup to be scheduled with (KEP-4671).
pub static GENERIC_WORKLOAD: Gate = Gate(AtomicBool::new(false));

/// The API server elects the holders of leases among candidates (KEP-4355).
pub static COORDINATED_LEADER_ELECTION: Gate = Gate(AtomicBool::new(false));

/// API servers publish the versions in which they store resources (KEP-2339).
pub static STORAGE_VERSION_API: Gate = Gate(AtomicBool::new(false));

impl Gate {
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}
