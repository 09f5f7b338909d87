//! The limits of an engine and the time it goes by, all in one place.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::types::KeyRange;

/// Names the share that a key belongs to; `None` for keys of no share.
pub type ShareOf = fn(&[u8]) -> Option<&[u8]>;

/// Time since some fixed point, never going back. Leases are measured by it.
#[derive(Clone)]
pub struct TimeSource(Arc<dyn Fn() -> Duration + Send + Sync>);

impl TimeSource {
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The machine's monotonic clock.
    pub fn system() -> Self {
        let start = Instant::now();
        Self::new(move || start.elapsed())
    }

    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimeSource")
    }
}

/// Every limit of the embedded engine.
#[derive(Debug, Clone)]
pub struct Options {
    pub max_key_bytes: usize,
    pub max_value_bytes: usize,
    /// Operations, and conditions, of one transaction.
    pub max_txn_ops: usize,
    /// Writes waiting for the commit thread; further writers wait their turn.
    pub queue_requests: usize,
    /// Writes that share one fsync, by number and by size.
    pub batch_requests: usize,
    pub batch_bytes: usize,
    /// Batches that may wait in one watcher's buffer before it has to read from history again.
    pub watch_buffer: usize,
    /// Revisions of history, above which the oldest are compacted whether asked for or not.
    pub history_revisions: usize,
    /// The same by the memory that superseded values take.
    pub history_bytes: usize,
    /// The database's page cache. Small: reads never come from it.
    pub cache_bytes: usize,
    /// The file that is kept beside the store so that deletions go through on a full disk; 0 for none.
    pub reserve_bytes: u64,
    /// What the live keys may take together, each counted with its value and 256 bytes more; 0 for no quota. The history
    /// has limits of its own.
    pub quota_bytes: u64,
    /// Keys that may be written beyond the quota, as far as a reserve for them goes.
    pub reserved: Vec<KeyRange>,
    /// Divides the keys into shares; one that belongs to none is not limited by [`Options::share_bytes`].
    pub share_of: Option<ShareOf>,
    /// What the live keys of one share may take, counted as for the quota; 0 for no limit.
    pub share_bytes: u64,
    pub time: TimeSource,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_key_bytes: 2 * 1024,
            max_value_bytes: 3 * 1024 * 1024,
            max_txn_ops: 128,
            queue_requests: 1024,
            batch_requests: 512,
            batch_bytes: 8 * 1024 * 1024,
            watch_buffer: 128,
            history_revisions: 200_000,
            history_bytes: 64 * 1024 * 1024,
            cache_bytes: 16 * 1024 * 1024,
            reserve_bytes: 16 * 1024 * 1024,
            quota_bytes: 0,
            reserved: Vec::new(),
            share_of: None,
            share_bytes: 0,
            time: TimeSource::system(),
        }
    }
}
