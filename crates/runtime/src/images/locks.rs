//! One lock per key: a second task for the same blob or layer waits for the first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

use super::digest::Digest;

type Lock = tokio::sync::Mutex<()>;

/// Locks by digest; a lock exists while it is held or waited for.
#[derive(Default)]
pub struct DigestLocks {
    locks: Mutex<BTreeMap<Digest, Weak<Lock>>>,
}

impl DigestLocks {
    pub async fn lock(&self, digest: Digest) -> OwnedMutexGuard<()> {
        self.entry(digest).lock_owned().await
    }

    /// Like `lock`, for threads that may block.
    pub fn blocking_lock(&self, digest: Digest) -> OwnedMutexGuard<()> {
        self.entry(digest).blocking_lock_owned()
    }

    fn entry(&self, digest: Digest) -> Arc<Lock> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(&digest).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Lock::new(()));
        locks.insert(digest, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_and_nothing_is_kept() {
        let locks = Arc::new(DigestLocks::default());
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let held = locks.lock(a).await;
        let other = locks.lock(b).await;
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { drop(locks.lock(a).await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(held);
        waiter.await.unwrap();
        drop(other);
        drop(locks.lock(Digest::of(b"c")).await);
        assert!(locks.locks.lock().unwrap().len() <= 1);
    }
}
