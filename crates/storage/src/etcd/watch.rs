//! Watches on etcd: one connection for each, reopened when it fails, without losing or repeating an event.
//!
//! A watch reads everything below the store's prefix and delivers the events in its range, so that any write of the
//! store shows its progress.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use knarr_grpc::{Answers, CallError, Requests};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::Etcd;
use super::keys::{header_revision, number, revision};
use super::proto::{self, WatchAsk};
use crate::types::{Event, EventKind, KeyRange, Op};
use crate::watch::{ProgressRequester, Watch, WatchEvents, WatchItem, WatchRequest};
use crate::{Error, Result, Store};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// How long to wait for a revision before etcd is asked for progress: events usually arrive by then.
const PATIENCE: Duration = Duration::from_millis(50);
/// As [`PATIENCE`], for members whose progress notifications cannot be trusted, so that a write is needed instead.
/// Ten times a second, etcd reads the history for watches that lag behind.
const PATIENCE_BEFORE_MARK: Duration = Duration::from_millis(300);
/// The time between two attempts to get a revision that does not arrive.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// The key that is written when a watch needs a later revision than its events show.
const MARK: &[u8] = b"/progress";

/// A watch on etcd, until its connection fails.
struct Session {
    requests: Requests,
    answers: Answers,
    /// Whether the member's progress notifications can be trusted.
    reports_progress: bool,
    /// The events of a revision that may have more events.
    partial: Vec<Event>,
}

impl Session {
    fn patience(&self) -> Duration {
        if self.reports_progress { PATIENCE } else { PATIENCE_BEFORE_MARK }
    }
}

struct Watcher {
    etcd: Etcd,
    range: KeyRange,
    /// Everything up to this revision has been delivered.
    delivered: u64,
    /// A revision that a caller waits for.
    target: Option<u64>,
    ask_at: Instant,
    out: mpsc::Sender<Result<WatchItem>>,
    wanted: Arc<Notify>,
}

type Asking = Pin<Box<dyn Future<Output = Result<u64>> + Send>>;

/// Why a session ended.
enum End {
    /// Continue with a new session.
    Again(CallError),
    Failed(Error),
    /// The reader was dropped.
    Left,
}

pub(super) async fn start(etcd: &Etcd, request: WatchRequest) -> Result<Watch> {
    if etcd.closed.is_cancelled() {
        return Err(Error::Closed);
    }
    let (after, current) = match request.after {
        Some(after) => (after, etcd.check_readable(after).await?),
        None => {
            let current = etcd.latest_revision().await?;
            (current, current)
        }
    };
    let session = Session::open(etcd, after, after >= current).await?;
    let (out, receiver) = mpsc::channel(etcd.options.watch_buffer.max(1));
    let wanted = Arc::new(Notify::new());
    // The first progress mark is sent when the history has been delivered.
    wanted.notify_one();
    let requester = {
        let wanted = Arc::clone(&wanted);
        ProgressRequester::new(move || wanted.notify_one())
    };
    let watcher = Watcher {
        etcd: etcd.clone(),
        range: request.range,
        delivered: after,
        target: None,
        ask_at: Instant::now(),
        out,
        wanted,
    };
    etcd.watchers.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(watcher.run(session));
    let items = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|item| (item, receiver))
    });
    Ok(Watch::new(items, requester))
}

impl Session {
    /// Opens a session after a revision. If that is the current one, etcd need not search its history.
    async fn open(etcd: &Etcd, after: u64, is_current: bool) -> Result<Self, CallError> {
        let first = if is_current { after + 1 } else { after };
        let (session, at) = Self::open_at(etcd, first.max(1)).await?;
        if is_current && at != after {
            // There are newer writes. Starting with the event that is known already shows whether history is missing;
            // see `Watcher::take`.
            return Ok(Self::open_at(etcd, after.max(1)).await?.0);
        }
        Ok(session)
    }

    async fn open_at(etcd: &Etcd, first: u64) -> Result<(Self, u64), CallError> {
        let (key, range_end) = etcd.keys.range(&KeyRange::all());
        let create = proto::WatchCreateRequest {
            key,
            range_end,
            start_revision: number(first),
            prev_kv: true,
            fragment: true,
        };
        // The watch has a connection of its own, because a slow reader must not block requests.
        let opening = async {
            let connection = etcd.endpoints.connect().await?;
            let member: proto::StatusResponse =
                connection.unary("/etcdserverpb.Maintenance/Status", &proto::Empty {}).await?;
            let ask = proto::WatchRequest { ask: Some(WatchAsk::Create(create)) };
            let (requests, mut answers) = connection.stream(WATCH, &ask).await?;
            let created: proto::WatchResponse = answers.next().await?.ok_or_else(ended)?;
            if !created.created || created.canceled {
                return Err(CallError::Broken(format!("the watch was refused: {}", created.cancel_reason)));
            }
            let at = header_revision(created.header.as_ref());
            let reports_progress = reports_progress(&member.version);
            Ok((Self { requests, answers, reports_progress, partial: Vec::new() }, at))
        };
        let opened = tokio::time::timeout(etcd.options.request_timeout, opening).await;
        opened.unwrap_or(Err(CallError::Timeout))
    }
}

fn ended() -> CallError {
    CallError::Broken("the watch ended".into())
}

/// Returns whether a progress notification never overtakes the events before it. etcd guarantees that from these
/// versions on.
fn reports_progress(version: &str) -> bool {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor, patch) =
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    match (major, minor) {
        (3, 4) => patch >= 31,
        (3, 5) => patch >= 13,
        _ => (major, minor) >= (3, 6),
    }
}

impl Watcher {
    async fn run(mut self, mut session: Session) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let before = self.delivered;
            match self.follow(&mut session).await {
                End::Left => break,
                End::Failed(error) => {
                    let _ = self.out.send(Err(error)).await;
                    break;
                }
                End::Again(error) => {
                    tracing::warn!(?error, revision = self.delivered, "watch on etcd broke off")
                }
            }
            if self.delivered > before {
                backoff = FIRST_BACKOFF;
            }
            match self.reopen(&mut backoff).await {
                Some(Ok(reopened)) => session = reopened,
                Some(Err(error)) => {
                    let _ = self.out.send(Err(error)).await;
                    break;
                }
                None => break,
            }
        }
        self.etcd.watchers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Opens a new session where the last one stopped; `None` if the reader was dropped.
    async fn reopen(&self, backoff: &mut Duration) -> Option<Result<Session>> {
        loop {
            tokio::select! {
                () = self.out.closed() => return None,
                () = self.etcd.closed.cancelled() => return Some(Err(Error::Closed)),
                () = tokio::time::sleep(*backoff) => {}
            }
            *backoff = (*backoff * 2).min(LONGEST_BACKOFF);
            let opened = async {
                // If the members do not know the revision any more, their history was replaced: the watch fails, so
                // that its reader starts again.
                self.etcd.check_readable(self.delivered).await?;
                Ok(Session::open(&self.etcd, self.delivered, false).await?)
            };
            match opened.await {
                Err(Error::Backend(_) | Error::Timeout) => {}
                result => return Some(result),
            }
        }
    }

    async fn follow(&mut self, session: &mut Session) -> End {
        let mut asking: Option<Asking> = None;
        loop {
            let ask_at = self.ask_at;
            tokio::select! {
                () = self.out.closed() => return End::Left,
                () = self.etcd.closed.cancelled() => return End::Failed(Error::Closed),
                answer = session.answers.next::<proto::WatchResponse>() => {
                    let taken = match answer {
                        Ok(Some(answer)) => self.take(session, answer).await,
                        Ok(None) => Err(End::Again(ended())),
                        Err(error) => Err(End::Again(error)),
                    };
                    if let Err(end) = taken {
                        return end;
                    }
                }
                () = self.wanted.notified(), if asking.is_none() => {
                    let etcd = self.etcd.clone();
                    asking = Some(Box::pin(latest(etcd)));
                }
                latest = poll(&mut asking) => {
                    asking = None;
                    if let Err(end) = self.wait_for(session, latest).await {
                        return end;
                    }
                }
                () = sleep_until(ask_at), if self.target.is_some() => self.ask(session),
            }
        }
    }

    /// Sends progress if the revision `latest` has been delivered; otherwise records that a caller waits for it.
    async fn wait_for(&mut self, session: &Session, latest: Result<u64>) -> Result<(), End> {
        match latest {
            Ok(latest) if latest <= self.delivered => self.send(WatchItem::Progress(self.delivered)).await,
            Ok(latest) => {
                self.target = Some(latest.max(self.target.unwrap_or(0)));
                self.ask_at = Instant::now() + session.patience();
                Ok(())
            }
            Err(Error::Closed) => Err(End::Failed(Error::Closed)),
            Err(_) => {
                // The caller keeps waiting until etcd is back.
                self.wanted.notify_one();
                Ok(())
            }
        }
    }

    /// Makes etcd send the revision that a caller waits for: it was written outside of this store, so that no event
    /// shows it.
    fn ask(&mut self, session: &Session) {
        self.ask_at = Instant::now() + ASK_AGAIN;
        if session.reports_progress {
            session.requests.send(&proto::WatchRequest { ask: Some(WatchAsk::Progress(proto::Empty {})) });
            return;
        }
        let etcd = self.etcd.clone();
        let mark = Op::Put { key: MARK.into(), value: bytes::Bytes::new(), lease: None };
        tokio::spawn(async move {
            if let Err(error) = etcd.txn(Vec::new(), vec![mark]).await {
                tracing::debug!(%error, "cannot mark etcd's progress");
            }
        });
    }

    async fn take(&mut self, session: &mut Session, answer: proto::WatchResponse) -> Result<(), End> {
        if answer.canceled {
            return Err(match revision(answer.compact_revision) {
                0 => End::Again(CallError::Broken(answer.cancel_reason)),
                compacted => {
                    self.etcd.compacted.fetch_max(compacted, Ordering::AcqRel);
                    End::Failed(Error::Compacted { requested: self.delivered, compacted })
                }
            });
        }
        if answer.events.is_empty() && !answer.fragment && session.partial.is_empty() {
            let reported = header_revision(answer.header.as_ref());
            if !answer.created && session.reports_progress && reported > self.delivered {
                self.delivered = reported;
                self.target = self.target.filter(|target| *target > reported);
                return self.send(WatchItem::Progress(reported)).await;
            }
            return Ok(());
        }
        // Events that are on their way arrive without asking for them.
        self.ask_at = Instant::now() + session.patience();
        for event in answer.events {
            if let Some(event) = self.event(event).map_err(End::Failed)? {
                session.partial.push(event);
            }
        }
        // All events of a revision are delivered together. The last revision may have more events.
        let through = if answer.fragment {
            session.partial.last().map_or(0, |event| event.kv.mod_revision.saturating_sub(1))
        } else {
            u64::MAX
        };
        let whole = session.partial.partition_point(|event| event.kv.mod_revision <= through);
        let events: Vec<Event> = session.partial.drain(..whole).collect();
        self.deliver(events).await
    }

    /// Decodes an event; `None` if it has been delivered already.
    fn event(&self, event: proto::Event) -> Result<Option<Event>> {
        let Some(kv) = event.kv else { return Err(Error::Invalid("etcd sent an event without a key")) };
        let kv = self.etcd.keys.key_value(kv)?;
        if kv.mod_revision <= self.delivered {
            return Ok(None);
        }
        let prev = event.prev_kv.map(|kv| self.etcd.keys.key_value(kv)).transpose()?;
        let deleted = event.kind == proto::EventType::Delete as i32;
        if prev.is_none() && (deleted || kv.version > 1) {
            // The previous value was compacted before the event could be sent.
            let requested = kv.mod_revision - 1;
            return Err(Error::Compacted { requested, compacted: kv.mod_revision });
        }
        let kind = if deleted { EventKind::Delete } else { EventKind::Put };
        Ok(Some(Event { kind, kv, prev }))
    }

    async fn deliver(&mut self, mut events: Vec<Event>) -> Result<(), End> {
        let Some(last) = events.last() else { return Ok(()) };
        self.delivered = last.kv.mod_revision;
        let reached = self.target.is_some_and(|target| target <= self.delivered);
        if reached {
            self.target = None;
        }
        let revision = self.delivered;
        events.retain(|event| self.range.contains(&event.kv.key));
        if !events.is_empty() {
            return self.send(WatchItem::Events(WatchEvents { revision, events })).await;
        }
        if reached { self.send(WatchItem::Progress(revision)).await } else { Ok(()) }
    }

    async fn send(&self, item: WatchItem) -> Result<(), End> {
        tokio::select! {
            sent = self.out.send(Ok(item)) => sent.map_err(|_| End::Left),
            () = self.etcd.closed.cancelled() => Err(End::Failed(Error::Closed)),
        }
    }
}

/// Returns the current revision, or an error after a pause: the caller retries at once.
async fn latest(etcd: Etcd) -> Result<u64> {
    let latest = etcd.latest_revision().await;
    if latest.is_err() {
        tokio::time::sleep(ASK_AGAIN).await;
    }
    latest
}

/// Waits for the running request, or forever if there is none.
async fn poll(asking: &mut Option<Asking>) -> Result<u64> {
    match asking {
        Some(asking) => asking.as_mut().await,
        None => std::future::pending().await,
    }
}

impl Etcd {
    /// Returns the revision that etcd has compacted, which it reports to a watch on a compacted revision.
    pub(super) async fn compacted_revision(&self, gone: u64) -> Result<u64> {
        let (mut session, _) = Session::open_at(self, gone.max(1)).await?;
        let reported = async {
            loop {
                match session.answers.next::<proto::WatchResponse>().await? {
                    Some(answer) if answer.compact_revision > 0 => {
                        return Ok(revision(answer.compact_revision));
                    }
                    Some(_) => {}
                    None => return Err(ended()),
                }
            }
        };
        let reported = tokio::time::timeout(self.options.request_timeout, reported).await;
        let compacted = reported.unwrap_or(Err(CallError::Timeout))?;
        self.compacted.fetch_max(compacted, Ordering::AcqRel);
        Ok(compacted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_newer_members_are_trusted_with_progress() {
        let table = [
            ("3.4.23", false),
            ("3.4.31", true),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.6.0-rc.1", true),
            ("4.0.0", true),
            ("", false),
        ];
        for (version, trusted) in table {
            assert_eq!(reports_progress(version), trusted, "{version}");
        }
    }
}
