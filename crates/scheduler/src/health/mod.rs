//! Awareness of failing nodes: breakers for nodes on which pods do not start, and holds for workloads that take one node
//! after another with them. Plugins ask it, the scheduler's handlers tell it.

pub mod breaker;
pub mod chain;
pub mod observe;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use breaker::{Breakers, Thresholds, Trust};
use chain::{Chains, Held, Limits};

/// `nodeFailureAwareness` of the configuration file; not upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Awareness {
    /// The switch for all of it.
    pub enabled: bool,
    pub breaker: Thresholds,
    pub hold: Limits,
}

impl Default for Awareness {
    fn default() -> Self {
        Self { enabled: true, breaker: Thresholds::default(), hold: Limits::default() }
    }
}

/// What is thought of nodes and workloads. Times are since 1970.
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
    /// Off until this is called.
    pub fn configure(&self, awareness: &Awareness) {
        let mut inner = self.lock();
        inner.enabled = awareness.enabled;
        inner.breakers.thresholds = awareness.breaker.clone();
        inner.chains.limits = awareness.hold.clone();
    }

    pub fn is_enabled(&self) -> bool {
        self.lock().enabled
    }

    /// Goes up with every change that a plugin's verdict may depend on.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    pub fn trust(&self, node: &str) -> Trust {
        self.lock().breakers.trust(node)
    }

    /// The nodes that are not trusted in full.
    pub fn distrusted(&self) -> Vec<(String, Trust)> {
        self.lock().breakers.distrusted().map(|(node, trust)| (node.to_owned(), trust)).collect()
    }

    pub fn admits(&self, node: &str) -> bool {
        self.lock().breakers.admits(node)
    }

    /// A pod is about to be put there.
    pub fn begin(&self, node: &str, pod: &str) {
        if self.lock().breakers.begin(node, pod) {
            self.changed();
        }
    }

    /// A pod leaves before it was seen to start or to fail.
    pub fn withdraw(&self, node: &str, pod: &str) -> bool {
        let own = self.lock().breakers.withdraw(node, pod);
        if own {
            self.changed();
        }
        own
    }

    /// A pod started there, or failed to. True when what is thought of the node has changed.
    pub fn observe(&self, node: &str, owner: &str, pod: &str, failed: bool, now: Duration) -> bool {
        let mut inner = self.lock();
        let changed = inner.enabled && inner.breakers.observe(node, owner, pod, failed, now);
        drop(inner);
        if changed {
            self.changed();
        }
        changed
    }

    /// Something that failed elsewhere can start after all.
    pub fn vouch(&self, owner: &str, now: Duration) {
        self.lock().breakers.vouch(owner, now);
    }

    /// A node fell with these owners' pods on it; see [`Chains::node_fell`].
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

    pub fn held(&self, owner: &str) -> Option<Held> {
        self.lock().chains.held(owner)
    }

    pub fn count_held(&self) -> usize {
        self.lock().chains.count_held()
    }

    /// Somebody answers for the owner.
    pub fn release(&self, owner: &str) -> bool {
        let released = self.lock().chains.release(owner);
        if released {
            self.changed();
        }
        released
    }

    pub fn forget_node(&self, node: &str) {
        self.lock().breakers.forget(node);
    }

    /// When time alone changes something next.
    pub fn next_due(&self) -> Option<Duration> {
        let inner = self.lock();
        inner.breakers.next_due().into_iter().chain(inner.chains.next_due()).min()
    }

    /// Lets time pass: the nodes of which something else is thought now, and whether a workload was let go.
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
