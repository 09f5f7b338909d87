//! The task of a watch: reads history from the log until it has caught up, then is live, and returns to history if it
//! lags.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream;

use super::core::Core;
use super::hub::{Live, select};
use crate::types::KeyRange;
use crate::watch::{ProgressRequester, Watch, WatchEvents, WatchItem};
use crate::{Error, Result};

/// The number of revisions that are read while the state is locked.
const CATCH_UP_REVISIONS: usize = 1024;

struct Watcher {
    core: Arc<Core>,
    id: u64,
    range: KeyRange,
    /// Everything up to this revision has been delivered.
    delivered: u64,
    live: Option<Live>,
    ended: bool,
}

/// The result of reading history.
enum Step {
    Item(WatchItem),
    /// The revisions that were read have no events for this watcher.
    Nothing,
    Joined(Live),
}

pub(crate) fn watch(core: &Arc<Core>, range: KeyRange, after: Option<u64>) -> Result<Watch> {
    let delivered = {
        let state = core.read()?;
        let current = state.revision();
        let after = after.unwrap_or(current);
        if after < state.compacted() {
            return Err(Error::Compacted { requested: after, compacted: state.compacted() });
        }
        if after > current {
            return Err(Error::FutureRevision { requested: after, current });
        }
        after
    };
    let id = core.hub()?.new_id();
    let requester = {
        let core = Arc::downgrade(core);
        ProgressRequester::new(move || {
            if let Some(core) = core.upgrade() {
                core.request_progress(id);
            }
        })
    };
    let watcher = Watcher { core: Arc::clone(core), id, range, delivered, live: None, ended: false };
    let items = stream::unfold(watcher, |mut watcher| async move {
        let item = watcher.next().await?;
        Some((item, watcher))
    });
    Ok(Watch::new(items, requester))
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<WatchItem>> {
        if self.ended {
            return None;
        }
        loop {
            if let Some(live) = &mut self.live {
                if let Some(item) = live.receiver.recv().await {
                    self.delivered = item.revision();
                    return Some(Ok(item));
                }
                self.delivered = self.delivered.max(live.covered.load(Ordering::Acquire));
                self.live = None;
                tracing::debug!(revision = self.delivered, "watcher fell behind, going on from history");
            }
            match self.catch_up() {
                Ok(Step::Item(item)) => return Some(Ok(item)),
                Ok(Step::Joined(live)) => self.live = Some(live),
                Ok(Step::Nothing) => tokio::task::yield_now().await,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }

    fn catch_up(&mut self) -> Result<Step> {
        let (step, through) = self.read_log()?;
        self.delivered = through;
        if let Some(step) = step {
            return Ok(step);
        }
        self.join()
    }

    /// Reads a part of the history; `None` when all of it has been read.
    fn read_log(&self) -> Result<(Option<Step>, u64)> {
        let state = self.core.read()?;
        if self.delivered < state.compacted() {
            return Err(Error::Compacted { requested: self.delivered, compacted: state.compacted() });
        }
        let through = state.revision().min(self.delivered + CATCH_UP_REVISIONS as u64);
        let events = select(state.log_after(self.delivered, CATCH_UP_REVISIONS), &self.range);
        let step = if !events.is_empty() {
            Some(Step::Item(WatchItem::Events(WatchEvents { revision: through, events })))
        } else if through < state.revision() {
            Some(Step::Nothing)
        } else {
            None
        };
        Ok((step, through))
    }

    /// Goes live, unless too much has happened in the meantime. Nothing is published while the hub is locked, so the
    /// hub will send exactly what the log does not have now.
    fn join(&mut self) -> Result<Step> {
        let core = Arc::clone(&self.core);
        let mut hub = core.hub()?;
        if hub.is_closed() {
            return Err(Error::Closed);
        }
        let state = core.read()?;
        let revision = state.revision();
        if self.delivered < state.compacted() || revision - self.delivered > CATCH_UP_REVISIONS as u64 {
            return Ok(Step::Nothing);
        }
        let mut items = Vec::new();
        let events = select(state.log_after(self.delivered, CATCH_UP_REVISIONS), &self.range);
        if !events.is_empty() {
            items.push(WatchItem::Events(WatchEvents { revision, events }));
        }
        items.push(WatchItem::Progress(revision));
        let buffer = core.options.watch_buffer;
        Ok(Step::Joined(hub.join(self.id, self.range.clone(), revision, items, buffer)))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Ok(mut hub) = self.core.hub() {
            hub.leave(self.id);
        }
    }
}
