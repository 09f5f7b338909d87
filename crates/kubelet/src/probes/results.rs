//! The results of probes, by container id.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    Failure,
    Unknown,
}

impl std::fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Unknown => "unknown",
        })
    }
}

/// The results of one kind of probe.
#[derive(Debug, Clone, Default)]
pub struct Results(Arc<Mutex<BTreeMap<String, ProbeResult>>>);

impl Results {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ProbeResult>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, container_id: &str) -> Option<ProbeResult> {
        self.lock().get(container_id).copied()
    }

    /// Sets the result; returns whether it has changed.
    pub fn set(&self, container_id: &str, result: ProbeResult) -> bool {
        self.lock().insert(container_id.to_owned(), result) != Some(result)
    }

    pub fn remove(&self, container_id: &str) {
        self.lock().remove(container_id);
    }
}

/// All results of the node. Cheap to clone; clones share the results.
#[derive(Debug, Clone, Default)]
pub struct ProbeResults {
    pub liveness: Results,
    pub readiness: Results,
    pub startup: Results,
}
