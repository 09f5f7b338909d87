//! Disk usage of the containers' writable layers, without a walk for each request.
//!
//! A container determines how long a walk takes, because it may have millions of files. Therefore a result is
//! reused for a while, at most one walk at a time runs per layer, few run in total, and callers wait only
//! briefly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::error::ImageError;
use super::usage::DiskUsage;

/// How long a result is reused: at least this long, and at least this many times the duration of its walk.
const FRESH: Duration = Duration::from_secs(10);
const FRESH_PER_WALK: u32 = 20;
/// How long a caller waits for a walk; after that it gets the last result.
const WAIT: Duration = Duration::from_secs(1);
const MAX_WALKS: usize = 2;

#[derive(Default)]
struct Entry {
    last: Option<Figure>,
    /// Closed when the running walk has ended.
    walk: Option<watch::Receiver<()>>,
}

#[derive(Clone, Copy)]
struct Figure {
    usage: DiskUsage,
    at: Instant,
    took: Duration,
}

impl Figure {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < FRESH.max(self.took.saturating_mul(FRESH_PER_WALK))
    }
}

/// The results by name of the snapshot.
pub struct Measured {
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
    walks: Arc<Semaphore>,
}

impl Default for Measured {
    fn default() -> Self {
        Self { entries: Arc::default(), walks: Arc::new(Semaphore::new(MAX_WALKS)) }
    }
}

fn lock(entries: &Mutex<BTreeMap<String, Entry>>) -> MutexGuard<'_, BTreeMap<String, Entry>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Measured {
    /// Returns the usage of a snapshot; `None` while it is not known yet.
    pub async fn usage(
        &self,
        name: &str,
        walk: impl FnOnce() -> Result<DiskUsage, ImageError> + Send + 'static,
    ) -> Option<DiskUsage> {
        let mut ended = {
            let mut entries = lock(&self.entries);
            let entry = entries.entry(name.to_owned()).or_default();
            if let Some(figure) = entry.last.filter(|figure| figure.is_fresh(Instant::now())) {
                return Some(figure.usage);
            }
            let going_on = entry.walk.clone().filter(|walk| walk.has_changed().is_ok());
            going_on.unwrap_or_else(|| {
                let ended = self.start(name.to_owned(), walk);
                entry.walk = Some(ended.clone());
                ended
            })
        };
        // Nothing is ever sent: the channel closes when the walk ends.
        let _ = tokio::time::timeout(WAIT, ended.changed()).await;
        lock(&self.entries).get(name).and_then(|entry| entry.last).map(|figure| figure.usage)
    }

    /// Starts a walk, which continues even if no caller waits for it any longer.
    fn start(
        &self,
        name: String,
        walk: impl FnOnce() -> Result<DiskUsage, ImageError> + Send + 'static,
    ) -> watch::Receiver<()> {
        let (going_on, ended) = watch::channel(());
        let (entries, walks) = (Arc::clone(&self.entries), Arc::clone(&self.walks));
        tokio::spawn(async move {
            let _going_on = going_on;
            // The semaphore is never closed.
            let _turn = walks.acquire().await;
            let began = Instant::now();
            let result = tokio::task::spawn_blocking(walk).await;
            let at = Instant::now();
            let mut entries = lock(&entries);
            match result.unwrap_or(Err(ImageError::Panicked("measuring a snapshot"))) {
                // If the entry is missing, the snapshot was removed meanwhile.
                Ok(usage) => {
                    if let Some(entry) = entries.get_mut(&name) {
                        entry.last = Some(Figure { usage, at, took: at - began });
                    }
                }
                Err(error) => {
                    tracing::debug!(snapshot = name, error = error.chain(), "cannot measure a snapshot");
                    entries.remove(&name);
                }
            }
        });
        ended
    }

    /// Forgets the result of a removed snapshot.
    pub fn forget(&self, name: &str) {
        lock(&self.entries).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn usage(inodes: u64) -> DiskUsage {
        DiskUsage { bytes: 0, inodes }
    }

    #[test]
    fn long_walks_are_rare() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let fresh = |took: u32, age: u32| {
            Figure { usage: usage(1), at, took: second * took }.is_fresh(at + second * age)
        };
        assert_eq!((fresh(0, 9), fresh(0, 11)), (true, false));
        assert_eq!((fresh(60, 1199), fresh(60, 1201)), (true, false));
    }

    #[tokio::test]
    async fn many_questions_are_one_walk() {
        let (measured, count) = (Measured::default(), Arc::new(AtomicU64::new(0)));
        let ask = || {
            let count = Arc::clone(&count);
            measured.usage("a", move || Ok(usage(count.fetch_add(1, Ordering::Relaxed) + 1)))
        };
        let answers = futures_util::future::join_all((0..20).map(|_| ask())).await;
        assert!(answers.iter().all(|answer| *answer == Some(usage(1))), "{answers:?}");
        assert_eq!(ask().await, Some(usage(1)));
        measured.forget("a");
        assert_eq!(ask().await, Some(usage(2)));
    }

    #[tokio::test]
    async fn nobody_waits_for_a_long_walk() {
        let measured = Measured::default();
        let (go_on, held) = mpsc::channel::<()>();
        let long = move || {
            let _ = held.recv();
            Ok(usage(7))
        };
        assert_eq!(measured.usage("a", long).await, None);
        assert_eq!(measured.usage("b", || Ok(usage(3))).await, Some(usage(3)), "another container");
        drop(go_on);
        assert_eq!(measured.usage("a", || Ok(usage(8))).await, Some(usage(7)), "the walk that continued");
    }

    #[tokio::test]
    async fn what_was_removed_is_not_kept() {
        let measured = Measured::default();
        let entries = Arc::clone(&measured.entries);
        let walk = move || {
            lock(&entries).remove("a");
            Ok(usage(1))
        };
        assert_eq!(measured.usage("a", walk).await, None);
        assert!(lock(&measured.entries).is_empty());
    }
}
