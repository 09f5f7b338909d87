//! The limits of an engine and its time source.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::types::KeyRange;

/// Returns the share that a key belongs to; `None` if it belongs to none.
pub type ShareOf = fn(&[u8]) -> Option<&[u8]>;

/// The time since a fixed point, which never goes back. Leases are based on it.
#[derive(Clone)]
pub struct TimeSource(Arc<dyn Fn() -> Duration + Send + Sync>);

impl TimeSource {
    /// Creates a time source from a function, which must never go back.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The system's monotonic clock.
    pub fn system() -> Self {
        let start = Instant::now();
        Self::new(move || start.elapsed())
    }

    /// The current time.
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimeSource")
    }
}

/// All limits of the embedded engine.
#[derive(Debug, Clone)]
pub struct Options {
    pub max_key_bytes: usize,
    pub max_value_bytes: usize,
    /// The number of operations, and of conditions, in one transaction.
    pub max_txn_ops: usize,
    /// The number of writes queued for the commit thread; further writers wait for a place.
    pub queue_requests: usize,
    /// The maximum number and size of the writes that share one fsync.
    pub batch_requests: usize,
    pub batch_bytes: usize,
    /// The number of batches in a watcher's buffer; when it is full, the watcher reads from history again.
    pub watch_buffer: usize,
    /// The number of revisions in the history; the oldest above it are compacted automatically.
    pub history_revisions: usize,
    /// The limit of the history by the memory of superseded values.
    pub history_bytes: usize,
    /// The size of the database's page cache. It is small, because reads never use it.
    pub cache_bytes: usize,
    /// The size of the file that is kept beside the store, so that deletions succeed on a full disk; 0 for none.
    pub reserve_bytes: u64,
    /// The limit on the size of all live keys, each counted with its value and 256 bytes more; 0 for no quota. The
    /// history has limits of its own.
    pub quota_bytes: u64,
    /// Keys that may be written beyond the quota, within a reserve for them.
    pub reserved: Vec<KeyRange>,
    /// Assigns keys to shares. A key without a share is not limited by [`Options::share_bytes`].
    pub share_of: Option<ShareOf>,
    /// The limit on the size of the live keys of one share, counted as for the quota; 0 for no limit.
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
