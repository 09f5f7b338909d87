//! Leader election with a Lease: one of several processes is active, the others stand by.
//!
//! Source: the protocol and the default times of `k8s.io/client-go/tools/leaderelection`.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use knarr_api::kind::Kind;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::Client;
use crate::error::Result;
use crate::events::{EventRecorder, EventType};
use crate::leadership::{Leadership, Term};
use crate::metrics;

/// How long after the end of its lease a leader still counts as healthy. Source: upstream.
const TOLERATED: Duration = Duration::from_secs(20);
/// How long a leader's work is waited for when it must end.
const LEFT_BEHIND: Duration = Duration::from_secs(8);
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// A lease to compete for, and the timing of the election.
#[derive(Debug, Clone)]
pub struct LeaderElection {
    pub namespace: String,
    /// The lease's name, such as `kube-scheduler`.
    pub name: String,
    /// The identity of this process, unique among the candidates.
    pub identity: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// Whether the API server elects among candidates (see [`crate::lease_candidate`]). The lease is then only renewed,
    /// never taken.
    pub coordinated: bool,
    /// The state of this candidate, shared by its clones.
    pub standing: Arc<Standing>,
}

/// Whether a candidate leads, and when its lease was last renewed.
#[derive(Debug, Default)]
pub struct Standing {
    leads: AtomicBool,
    /// In nanoseconds of the clock's monotonic time.
    renewed_nanos: AtomicU64,
}

impl Standing {
    fn set(&self, lease: &str, leads: bool, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.renewed_nanos.store(nanos, Ordering::Relaxed);
        if self.leads.swap(leads, Ordering::Relaxed) != leads {
            metrics::leads(lease, leads);
        }
    }

    /// How long ago the leader's lease was renewed; `None` for a candidate that does not lead.
    fn unconfirmed(&self, now: Duration) -> Option<Duration> {
        let renewed = Duration::from_nanos(self.renewed_nanos.load(Ordering::Relaxed));
        self.leads.load(Ordering::Relaxed).then(|| now.saturating_sub(renewed))
    }
}

impl LeaderElection {
    /// Fails for a leader whose lease ended long ago: it should have noticed that and stopped.
    pub fn health(&self, now: Duration) -> Result<(), String> {
        match self.standing.unconfirmed(now) {
            Some(since) if since > self.lease_duration + TOLERATED => {
                Err(format!("failed election to renew leadership on lease {}", self.name))
            }
            _ => Ok(()),
        }
    }

    /// Creates a candidate with the default times: 15 s, 10 s, 2 s.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            coordinated: false,
            standing: Arc::default(),
        }
    }

    /// Runs `component` whenever this process leads, until `stop` is cancelled.
    ///
    /// The component gets a token that is cancelled when the lease is lost or `stop` is cancelled. At a stop the lease
    /// is held until the component has ended, and then released: the next leader need not wait for it to expire, and
    /// never acts at the same time. A component that takes longer than `LEFT_BEHIND` to end, or that is still running
    /// when others may take a lost lease, is dropped. After a lost lease, the process competes for it again. The
    /// component writes through clients made with [`Client::under`] its leadership, which send nothing once the lease
    /// is no longer held.
    ///
    /// Source: `ReleaseOnCancel` of client-go, which upstream's controller manager sets with the feature gate
    /// ControllerManagerReleaseLeaderElectionLockOnExit.
    pub async fn while_leading<F, Fut>(&self, client: Client, stop: CancellationToken, component: F)
    where
        F: Fn(Leadership) -> Fut,
        Fut: Future<Output = ()>,
    {
        while !stop.is_cancelled() {
            let Some(leading) = self.clone().acquire(client.clone(), stop.clone()).await else { return };
            tracing::info!(lease = self.name, "leading");
            tokio::select! {
                () = component(Leadership::of(leading.until.clone(), Arc::clone(&leading.term))) => {}
                () = self.patience(&leading, &client) => {
                    tracing::warn!(lease = self.name, "the leader's work does not end, releasing the lease");
                }
            }
            leading.release().await;
        }
    }

    /// Waits until the lease ends, and then for at most the time that the leader's work may take to end.
    async fn patience(&self, leading: &Leading, client: &Client) {
        leading.until.cancelled().await;
        tokio::select! {
            () = client.clock().sleep(LEFT_BEHIND) => {}
            () = async {
                leading.term.over().await;
                // After this, others may lead.
                client.clock().sleep(self.lease_duration.saturating_sub(self.renew_deadline)).await;
            } => {}
        }
    }

    /// Waits until this process leads; `None` if `stop` is cancelled before.
    async fn acquire(self, client: Client, stop: CancellationToken) -> Option<Leading> {
        let mut seen = Seen::default();
        metrics::leads(&self.name, false);
        let sent = loop {
            if let Some(sent) = self.attempt(&client, &mut seen, self.renew_deadline, &stop).await {
                break sent;
            }
            tokio::select! {
                () = stop.cancelled() => {
                    // An attempt that was interrupted may have taken the lease.
                    self.release(&client).await;
                    return None;
                }
                () = client.clock().sleep(self.retry_period) => {}
            }
        };
        self.standing.set(&self.name, true, sent);
        let term = Arc::new(Term::new(Arc::clone(client.clock()), self.renew_deadline, sent));
        // The last event reports the end, and the writer must run until that is written.
        let recorder = EventRecorder::new(client.clone(), &self.name, "", CancellationToken::new());
        self.emit(&recorder, "became leader");
        let (until, over) = (stop.child_token(), CancellationToken::new());
        let tenure = Tenure { term: Arc::clone(&term), leading: until.clone(), over: over.clone() };
        let kept = tokio::spawn(self.keep(client, tenure, seen, recorder));
        Some(Leading { until, term, over: over.drop_guard(), kept })
    }

    fn emit(&self, recorder: &EventRecorder, what: &str) {
        let lease = ObjectReference {
            api_version: Some(Lease::RESOURCE.api_version()),
            kind: Some(Lease::RESOURCE.kind.to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            ..ObjectReference::default()
        };
        let text = format!("{} {what}", self.identity);
        recorder.event_about(lease, EventType::Normal, "LeaderElection", text);
    }

    /// Tries once to take or renew the lease, for a limited time: because of a server that does not answer, a leader
    /// must not act for longer than others allow. Returns when the request that took the lease was sent.
    async fn attempt(
        &self,
        client: &Client,
        seen: &mut Seen,
        longest: Duration,
        stop: &CancellationToken,
    ) -> Option<Duration> {
        tokio::select! {
            sent = self.try_once(client, seen) => sent.ok().flatten(),
            () = client.clock().sleep(longest) => None,
            () = stop.cancelled() => None,
        }
    }

    /// Renews the lease until the leader's work is over, then releases it. Ends the term when the lease is lost.
    async fn keep(self, client: Client, tenure: Tenure, mut seen: Seen, recorder: EventRecorder) {
        let (term, over) = (&tenure.term, &tenure.over);
        loop {
            tokio::select! {
                () = over.cancelled() => break,
                () = client.clock().sleep(self.retry_period.min(term.left())) => {}
            }
            let left = term.left();
            if left.is_zero() {
                tracing::error!(lease = %self.name, "leadership lost");
                self.emit(&recorder, "stopped leading");
                self.standing.set(&self.name, false, client.clock().monotonic());
                return;
            }
            if let Some(sent) = self.attempt(&client, &mut seen, left, over).await
                && term.renew(sent)
            {
                self.standing.set(&self.name, true, sent);
            }
        }
        // What is left of the leader's work ends before the next leader starts.
        drop(tenure);
        self.standing.set(&self.name, false, client.clock().monotonic());
        self.emit(&recorder, "stopped leading");
        self.release(&client).await;
        recorder.written().await;
    }

    /// Tries once to take or renew the lease. If this process holds it afterwards, returns the earliest time of the
    /// write: right before it was sent. Others count from the write, not from its answer.
    ///
    /// A holder renews what it wrote last, without reading it first. Source: client-go's `tryAcquireOrRenew`.
    async fn try_once(&self, client: &Client, seen: &mut Seen) -> Result<Option<Duration>> {
        if let Some(written) = seen.written.take() {
            match self.write(client, seen, &written).await {
                Err(e) if e.is_conflict() || e.is_not_found() => {}
                other => return other,
            }
        }
        let now = client.clock().now();
        let lease = match client.get::<Lease>(&self.namespace, &self.name).await {
            Ok(lease) => lease,
            Err(e) if e.is_not_found() && self.coordinated => return Ok(None),
            Err(e) if e.is_not_found() => {
                let sent = client.clock().monotonic();
                seen.written = Some(client.create(&self.first_lease(now)).await?);
                return Ok(Some(sent));
            }
            Err(e) => return Err(e),
        };
        self.write(client, seen, &lease).await
    }

    /// Takes or renews this state of the lease, if this process may.
    async fn write(&self, client: &Client, seen: &mut Seen, lease: &Lease) -> Result<Option<Duration>> {
        let now = client.clock().now();
        seen.observe(lease, client.clock().monotonic());
        let unchanged_for = seen.unchanged_for(client.clock().monotonic());
        let next = match self.coordinated {
            true => self.renewed_lease(lease, now, unchanged_for),
            false => self.next_lease(lease, now, unchanged_for),
        };
        let Some(next) = next else { return Ok(None) };
        let sent = client.clock().monotonic();
        seen.written = Some(client.update(&next).await?);
        Ok(Some(sent))
    }

    fn first_lease(&self, now: Timestamp) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(now, now, 0)),
        }
    }

    /// Returns the lease to write, or `None` while another process holds it.
    fn next_lease(&self, lease: &Lease, now: Timestamp, unchanged_for: Duration) -> Option<Lease> {
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or("");
        let transitions = spec.lease_transitions.unwrap_or(0);
        let next = if holder == self.identity {
            let acquired = spec.acquire_time.map_or(now, |t| t.0);
            self.spec(acquired, now, transitions)
        } else if holder.is_empty() || unchanged_for > held_for(&spec) {
            self.spec(now, now, transitions.saturating_add(1))
        } else {
            return None;
        };
        Some(Lease { spec: Some(next), ..lease.clone() })
    }

    /// Returns the renewed lease if this process was elected and no successor is named.
    fn renewed_lease(&self, lease: &Lease, now: Timestamp, unchanged_for: Duration) -> Option<Lease> {
        let spec = lease.spec.clone().unwrap_or_default();
        let is_ours = spec.holder_identity.as_deref() == Some(&self.identity);
        let is_wanted = spec.preferred_holder.as_deref().is_some_and(|other| !other.is_empty());
        if !is_ours || is_wanted || unchanged_for > held_for(&spec) {
            return None;
        }
        let next = LeaseSpec {
            renew_time: Some(MicroTime(now)),
            acquire_time: Some(spec.acquire_time.clone().unwrap_or(MicroTime(now))),
            lease_duration_seconds: whole_seconds(self.lease_duration),
            preferred_holder: None,
            ..spec
        };
        Some(Lease { spec: Some(next), ..lease.clone() })
    }

    fn spec(&self, acquired: Timestamp, renewed: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: whole_seconds(self.lease_duration),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(renewed)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Releases the lease if this process holds it. Waits for a server that does not answer no longer than for a
    /// renewal.
    async fn release(&self, client: &Client) {
        let released = tokio::select! {
            released = self.try_release(client) => released,
            () = client.clock().sleep(self.renew_deadline) => {
                tracing::warn!(lease = %self.name, "failed to release the lease in time");
                return;
            }
        };
        match released {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(lease = %self.name, %error, "failed to release the lease");
            }
            _ => {}
        }
    }

    /// Releases the lease. A renewal that is still in flight may be written in between.
    async fn try_release(&self, client: &Client) -> Result<()> {
        loop {
            match self.release_once(client).await {
                Err(error) if error.is_conflict() => client.clock().sleep(CONFLICT_PAUSE).await,
                other => return other,
            }
        }
    }

    async fn release_once(&self, client: &Client) -> Result<()> {
        let mut lease = client.get::<Lease>(&self.namespace, &self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        let now = Some(MicroTime(client.clock().now()));
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: now.clone(),
            renew_time: now,
            lease_transitions: spec.lease_transitions,
            ..LeaseSpec::default()
        });
        client.update(&lease).await.map(drop)
    }
}

/// A lease that this process holds. It is released in the background when this is dropped.
struct Leading {
    /// Cancelled when the lease is lost or the leader must stop.
    until: CancellationToken,
    term: Arc<Term>,
    /// Cancelled when the leader's work has ended.
    over: DropGuard,
    kept: JoinHandle<()>,
}

/// The counterpart in the task that renews the lease. When that task ends in any way, the term ends with it.
struct Tenure {
    term: Arc<Term>,
    leading: CancellationToken,
    over: CancellationToken,
}

impl Drop for Tenure {
    fn drop(&mut self) {
        self.term.end();
        self.leading.cancel();
    }
}

impl Leading {
    /// Releases the lease of a leader whose work has ended.
    async fn release(self) {
        drop(self.over);
        if let Err(error) = self.kept.await {
            tracing::error!(%error, "the task that renews the lease failed");
        }
    }
}

/// How long a lease is valid without renewal: the duration that its holder wrote, whatever this candidate is configured
/// with.
fn held_for(spec: &LeaseSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0))
}

/// When the lease was last seen to change, by this process's own clock. Clocks of other machines do not matter.
#[derive(Default)]
struct Seen {
    spec: Option<LeaseSpec>,
    at: Duration,
    /// The lease as this process wrote it last, if nothing failed since.
    written: Option<Lease>,
}

impl Seen {
    fn observe(&mut self, lease: &Lease, now: Duration) {
        if self.spec.is_none() || self.spec != lease.spec {
            self.spec = Some(lease.spec.clone().unwrap_or_default());
            self.at = now;
        }
    }

    fn unchanged_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }
}

/// Returns the duration as a Lease states it. A part of a second counts as a whole one: others must not take the lease
/// while its holder believes in it.
fn whole_seconds(duration: Duration) -> Option<i32> {
    i32::try_from(duration.as_millis().div_ceil(1000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_last_no_shorter_than_their_holders_believe() {
        for (millis, seconds) in [(1, 1), (1000, 1), (1500, 2), (15_000, 15)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), Some(seconds), "{millis}");
        }
    }

    #[test]
    fn a_leader_that_nobody_confirms_is_ill() {
        let election = LeaderElection::new("kube-system", "x", "me");
        let second = Duration::from_secs;
        assert_eq!(election.health(second(1000)), Ok(()), "does not lead");
        election.standing.set("x", true, second(10));
        assert_eq!(election.health(second(45)), Ok(()));
        let ill = election.health(second(46)).unwrap_err();
        assert_eq!(ill, "failed election to renew leadership on lease x");
        assert!(metrics::render().contains("leader_election_master_status{name=\"x\"} 1"));
        election.standing.set("x", false, second(50));
        assert_eq!(election.health(second(1000)), Ok(()));
        assert!(metrics::render().contains("leader_election_master_status{name=\"x\"} 0"));
    }

    #[test]
    fn who_was_elected_renews_and_takes_nothing() {
        let election = LeaderElection::new("kube-system", "x", "me");
        let now = Timestamp::from_second(100).unwrap();
        let renewed = |holder: &str, preferred: Option<&str>, unchanged: u64| {
            let spec = LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(5),
                preferred_holder: preferred.map(str::to_owned),
                strategy: Some(knarr_api::coordination::leasecandidate::OLDEST_EMULATION_VERSION.into()),
                ..LeaseSpec::default()
            };
            let lease = Lease { spec: Some(spec), ..Lease::default() };
            election.renewed_lease(&lease, now, Duration::from_secs(unchanged)).and_then(|l| l.spec)
        };
        let mine = renewed("me", None, 2).unwrap();
        assert_eq!((mine.lease_duration_seconds, mine.strategy.is_some()), (Some(15), true));
        for (holder, preferred, unchanged) in
            [("other", None, 60), ("", None, 60), ("me", Some("other"), 0), ("me", None, 6)]
        {
            assert_eq!(renewed(holder, preferred, unchanged), None, "{holder} {preferred:?} {unchanged}");
        }
    }

    #[test]
    fn a_lease_is_taken_when_free_or_stale_only() {
        let election = LeaderElection::new("kube-system", "x", "me");
        let now = Timestamp::from_second(100).unwrap();
        let held_by = |who: &str| Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(who.into()),
                lease_duration_seconds: Some(60),
                lease_transitions: Some(3),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let table = [("other", 16, None), ("other", 61, Some(4)), ("", 0, Some(4)), ("me", 0, Some(3))];
        for (holder, unchanged, transitions) in table {
            let next = election.next_lease(&held_by(holder), now, Duration::from_secs(unchanged));
            let got = next.and_then(|l| l.spec).and_then(|s| s.lease_transitions);
            assert_eq!(got, transitions, "{holder} unchanged for {unchanged} s");
        }
    }
}
