//! What a controller has written and its informer may not show yet.
//!
//! Counting objects in an informer that lags behind one's own writes makes too many of them. Every write's
//! resourceVersion is noted here, and a key waits until the informer has come that far.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::ObjectKey;
use knarr_client::Error;

/// When to look again, should the event that wakes the key never come (after a relist).
pub const CATCH_UP: Duration = Duration::from_secs(10);

/// The version of a write whose answer was lost.
const UNKNOWN: u64 = u64::MAX;

/// The newest own write per key.
#[derive(Default)]
pub struct Written(Mutex<HashMap<ObjectKey, u64>>);

/// Whether a write that ended like this may have been carried out all the same.
pub fn may_be_done(error: &Error) -> bool {
    error.status().is_none_or(|status| status.code() >= 500)
}

impl Written {
    pub fn note(&self, key: &ObjectKey, meta: &ObjectMeta) {
        let version = meta.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut map = self.lock();
        let newest = map.entry(key.clone()).or_insert(0);
        *newest = (*newest).max(version);
    }

    /// A write for this key may or may not have been carried out: the key waits until [`Written::settle`].
    pub fn doubt(&self, key: &ObjectKey) {
        self.lock().insert(key.clone(), UNKNOWN);
    }

    pub fn is_doubtful(&self, key: &ObjectKey) -> bool {
        self.lock().get(key) == Some(&UNKNOWN)
    }

    /// What is there was looked at: the newest write for this key has this version; 0 without any.
    pub fn settle(&self, key: &ObjectKey, version: u64) {
        self.lock().insert(key.clone(), version);
    }

    /// Whether the informer, which has come to `observed`, still lacks a write for this key.
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

/// The pods deleted for each key, by name and uid, as long as the informer may show them as if nothing had happened.
///
/// A deletion has no resourceVersion of its own to wait for. Counting a pod that is going would give up another one.
#[derive(Default)]
pub struct Deleted(Mutex<HashMap<ObjectKey, BTreeSet<(ObjectKey, String)>>>);

impl Deleted {
    pub fn note(&self, key: &ObjectKey, pod: ObjectKey, uid: &str) {
        self.lock().entry(key.clone()).or_default().insert((pod, uid.to_owned()));
    }

    /// Whether the informer still shows one of them alive, which `is_alive` tells of a name and uid.
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

    #[allow(clippy::type_complexity, reason = "the lock of the one field")]
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
        assert!(!written.is_pending(&key, 0), "forgotten once seen");
        written.doubt(&key);
        written.note(&key, &meta("13"));
        assert!(written.is_doubtful(&key) && written.is_pending(&key, 99), "a later write settles nothing");
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
        assert!(!deleted.is_pending(&key, |_, uid| uid == "2"), "a later pod of the name is another one");
        assert!(!deleted.is_pending(&key, |_, _| true), "forgotten once seen");
    }
}
