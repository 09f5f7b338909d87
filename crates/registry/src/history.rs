//! Watches that start before the oldest event of the watch cache: the store's history supplies the events in between.

use std::sync::Arc;

use knarr_apimachinery::status::StatusError;
use knarr_storage::{Error, Event, EventKind, WatchItem, WatchRequest};
use tokio::sync::Semaphore;

use super::served::Served;
use super::store_errors::status_of;
use crate::Registry;
use crate::cache::CacheEvent;

/// A longer history is not worth its memory: the client must list again.
const MAX_EVENTS: usize = 20_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// How many histories are read at the same time, because after a restart all clients resume their watches at once.
static READERS: Semaphore = Semaphore::const_new(4);

/// The changes of a resource between two revisions.
pub struct Gap {
    pub events: Vec<Arc<CacheEvent>>,
    /// The revision up to which `events` is complete.
    pub through: u64,
}

/// Returns the changes after revision `after` up to the caches' current revision; `None` if the store has compacted
/// them or they are too many.
pub async fn since(registry: &Registry, served: &Served, after: u64) -> Result<Option<Gap>, StatusError> {
    // The semaphore is never closed, so this cannot fail.
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
