//! The writes of a controller that its informer may not show yet.
//!
//! A controller that counts objects in an informer which lags behind its own writes creates too many. So every
//! write's resourceVersion is recorded here, and a key waits until the informer has reached it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::ObjectKey;
use knarr_client::Error;

/// When to check again if the event that would requeue the key never arrives (after a relist).
pub const CATCH_UP: Duration = Duration::from_secs(10);

/// Stands for the resourceVersion of a write whose answer was lost.
const UNKNOWN: u64 = u64::MAX;

/// The newest own write per key.
#[derive(Default)]
pub struct Written(Mutex<HashMap<ObjectKey, u64>>);

/// Returns whether a write that ended with this error may have been carried out.
pub fn may_be_done(error: &Error) -> bool {
    error.status().is_none_or(|status| status.code() >= 500)
}

impl Written {
    /// Records the resourceVersion of a write for this key.
    pub fn note(&self, key: &ObjectKey, meta: &ObjectMeta) {
        let version = meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut map = self.lock();
        let newest = map.entry(key.clone()).or_insert(0);
        *newest = (*newest).max(version);
    }

    /// Records that a write for this key may or may not have been carried out: the key waits until
    /// [`Written::settle`].
    pub fn doubt(&self, key: &ObjectKey) {
        self.lock().insert(key.clone(), UNKNOWN);
    }

    /// Returns whether a write for this key has an unknown result.
    pub fn is_doubtful(&self, key: &ObjectKey) -> bool {
        self.lock().get(key) == Some(&UNKNOWN)
    }

    /// Ends the doubt after a live read: the newest write for this key has this version, 0 if there is none.
    pub fn settle(&self, key: &ObjectKey, version: u64) {
        self.lock().insert(key.clone(), version);
    }

    /// Returns whether the informer, which has reached `observed`, still lacks a write for this key.
    pub fn is_pending(&self, key: &ObjectKey, observed: u64) -> bool {
        let mut map = self.lock();
        match map.get(key) {
            Some(version) if *version > observed => true,
            _ => {
                map.remove(key);
                false
            }
        }
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pods deleted for each key, by name and uid, as long as the informer may still show them undeleted.
///
/// A deletion has no resourceVersion of its own to wait for. Counting a pod that is being deleted would delete
/// another one.
#[derive(Default)]
pub struct Deleted(Mutex<HashMap<ObjectKey, BTreeSet<(ObjectKey, String)>>>);

impl Deleted {
    /// Records that a pod was deleted for this key.
    pub fn note(&self, key: &ObjectKey, pod: ObjectKey, uid: &str) {
        self.lock().entry(key.clone()).or_default().insert((pod, uid.to_owned()));
    }

    /// Returns whether the informer still shows one of the pods; `is_alive` answers that for a name and uid.
    pub fn is_pending(&self, key: &ObjectKey, is_alive: impl Fn(&ObjectKey, &str) -> bool) -> bool {
        let mut map = self.lock();
        let Some(pods) = map.get_mut(key) else { return false };
        pods.retain(|(pod, uid)| is_alive(pod, uid));
        let pending = !pods.is_empty();
        if !pending {
            map.remove(key);
        }
        pending
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    #[allow(clippy::type_complexity, reason = "the type is that of the one field")]
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeSet<(ObjectKey, String)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_waits_for_its_newest_write() {
        let (written, key) = (Written::default(), ObjectKey::new("ns", "a"));
        let meta = |v: &str| ObjectMeta { resource_version: Some(v.into()), ..ObjectMeta::default() };
        written.note(&key, &meta("12"));
        written.note(&key, &meta("10"));
        assert!(written.is_pending(&key, 11));
        assert!(!written.is_pending(&key, 12));
        assert!(!written.is_pending(&key, 0), "the entry is dropped once seen");
        written.doubt(&key);
        written.note(&key, &meta("13"));
        assert!(written.is_doubtful(&key) && written.is_pending(&key, 99), "a later write ends no doubt");
        written.settle(&key, 12);
        assert!(!written.is_doubtful(&key) && written.is_pending(&key, 11) && !written.is_pending(&key, 12));
    }
    #[test]
    fn a_deleted_pod_is_waited_for_until_it_shows() {
        let (deleted, key, pod) =
            (Deleted::default(), ObjectKey::new("ns", "a"), ObjectKey::new("ns", "a-1"));
        assert!(!deleted.is_pending(&key, |_, _| true), "nothing was deleted");
        deleted.note(&key, pod.clone(), "1");
        assert!(deleted.is_pending(&key, |p, uid| (p, uid) == (&pod, "1")));
        assert!(!deleted.is_pending(&key, |_, uid| uid == "2"), "a later pod of the name is another");
        assert!(!deleted.is_pending(&key, |_, _| true), "the entry is dropped once seen");
    }
}
