//! Reads the store's file once a day, slowly, and says what of it is not as it was written. The state is in memory, so
//! nothing else would notice before the next start.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::ObjectReference;
use knarr_apimachinery::clock::Clock;
use knarr_client::events::{EventRecorder, EventType};
use knarr_storage::{ScrubStep, Store};
use tokio_util::sync::CancellationToken;

/// The first look comes when the server has been up for a while.
const FIRST: Duration = Duration::from_secs(15 * 60);
const EVERY: Duration = Duration::from_secs(86_400);
/// Between two steps, each of which reads about a megabyte.
const PAUSE: Duration = Duration::from_secs(1);
/// Keys that an event names.
const NAMED: usize = 3;

pub const REASON: &str = "StoreDamaged";

/// What looks have come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    bytes: u64,
    /// Of the last whole look.
    faults: u64,
    /// Seconds since 1970.
    last: Option<i64>,
}

/// Looks at the file of a store.
#[derive(Debug, Clone, Default)]
pub struct Scrub {
    counts: Arc<Mutex<Counts>>,
}

impl Scrub {
    /// The text of the metrics, from now on.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || metrics(*counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks again and again until `stop`; events are about the Node of this name.
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
                match self.look(&*store, &*clock).await {
                    Ok(None) => return,
                    Ok(Some(faults)) if faults.is_empty() => {}
                    Ok(Some(faults)) => {
                        for (key, reason) in &faults {
                            let key = String::from_utf8_lossy(key);
                            tracing::error!(%key, reason, "the store's file is damaged");
                        }
                        events.event_about(about(&node), EventType::Warning, REASON, words(&faults));
                    }
                    Err(error) => tracing::warn!("the store's file was not looked at: {error}"),
                }
                clock.sleep(EVERY).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    /// Looks at the whole file; `None` if there is none.
    async fn look(
        &self,
        store: &dyn Store,
        clock: &dyn Clock,
    ) -> knarr_storage::Result<Option<Vec<(Bytes, String)>>> {
        let (mut after, mut faults) = (None, Vec::new());
        loop {
            let Some(step) = store.scrub(after).await? else { return Ok(None) };
            let ScrubStep { next, bytes, faults: found, .. } = step;
            faults.extend(found);
            self.count(|counts| counts.bytes += bytes);
            if next.is_none() {
                self.count(|counts| {
                    counts.faults = faults.len() as u64;
                    counts.last = Some(clock.now().as_second());
                });
                return Ok(Some(faults));
            }
            after = next;
            clock.sleep(PAUSE).await;
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn about(node: &str) -> ObjectReference {
    let name = Some(node.to_owned());
    ObjectReference { kind: Some("Node".to_owned()), uid: name.clone(), name, ..ObjectReference::default() }
}

/// What an event says.
fn words(faults: &[(Bytes, String)]) -> String {
    let named: Vec<String> = faults
        .iter()
        .take(NAMED)
        .map(|(key, reason)| format!("{} ({reason})", String::from_utf8_lossy(key)))
        .collect();
    let more = faults.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "The store's file is damaged at {}{more}. Memory is sound: take a backup before the server stops, and look at the \
         disk",
        named.join(", ")
    )
}

fn metrics(counts: Counts) -> String {
    let family = |name: &str, kind: &str, help: &str, value: String| {
        format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
    };
    let mut text = family(
        "knarr_storage_scrub_bytes_total",
        "counter",
        "Bytes of the store's file that were read and held against memory.",
        counts.bytes.to_string(),
    );
    text += &family(
        "knarr_storage_scrub_damaged_keys",
        "gauge",
        "Keys that the last whole look at the store's file found damaged.",
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

    /// Counts how often somebody waits; no time passes.
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
        assert_eq!(scrub.look(&store, &clock).await.unwrap(), Some(Vec::new()));
        let text = scrub.metrics()();
        assert!(text.contains("\nknarr_storage_scrub_damaged_keys 0\n"), "{text}");
        assert!(text.contains("\nknarr_storage_scrub_last_completed_timestamp_seconds 0\n"), "{text}");
        let bytes = scrub.counts.lock().unwrap().bytes;
        assert!((2_800_000..2_810_000).contains(&bytes), "{bytes}");
        assert_eq!(clock.0.load(Ordering::Relaxed), 1, "two rows are above a megabyte");
        store.close().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let memory = knarr_storage::Embedded::memory(options);
        assert_eq!(scrub.look(&memory, &clock).await.unwrap(), None);
    }

    #[test]
    fn events_name_some_keys() {
        let fault = |n: usize| (Bytes::from(format!("/k{n}")), "torn".to_owned());
        let said = words(&(0..2).map(fault).collect::<Vec<_>>());
        assert!(said.starts_with("The store's file is damaged at /k0 (torn), /k1 (torn). Memory"), "{said}");
        let said = words(&(0..9).map(fault).collect::<Vec<_>>());
        assert!(said.contains("/k2 (torn) and 6 more."), "{said}");
    }
}
