//! One term of a leader: what its work gets, and a transport that refuses writes when the term is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::clock::Clock;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::transport::{List, ListOptions, Transport, WatchStream};

/// What the work of a leader gets.
#[derive(Clone)]
pub struct Leadership {
    /// Cancelled when the lease is lost or the leader must stop. A leader that stops holds its lease until its work
    /// has ended.
    pub until: CancellationToken,
    /// `None` without leader election.
    term: Option<Arc<Term>>,
}

impl Leadership {
    /// The leadership of a component that needs no lease.
    pub fn unelected(until: CancellationToken) -> Self {
        Self { until, term: None }
    }

    pub(crate) fn of(until: CancellationToken, term: Arc<Term>) -> Self {
        Self { until, term: Some(term) }
    }

    pub(crate) fn term(&self) -> Option<&Arc<Term>> {
        self.term.as_ref()
    }
}

/// The time from the acquisition of a lease to its loss or release. A later acquisition by the same process is another
/// term.
pub struct Term {
    clock: Arc<dyn Clock>,
    /// The lease counts as lost this long after the last successful renewal, which is before others may take it.
    renew_deadline: Duration,
    /// When the last successful renewal was sent, in the clock's monotonic time. The answer may have taken long: others
    /// count from the write, which lies in between.
    renewed_nanos: AtomicU64,
    over: CancellationToken,
}

impl Term {
    pub(crate) fn new(clock: Arc<dyn Clock>, renew_deadline: Duration, renewed: Duration) -> Self {
        let renewed_nanos = AtomicU64::new(nanos(renewed));
        Self { clock, renew_deadline, renewed_nanos, over: Default::default() }
    }

    /// Records a renewal. Returns false if the lease was lost before: the work may have given up what it did, so a late
    /// answer does not bring the term back.
    pub(crate) fn renew(&self, sent: Duration) -> bool {
        let held = self.is_held();
        if held {
            self.renewed_nanos.store(nanos(sent), Ordering::Release);
        }
        held
    }

    /// How long the lease is held without another renewal.
    pub(crate) fn left(&self) -> Duration {
        let renewed = Duration::from_nanos(self.renewed_nanos.load(Ordering::Acquire));
        self.renew_deadline.saturating_sub(self.clock.monotonic().saturating_sub(renewed))
    }

    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// Waits until the lease has been lost or released.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Returns whether the lease is held now. This also checks the clock: a process that was suspended runs again
    /// before it is notified that its lease has ended.
    pub(crate) fn is_held(&self) -> bool {
        !self.over.is_cancelled() && !self.left().is_zero()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A transport that refuses to send writes after the end of a term.
pub(crate) struct Fenced {
    inner: Arc<dyn Transport>,
    term: Arc<Term>,
}

impl Fenced {
    pub(crate) fn new(inner: Arc<dyn Transport>, term: Arc<Term>) -> Self {
        Self { inner, term }
    }
}

#[async_trait]
impl Transport for Fenced {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
        if !reads && !self.term.is_held() {
            return Err(Error::LeaseLost);
        }
        self.inner.send(request).await
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        self.inner.list(resource, namespace, options).await
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        self.inner.watch(resource, namespace, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TokioClock;

    #[tokio::test(start_paused = true)]
    async fn a_late_renewal_does_not_bring_a_lost_lease_back() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let term = Term::new(Arc::clone(&clock), Duration::from_secs(10), clock.monotonic());
        tokio::time::advance(Duration::from_secs(9)).await;
        let sent = clock.monotonic();
        assert!(term.renew(sent) && term.is_held());
        tokio::time::advance(Duration::from_secs(8)).await;
        let sent = clock.monotonic();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(!term.is_held());
        // The renewal was sent in time, and its answer came too late.
        assert!(!term.renew(sent) && !term.is_held());
    }
}
