//! A watch as its reader sees it: a stream of batches of events and progress marks.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt};

use crate::Result;
use crate::types::{Event, KeyRange};

/// A watch to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchRequest {
    pub range: KeyRange,
    /// Deliver the events after this revision; `None` for events from now on.
    pub after: Option<u64>,
}

impl WatchRequest {
    /// Watches the range from now on.
    pub fn new(range: KeyRange) -> Self {
        Self { range, after: None }
    }

    /// Watches all keys with this prefix from now on.
    pub fn prefix(prefix: impl Into<bytes::Bytes>) -> Self {
        Self::new(KeyRange::prefix(prefix))
    }

    /// Starts with the events after this revision.
    pub fn after(mut self, revision: u64) -> Self {
        self.after = Some(revision);
        self
    }
}

/// Events in order of revision. All events of a revision are in the same batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvents {
    /// Everything up to this revision has been delivered with this batch.
    pub revision: u64,
    /// Never empty.
    pub events: Vec<Event>,
}

/// An item of a watch's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    Events(WatchEvents),
    /// Everything up to this revision has been delivered. Sent when the history has been delivered, and whenever it is
    /// requested.
    Progress(u64),
}

impl WatchItem {
    /// Everything up to this revision has been delivered with this item.
    pub fn revision(&self) -> u64 {
        match self {
            Self::Events(events) => events.revision,
            Self::Progress(revision) => *revision,
        }
    }
}

/// A running watch: a stream that ends after its first error.
///
/// A reader that is too slow for its buffer never blocks writers: it continues from history, and fails with
/// [`Error::Compacted`](crate::Error::Compacted) if that is gone as well.
pub struct Watch {
    stream: Pin<Box<dyn Stream<Item = Result<WatchItem>> + Send>>,
    progress: ProgressRequester,
}

impl Watch {
    /// Creates a watch from its stream and a function that requests progress. For engines.
    pub fn new(
        stream: impl Stream<Item = Result<WatchItem>> + Send + 'static,
        progress: ProgressRequester,
    ) -> Self {
        Self { stream: Box::pin(stream), progress }
    }

    /// Returns the next item; `None` after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<WatchItem>> {
        self.stream.next().await
    }

    /// Returns a handle to request progress marks on this watch.
    pub fn progress_requester(&self) -> ProgressRequester {
        self.progress.clone()
    }
}

impl Stream for Watch {
    type Item = Result<WatchItem>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Requests a [`WatchItem::Progress`] of at least the revision that is current at the time of the request.
#[derive(Clone)]
pub struct ProgressRequester(Arc<dyn Fn() + Send + Sync>);

impl ProgressRequester {
    /// Creates a handle from a function. For engines.
    pub fn new(request: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(request))
    }

    /// Requests a progress mark. Does not wait for it.
    pub fn request(&self) {
        (self.0)();
    }
}

impl fmt::Debug for ProgressRequester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressRequester")
    }
}
