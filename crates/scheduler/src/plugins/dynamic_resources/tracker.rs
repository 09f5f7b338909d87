//! Claims as the scheduler knows them: allocations not written yet, and writes that the informer does not show yet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_api::kind::Kind;

use super::taken::Taken;
use crate::framework::Catalog;

/// Both by the claims' uids.
#[derive(Default)]
struct Held {
    /// Claims with allocations that are decided but not written.
    in_flight: BTreeMap<String, Arc<ResourceClaim>>,
    written: BTreeMap<String, Arc<ResourceClaim>>,
}

/// Shared by the plugin's profiles, which allocate from the same devices.
#[derive(Default)]
pub struct Tracker {
    held: Mutex<Held>,
    version: AtomicU64,
}

impl Tracker {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that increases with every change.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the newest known version of the claim.
    pub fn get(&self, catalog: &Catalog, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        let shown = catalog.get::<ResourceClaim>(namespace, name)?;
        Some(over(&self.lock(), shown))
    }

    /// Returns whether an allocation of the claim is being written.
    pub fn is_in_flight(&self, uid: &str) -> bool {
        self.lock().in_flight.contains_key(uid)
    }

    /// Makes an allocation count before it is written.
    pub fn begin(&self, claim: Arc<ResourceClaim>) {
        self.lock().in_flight.insert(claim.uid().to_owned(), claim);
        self.changed();
    }

    /// Removes an allocation that was not written.
    pub fn cancel(&self, uid: &str) {
        if self.lock().in_flight.remove(uid).is_some() {
            self.changed();
        }
    }

    /// Records a written claim. It counts until the informer shows a newer version.
    pub fn wrote(&self, claim: Arc<ResourceClaim>) {
        let mut held = self.lock();
        held.in_flight.remove(claim.uid());
        held.written.insert(claim.uid().to_owned(), claim);
        drop(held);
        self.changed();
    }

    /// The devices in use by all claims.
    pub fn taken(&self, catalog: &Catalog) -> Taken {
        // Listed under the lock: a claim written in the meantime would otherwise count as deleted.
        let mut held = self.lock();
        let shown = catalog.list::<ResourceClaim>(None);
        if !held.written.is_empty() {
            let versions: BTreeMap<&str, u64> = shown.iter().map(|c| (c.uid(), version(c))).collect();
            // A claim that the informer no longer shows has been deleted.
            held.written
                .retain(|uid, own| versions.get(uid.as_str()).is_some_and(|shown| *shown < version(own)));
        }
        let mut taken = Taken::default();
        shown.into_iter().for_each(|claim| taken.add(&over(&held, claim)));
        held.in_flight.values().for_each(|claim| taken.add(claim));
        taken
    }
}

fn version(claim: &ResourceClaim) -> u64 {
    claim.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn over(held: &Held, shown: Arc<ResourceClaim>) -> Arc<ResourceClaim> {
    match held.written.get(shown.uid()) {
        Some(own) if version(own) > version(&shown) => Arc::clone(own),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(version: &str, device: Option<&str>) -> ResourceClaim {
        let results = device.map(
            |d| json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": d}]}}),
        );
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "1", "resourceVersion": version},
            "spec": {}, "status": {"allocation": results}}))
        .unwrap()
    }

    #[test]
    fn what_is_decided_counts_until_it_is_shown() {
        let (catalog, tracker) = (Catalog::default(), Tracker::default());
        let taken = |tracker: &Tracker| {
            tracker.taken(&catalog).whole.into_iter().map(|id| id.device).collect::<Vec<_>>()
        };
        let none: Vec<String> = Vec::new();
        catalog.put(claim("1", None));
        assert_eq!(taken(&tracker), none);
        tracker.begin(Arc::new(claim("1", Some("x"))));
        assert!(tracker.is_in_flight("1"));
        assert_eq!(taken(&tracker), ["x"]);
        tracker.wrote(Arc::new(claim("2", Some("x"))));
        assert!(!tracker.is_in_flight("1"));
        assert_eq!(taken(&tracker), ["x"]);
        let allocated = tracker.get(&catalog, "ns", "c").unwrap().status.clone().unwrap().allocation;
        assert!(allocated.is_some());
        catalog.put(claim("3", None));
        assert_eq!(taken(&tracker), none, "it was deallocated");
        tracker.begin(Arc::new(claim("3", Some("y"))));
        let version = tracker.version();
        tracker.cancel("1");
        assert_eq!(taken(&tracker), none);
        assert_ne!(tracker.version(), version);
    }
}
