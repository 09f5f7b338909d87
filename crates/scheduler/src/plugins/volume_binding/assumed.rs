//! Assumed objects: the expected state after a write, used instead of the informer's until that is newer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use knarr_api::kind::{Kind, ObjectKey};

/// The assumed objects of one kind.
pub struct Assumed<K> {
    held: Mutex<HashMap<ObjectKey, Arc<K>>>,
    version: AtomicU64,
}

impl<K> Default for Assumed<K> {
    fn default() -> Self {
        Self { held: Mutex::default(), version: AtomicU64::new(0) }
    }
}

impl<K: Kind> Assumed<K> {
    /// Returns the assumed state of an object from the informer if it was made from that very version, otherwise the
    /// object.
    pub fn over(&self, shown: Arc<K>) -> Arc<K> {
        let held = self.lock();
        match held.get(&shown.key()) {
            Some(own) if own.meta().resource_version == shown.meta().resource_version => Arc::clone(own),
            _ => shown,
        }
    }

    /// Stores a changed copy, which still has the version of the original.
    pub fn assume(&self, object: K) {
        self.lock().insert(object.key(), Arc::new(object));
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes an assumption, whether it was written or not.
    pub fn restore(&self, object: &K) {
        let mut held = self.lock();
        let known = held.get(&object.key());
        if known.is_some_and(|k| k.meta().resource_version == object.meta().resource_version) {
            held.remove(&object.key());
            self.version.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A number that increases with each assumption and each removal.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<K>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;

    fn claim(version: &str, volume: &str) -> PersistentVolumeClaim {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "c", "namespace": "ns", "resourceVersion": version},
            "spec": {"volumeName": volume}}))
        .unwrap()
    }

    #[test]
    fn an_assumption_holds_until_something_newer_is_shown() {
        let assumed = Assumed::default();
        let seen = |version: &str| {
            let own = assumed.over(Arc::new(claim(version, "shown")));
            own.spec.clone().unwrap().volume_name.unwrap()
        };
        assert_eq!(seen("1"), "shown");
        assumed.assume(claim("1", "assumed"));
        assert_eq!((seen("1"), seen("2")), ("assumed".to_owned(), "shown".to_owned()));
        let version = assumed.version();
        assumed.restore(&claim("2", ""));
        assert_eq!((seen("1"), assumed.version()), ("assumed".to_owned(), version), "another object");
        assumed.restore(&claim("1", ""));
        assert_eq!(seen("1"), "shown");
        assert_ne!(assumed.version(), version);
    }
}
