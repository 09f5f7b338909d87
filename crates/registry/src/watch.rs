//! Watch: a stream of changes with bookmarks, from a revision or from the current state.

use std::sync::Arc;
use std::time::Duration;

use knarr_api::resource_ref::ResourceRef;
use knarr_apimachinery::clock::Sleep;
use knarr_apimachinery::status::StatusError;
use tokio_util::sync::CancellationToken;

use super::history;
use super::list::{wait_current, wait_fresh};
use super::options::{ListParams, Version};
use super::served::Served;
use crate::Registry;
use crate::cache::{Change, Kind, Selection, WatchFrom, Watcher, left};
use knarr_wire::metrics::Metric;

/// The shortest default duration of a watch, in seconds; a random time of up to the same length is added.
const SHORTEST_DEFAULT: u64 = 1800;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How many times the store's history is read if the cache moves on in the meantime.
const RESUME_ATTEMPTS: usize = 3;

/// One item of the stream that a watching client receives.
pub enum Frame {
    Change(Change),
    /// All changes up to this revision have been sent; `initial_end` marks the end of the initial state.
    Bookmark {
        revision: u64,
        initial_end: bool,
    },
}

/// A running watch.
pub struct Session {
    registry: Arc<Registry>,
    served: Arc<Served>,
    watcher: Watcher,
    /// The part of the selection that is evaluated after conversion.
    shown: Option<Selection>,
    bookmarks: bool,
    initial_end: bool,
    /// A change that is still being converted to the requested version, which may take a while.
    converting: Option<Change>,
    /// A bookmark for this revision is sent after all pending changes.
    due: Option<u64>,
    /// The watch ends after that bookmark.
    closing: bool,
    bookmark_timer: Sleep,
    deadline: Sleep,
    stop: CancellationToken,
}

/// Starts a watch. Fails at once if the start revision is no longer available.
pub async fn start(
    registry: &Arc<Registry>,
    served: &Arc<Served>,
    namespace: Option<&str>,
    params: ListParams,
) -> Result<Session, StatusError> {
    let (from, initial_end) = match (params.send_initial_events, params.version) {
        (Some(true), version) => {
            settle(registry, version).await?;
            (WatchFrom::State, true)
        }
        (_, Version::At(revision)) => (WatchFrom::After(revision), false),
        (Some(false), _) => (WatchFrom::Now, false),
        (None, version) => {
            settle(registry, version).await?;
            (WatchFrom::State, false)
        }
    };
    let watcher = watcher(registry, served, namespace, params.selection, from).await?;
    let shown = params.shown;
    let seconds =
        params.timeout_seconds.unwrap_or_else(|| SHORTEST_DEFAULT + fastrand::u64(0..SHORTEST_DEFAULT));
    Ok(Session {
        registry: Arc::clone(registry),
        served: Arc::clone(served),
        watcher,
        shown,
        bookmarks: params.allow_bookmarks,
        initial_end: initial_end && params.allow_bookmarks,
        converting: None,
        due: None,
        closing: false,
        bookmark_timer: registry.clock.sleep(BOOKMARK_EVERY),
        deadline: registry.clock.sleep(Duration::from_secs(seconds)),
        stop: registry.stop.clone(),
    })
}

/// Starts a watch on the cache. If the start revision is older than the cache's events, the store's history supplies
/// the missing ones.
async fn watcher(
    registry: &Registry,
    served: &Served,
    namespace: Option<&str>,
    selection: Selection,
    from: WatchFrom,
) -> Result<Watcher, StatusError> {
    let cache = served.cache()?;
    let mut too_old = match cache.watch(namespace, selection.clone(), from) {
        Ok(watcher) => return Ok(watcher),
        Err(too_old) => too_old,
    };
    let asked = if let WatchFrom::After(revision) = from { revision } else { 0 };
    for _ in 0..RESUME_ATTEMPTS {
        let Some(gap) = history::since(registry, served, asked).await? else { break };
        match cache.resume(namespace, selection.clone(), asked, gap.through, gap.events) {
            Ok(watcher) => return Ok(watcher),
            Err(moved_on) => too_old = moved_on,
        }
    }
    Err(StatusError::expired(format!("too old resource version: {asked} ({})", too_old.oldest)))
}

/// Waits until the caches are fresh enough for this resourceVersion parameter.
async fn settle(registry: &Registry, version: Version) -> Result<(), StatusError> {
    match version {
        Version::Any => Ok(()),
        Version::Unset => wait_current(registry).await,
        Version::At(revision) => wait_fresh(registry, revision).await,
    }
}

impl Session {
    /// Returns the watched resource.
    pub fn resource(&self) -> &ResourceRef {
        &self.served.resource
    }

    /// Counts an event that is sent over the network.
    pub fn note_sent(&self, bytes: usize) {
        let types = &self.served.resource.types;
        let labels: [&str; 3] = [types.group, types.plural, types.version];
        self.registry.metrics.increment(Metric::WatchEvents, &labels);
        self.registry.metrics.record(Metric::WatchEventSizes, &labels, bytes as f64);
    }

    /// Returns the next frame if it is available without waiting.
    pub fn try_next(&mut self) -> Option<Result<Frame, StatusError>> {
        if self.converting.is_some() {
            return None;
        }
        if self.initial_end && !self.watcher.has_state() {
            self.initial_end = false;
            let revision = self.watcher.began_at();
            return Some(Ok(Frame::Bookmark { revision, initial_end: true }));
        }
        if let Some(change) = self.watcher.try_next() {
            if !self.served.shows_as_held() {
                self.converting = Some(change);
                return None;
            }
            return Some(Ok(Frame::Change(change)));
        }
        let revision = self.watcher.bookmark(self.due.take()?)?;
        Some(Ok(Frame::Bookmark { revision, initial_end: false }))
    }

    /// Waits for the next frame; `None` when the watch is over. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Frame, StatusError>> {
        loop {
            if let Some(frame) = self.try_next() {
                return Some(frame);
            }
            if let Some(change) = &self.converting {
                let shown = converted(&self.served, self.shown.as_ref(), change).await.transpose();
                self.converting = None;
                match shown {
                    Some(shown) => return Some(shown),
                    None => continue,
                }
            }
            if self.closing {
                return None;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                change = self.watcher.next() => {
                    self.converting = Some(change?);
                }
                () = &mut self.bookmark_timer => {
                    self.bookmark_timer = self.registry.clock.sleep(BOOKMARK_EVERY);
                    self.bookmark();
                }
                () = &mut self.deadline => {
                    self.closing = true;
                    self.bookmark();
                }
            }
        }
    }

    /// Schedules a bookmark at the caches' revision. It is read before the pending changes are sent, so all changes
    /// up to it are already queued.
    fn bookmark(&mut self) {
        if self.bookmarks {
            self.due = Some(self.registry.caches.applied());
        }
    }
}

/// Converts a change to the requested version; `None` if the selection matches neither the old nor the new object.
async fn converted(
    served: &Served,
    shown: Option<&Selection>,
    change: &Change,
) -> Result<Option<Frame>, StatusError> {
    let mut object = served.show(&change.object).await?;
    let mut kind = change.kind;
    if let Some(shown) = shown {
        let now = kind != Kind::Deleted && shown.matches(&object);
        let before = match &change.previous {
            Some(previous) => shown.matches(&*served.show(previous).await?).then_some(previous),
            None => None,
        };
        kind = match (before, now) {
            (None, true) => Kind::Added,
            (Some(_), true) => Kind::Modified,
            (Some(_), false) if kind == Kind::Deleted => Kind::Deleted,
            (Some(before), false) => {
                object = served.show(&left(before, object.resource_version())).await?;
                Kind::Deleted
            }
            (None, false) => return Ok(None),
        };
    }
    // The shared encoding is only valid for the held object; a converted object is encoded for this watcher alone.
    let wire = change.wire.clone().filter(|_| Arc::ptr_eq(&object, &change.object));
    Ok(Some(Frame::Change(Change { kind, object, wire, previous: None })))
}
