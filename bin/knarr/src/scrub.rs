//! Reads the store's file once a day, slowly, and reports damage. The server works on its state in memory, so
//! nothing else would notice the damage before the next start.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_client::events::{EventRecorder, EventType};
use knarr_storage::{ScrubFault, ScrubStep, Store};
use tokio_util::sync::CancellationToken;

use crate::node_reference::node_reference;

/// The first check starts when the server has been up for a while.
const FIRST: Duration = Duration::from_secs(15 * 60);
const EVERY: Duration = Duration::from_secs(86_400);
/// The pause between two steps, each of which reads about a megabyte.
const PAUSE: Duration = Duration::from_secs(1);
/// The most faults that an event names, and that the log has.
const NAMED: usize = 3;
const LOGGED: usize = 100;

pub const REASON: &str = "StoreDamaged";

/// The results of the checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    bytes: u64,
    /// Faults of the last complete check.
    faults: u64,
    /// When the last complete check ended, in seconds since 1970.
    last: Option<i64>,
}

/// Checks the file of a store.
#[derive(Debug, Clone, Default)]
pub struct Scrub {
    counts: Arc<Mutex<Counts>>,
}

impl Scrub {
    /// Returns a function that renders the metrics.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || metrics(*counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks the file once a day until `stop`; events are about the Node of this name.
    pub async fn run(
        self,
        store: Arc<dyn Store>,
        node: String,
        events: EventRecorder,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let work = async {
            clock.sleep(FIRST).await;
            loop {
                match self.check(&*store, &*clock).await {
                    Ok(None) => return,
                    Ok(Some(found)) if found.count == 0 => {}
                    Ok(Some(found)) => {
                        for fault in &found.first {
                            tracing::error!("the store's file is damaged at {fault}");
                        }
                        events.event_about(node_reference(&node), EventType::Warning, REASON, text(&found));
                    }
                    Err(error) => tracing::warn!("the store's file was not checked: {error}"),
                }
                clock.sleep(EVERY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    /// Checks the whole file; `None` if the store has no file.
    async fn check(&self, store: &dyn Store, clock: &dyn Clock) -> knarr_storage::Result<Option<Found>> {
        let (mut from, mut found) = (None, Found::default());
        loop {
            let Some(step) = store.scrub(from).await? else { return Ok(None) };
            let ScrubStep { next, bytes, faults, .. } = step;
            found.add(faults);
            self.count(|counts| counts.bytes += bytes);
            if next.is_none() {
                self.count(|counts| {
                    counts.faults = found.count;
                    counts.last = Some(clock.now().as_second());
                });
                return Ok(Some(found));
            }
            from = next;
            clock.sleep(PAUSE).await;
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The result of one check: the number of faults, and the first of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    count: u64,
    first: Vec<ScrubFault>,
}

impl Found {
    fn add(&mut self, faults: Vec<ScrubFault>) {
        self.count += faults.len() as u64;
        let left = LOGGED.saturating_sub(self.first.len());
        self.first.extend(faults.into_iter().take(left));
    }
}

/// Returns the message of the event.
fn text(found: &Found) -> String {
    let named: Vec<String> = found.first.iter().take(NAMED).map(ToString::to_string).collect();
    let more = found.count - named.len() as u64;
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!(
        "The store's file is damaged at {}{more}. Memory is sound: take a backup before the server stops, and check the \
         disk",
        named.join("; ")
    )
}

fn metrics(counts: Counts) -> String {
    let family = |name: &str, kind: &str, help: &str, value: String| {
        format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
    };
    let mut text = family(
        "knarr_storage_scrub_bytes_total",
        "counter",
        "Bytes of the store's file that were read from the disk and held against what was written.",
        counts.bytes.to_string(),
    );
    text += &family(
        "knarr_storage_scrub_damaged_keys",
        "gauge",
        "Keys and stretches of the file that the last whole look at the store's file found damaged.",
        counts.faults.to_string(),
    );
    if let Some(last) = counts.last {
        text += &family(
            "knarr_storage_scrub_last_completed_timestamp_seconds",
            "gauge",
            "When the store's file was last looked at as a whole.",
            last.to_string(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::Timestamp;
    use knarr_apimachinery::clock::Sleep;

    use super::*;

    /// A clock that counts how often it is waited on; no time passes.
    #[derive(Default)]
    struct Waits(AtomicUsize);

    impl Clock for Waits {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
        fn sleep(&self, _: Duration) -> Sleep {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test]
    async fn the_whole_file_is_read_with_a_pause_between_steps() {
        let folder = std::env::temp_dir().join(format!("knarr-scrub-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let options = knarr_storage::Options { reserve_bytes: 0, ..knarr_storage::Options::default() };
        let store = knarr_storage::Embedded::open(&folder, options.clone()).unwrap();
        for n in 0..4u8 {
            let value = vec![n; 700_000].into();
            store.put(vec![b'k', n].into(), value, knarr_storage::Precondition::Any, None).await.unwrap();
        }
        let (scrub, clock) = (Scrub::default(), Waits::default());
        assert_eq!(scrub.check(&store, &clock).await.unwrap(), Some(Found::default()));
        let text = scrub.metrics()();
        assert!(text.contains("\nknarr_storage_scrub_damaged_keys 0\n"), "{text}");
        assert!(text.contains("\nknarr_storage_scrub_last_completed_timestamp_seconds 0\n"), "{text}");
        let file = store.status().await.unwrap().file_bytes;
        let bytes = scrub.counts.lock().unwrap().bytes;
        assert_eq!(bytes, file);
        // Two rows are above a megabyte, and the end of the file is a step of its own if it is at a whole
        // megabyte.
        let steps = file / (1 << 20) + 1 + 2;
        assert_eq!(clock.0.load(Ordering::Relaxed) as u64, steps - 1);
        store.close().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let memory = knarr_storage::Embedded::memory(options);
        assert_eq!(scrub.check(&memory, &clock).await.unwrap(), None);
    }

    #[test]
    fn events_name_some_keys() {
        let said = |faults: Vec<ScrubFault>| {
            let mut found = Found::default();
            found.add(faults);
            text(&found)
        };
        let fault = |n: usize| ScrubFault::of_key(format!("/k{n}").into(), "torn".to_owned());
        let two = said(vec![fault(0), ScrubFault::of_file(4096..8192, "torn".to_owned())]);
        assert!(
            two.starts_with("The store's file is damaged at /k0: torn; bytes 4096 to 8191: torn. Memory"),
            "{two}"
        );
        let many = said((0..9).map(fault).collect());
        assert!(many.contains("/k2: torn; and 6 more."), "{many}");
        let mut found = Found::default();
        found.add((0..2 * LOGGED).map(fault).collect());
        assert_eq!((found.count, found.first.len()), (2 * LOGGED as u64, LOGGED));
    }
}
