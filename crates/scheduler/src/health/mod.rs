//! Node failure awareness: breakers for nodes on which pods do not start, and holds for workloads that make one node
//! after another fail. Plugins read it; the scheduler's event handlers feed it.

pub mod breaker;
pub mod chain;
pub mod observe;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use breaker::{Breakers, Thresholds, Trust};
use chain::{Chains, Held, Limits};

/// `nodeFailureAwareness` of the configuration file, Knarr's own field.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Awareness {
    /// Switches the whole feature on.
    pub enabled: bool,
    pub breaker: Thresholds,
    pub hold: Limits,
}

impl Default for Awareness {
    fn default() -> Self {
        Self { enabled: true, breaker: Thresholds::default(), hold: Limits::default() }
    }
}

/// The breakers of nodes and the holds of workloads. Times are durations since the Unix epoch.
#[derive(Default)]
pub struct Health {
    inner: Mutex<Inner>,
    version: AtomicU64,
}

#[derive(Default)]
struct Inner {
    enabled: bool,
    breakers: Breakers,
    chains: Chains,
}

impl Health {
    /// Sets the configuration. The feature is off until then.
    pub fn configure(&self, awareness: &Awareness) {
        let mut inner = self.lock();
        inner.enabled = awareness.enabled;
        inner.breakers.thresholds = awareness.breaker.clone();
        inner.chains.limits = awareness.hold.clone();
    }

    /// Returns whether the feature is on.
    pub fn is_enabled(&self) -> bool {
        self.lock().enabled
    }

    /// A number that increases with every change that results of plugins may depend on.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// The state of the node's breaker.
    pub fn trust(&self, node: &str) -> Trust {
        self.lock().breakers.trust(node)
    }

    /// The nodes without full trust.
    pub fn distrusted(&self) -> Vec<(String, Trust)> {
        self.lock().breakers.distrusted().map(|(node, trust)| (node.to_owned(), trust)).collect()
    }

    /// Returns whether a pod may be placed on the node now.
    pub fn admits(&self, node: &str) -> bool {
        self.lock().breakers.admits(node)
    }

    /// Records that a pod will be placed on the node.
    pub fn begin(&self, node: &str, pod: &str) {
        if self.lock().breakers.begin(node, pod) {
            self.changed();
        }
    }

    /// Records that a pod left before it started or failed. Returns true if it was on trial.
    pub fn withdraw(&self, node: &str, pod: &str) -> bool {
        let own = self.lock().breakers.withdraw(node, pod);
        if own {
            self.changed();
        }
        own
    }

    /// Records that a pod started on the node or failed to. Returns true when the node's trust has changed.
    pub fn observe(&self, node: &str, owner: &str, pod: &str, failed: bool, now: Duration) -> bool {
        let mut inner = self.lock();
        let changed = inner.enabled && inner.breakers.observe(node, owner, pod, failed, now);
        drop(inner);
        if changed {
            self.changed();
        }
        changed
    }

    /// Records that pods of an owner (or an image) have started somewhere.
    pub fn vouch(&self, owner: &str, now: Duration) {
        self.lock().breakers.vouch(owner, now);
    }

    /// Records that a node failed with pods of these owners; see [`Chains::node_fell`].
    pub fn node_fell(&self, node: &str, owners: &[(String, Duration)], now: Duration) -> Vec<(String, Held)> {
        let mut inner = self.lock();
        if !inner.enabled {
            return Vec::new();
        }
        let owners = owners.iter().map(|(owner, came)| (owner.as_str(), *came));
        let held = inner.chains.node_fell(node, owners, now);
        let held: Vec<_> = held.into_iter().filter_map(|o| inner.chains.held(&o).map(|h| (o, h))).collect();
        drop(inner);
        if !held.is_empty() {
            self.changed();
        }
        held
    }

    /// Returns the hold of the owner's pods, if there is one.
    pub fn held(&self, owner: &str) -> Option<Held> {
        self.lock().chains.held(owner)
    }

    /// The number of workloads that are held back.
    pub fn count_held(&self) -> usize {
        self.lock().chains.count_held()
    }

    /// Ends the hold of an owner on request. Returns true when it was held.
    pub fn release(&self, owner: &str) -> bool {
        let released = self.lock().chains.release(owner);
        if released {
            self.changed();
        }
        released
    }

    /// Removes a deleted node.
    pub fn forget_node(&self, node: &str) {
        self.lock().breakers.forget(node);
    }

    /// Returns when the next change by the passage of time alone is due.
    pub fn next_due(&self) -> Option<Duration> {
        let inner = self.lock();
        inner.breakers.next_due().into_iter().chain(inner.chains.next_due()).min()
    }

    /// Applies the changes that are due at `now`. Returns the nodes whose trust has changed, and whether a hold has
    /// ended.
    pub fn tick(&self, now: Duration) -> (Vec<String>, bool) {
        let mut inner = self.lock();
        let (nodes, released) = (inner.breakers.tick(now), inner.chains.tick(now));
        drop(inner);
        if released || !nodes.is_empty() {
            self.changed();
        }
        (nodes, released)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
