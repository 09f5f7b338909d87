//! Watch: a stream of changes with bookmarks, from a revision or from the present state.

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

/// How long a watch may last when the client does not say: this, and up to as much again.
const SHORTEST_DEFAULT: u64 = 1800;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How often a history is read that the cache has left behind in the meantime.
const RESUME_ATTEMPTS: usize = 3;

/// One thing to tell a watching client.
pub enum Frame {
    Change(Change),
    /// Everything up to this revision has been told; `initial_end` closes the initial state.
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
    /// What is selected in the form that is shown.
    shown: Option<Selection>,
    bookmarks: bool,
    initial_end: bool,
    /// Changes that still have to be brought into the form of the resource, which may take a while.
    converting: Option<Change>,
    /// A bookmark for this revision is due once all that is waiting has been handed out.
    due: Option<u64>,
    /// The watch is over once that bookmark is out.
    closing: bool,
    bookmark_timer: Sleep,
    deadline: Sleep,
    stop: CancellationToken,
}

/// Starts a watch; a revision that is no longer held is an error at once.
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

/// The watch on the cache; a start from before what that remembers is made up for from the store's history.
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

async fn settle(registry: &Registry, version: Version) -> Result<(), StatusError> {
    match version {
        Version::Any => Ok(()),
        Version::Unset => wait_current(registry).await,
        Version::At(revision) => wait_fresh(registry, revision).await,
    }
}

impl Session {
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

    /// What is there to tell without waiting.
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

    /// The next thing to tell; `None` when the watch is over. Cancel safe.
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

    /// The caches' revision is read before the waiting changes are handed out: all those up to it are waiting.
    fn bookmark(&mut self) {
        if self.bookmarks {
            self.due = Some(self.registry.caches.applied());
        }
    }
}

/// A change in the form that is shown; `None` when nothing of it is selected there.
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
    // What is shown in another form than it is held in is encoded for this watcher alone.
    let wire = change.wire.clone().filter(|_| Arc::ptr_eq(&object, &change.object));
    Ok(Some(Frame::Change(Change { kind, object, wire, previous: None })))
}
