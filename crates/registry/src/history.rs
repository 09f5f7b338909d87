//! Watches from before what the watch cache remembers: the store's own history fills the gap.

use std::sync::Arc;

use knarr_apimachinery::status::StatusError;
use knarr_storage::{Error, Event, EventKind, WatchItem, WatchRequest};
use tokio::sync::Semaphore;

use super::served::Served;
use super::store::status_of;
use crate::Registry;
use crate::cache::CacheEvent;

/// A longer history than this is not worth its memory: the client lists anew.
const MAX_EVENTS: usize = 20_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Histories read at the same time: after a restart all watches come back at once.
static READERS: Semaphore = Semaphore::const_new(4);

/// What changed of a resource between two revisions.
pub struct Gap {
    pub events: Vec<Arc<CacheEvent>>,
    /// Everything up to this revision is among the events.
    pub through: u64,
}

/// The changes after `after` up to what the caches hold now; `None` if they are no longer kept.
pub async fn since(registry: &Registry, served: &Served, after: u64) -> Result<Option<Gap>, StatusError> {
    // Never closed, so that this cannot fail.
    let _turn = READERS.acquire().await;
    let target = registry.caches.applied();
    let request = WatchRequest::prefix(served.prefix(None)).after(after);
    let mut watch = match registry.store.watch(request).await {
        Ok(watch) => watch,
        Err(Error::Compacted { .. } | Error::FutureRevision { .. }) => return Ok(None),
        Err(error) => return Err(status_of(&error)),
    };
    watch.progress_requester().request();
    let (mut events, mut bytes) = (Vec::new(), 0);
    loop {
        let item = match watch.next().await {
            Some(Ok(item)) => item,
            Some(Err(Error::Compacted { .. } | Error::FutureRevision { .. })) | None => return Ok(None),
            Some(Err(error)) => return Err(status_of(&error)),
        };
        if let WatchItem::Events(batch) = &item {
            for event in &batch.events {
                bytes += event.kv.value.len() + event.prev.as_ref().map_or(0, |prev| prev.value.len());
                events.push(Arc::new(cache_event(served, event)?));
            }
        }
        if events.len() > MAX_EVENTS || bytes > MAX_BYTES {
            return Ok(None);
        }
        if item.revision() >= target {
            return Ok(Some(Gap { events, through: item.revision() }));
        }
    }
}

fn cache_event(served: &Served, event: &Event) -> Result<CacheEvent, StatusError> {
    let parse = |value, revision| served.held(value, revision);
    let previous = event.prev.as_ref().map(|kv| parse(&kv.value, kv.mod_revision)).transpose()?;
    let deleted = event.kind == EventKind::Delete;
    let object = match (&event.prev, deleted) {
        (Some(last), true) => parse(&last.value, event.kv.mod_revision)?,
        _ => parse(&event.kv.value, event.kv.mod_revision)?,
    };
    Ok(CacheEvent::new(object, previous, deleted))
}
