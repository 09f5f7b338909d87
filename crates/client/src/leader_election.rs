//! Leader election over a Lease: one of several processes acts, the others stand by.
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

/// For how long a leader may act after the end of its lease before it counts as ill; upstream's.
const TOLERATED: Duration = Duration::from_secs(20);
/// For how long a leader's work is waited for once it is to end.
const LEFT_BEHIND: Duration = Duration::from_secs(8);
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);

/// Whose lease, where, and how long it lasts.
#[derive(Debug, Clone)]
pub struct LeaderElection {
    pub namespace: String,
    /// The lease's name, such as `kube-scheduler`.
    pub name: String,
    /// This process, unique among the candidates.
    pub identity: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// The API server elects among candidates (see [`crate::lease_candidate`]): a lease is only renewed, never taken.
    pub coordinated: bool,
    /// How this candidate is doing; shared by its clones.
    pub standing: Arc<Standing>,
}

/// Whether a candidate leads, and since when nobody has confirmed it.
#[derive(Debug, Default)]
pub struct Standing {
    leads: AtomicBool,
    /// Of the clock's monotonic time.
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

    /// For how long a leader has not been confirmed; `None` for whoever does not lead.
    fn unconfirmed(&self, now: Duration) -> Option<Duration> {
        let renewed = Duration::from_nanos(self.renewed_nanos.load(Ordering::Relaxed));
        self.leads.load(Ordering::Relaxed).then(|| now.saturating_sub(renewed))
    }
}

impl LeaderElection {
    /// Fails for a leader whose lease has been over for long: it should have noticed, and ended.
    pub fn health(&self, now: Duration) -> Result<(), String> {
        match self.standing.unconfirmed(now) {
            Some(since) if since > self.lease_duration + TOLERATED => {
                Err(format!("failed election to renew leadership on lease {}", self.name))
            }
            _ => Ok(()),
        }
    }

    /// With the default times: 15 s, 10 s, 2 s.
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

    /// Runs `component` whenever this process leads, until `stop`.
    ///
    /// What is run gets a token that is cancelled when the lease is lost or `stop` is cancelled. At a stop the lease is
    /// held until what was run has ended, and then given up: the next leader need not wait for its end, and never acts
    /// beside this one. What takes longer than [`LEFT_BEHIND`] to end, or goes on when others may take a lease that was
    /// lost, is dropped. A lost lease is stood for again. What is run writes through clients [`Client::under`] its
    /// leadership, which send nothing once the lease is not held any more.
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
                    tracing::warn!(lease = self.name, "what led does not end: the lease is given up");
                }
            }
            leading.release().await;
        }
    }

    /// Returns when a leader's work is not waited for any more.
    async fn patience(&self, leading: &Leading, client: &Client) {
        leading.until.cancelled().await;
        tokio::select! {
            () = client.clock().sleep(LEFT_BEHIND) => {}
            () = async {
                leading.term.over().await;
                // From then on others may lead.
                client.clock().sleep(self.lease_duration.saturating_sub(self.renew_deadline)).await;
            } => {}
        }
    }

    /// Waits until this process leads; `None` if `stop` comes before that.
    async fn acquire(self, client: Client, stop: CancellationToken) -> Option<Leading> {
        let mut seen = Seen::default();
        metrics::leads(&self.name, false);
        let sent = loop {
            if let Some(sent) = self.attempt(&client, &mut seen, self.renew_deadline, &stop).await {
                break sent;
            }
            tokio::select! {
                () = stop.cancelled() => {
                    // An attempt that was cut short may have taken it.
                    self.release(&client).await;
                    return None;
                }
                () = client.clock().sleep(self.retry_period) => {}
            }
        };
        self.standing.set(&self.name, true, sent);
        let term = Arc::new(Term::new(Arc::clone(client.clock()), self.renew_deadline, sent));
        // Its last event is of the end: the writer goes on until that is written.
        let recorder = EventRecorder::new(client.clone(), &self.name, "", CancellationToken::new());
        self.tell(&recorder, "became leader");
        let (until, over) = (stop.child_token(), CancellationToken::new());
        let tenure = Tenure { term: Arc::clone(&term), leading: until.clone(), over: over.clone() };
        let kept = tokio::spawn(self.keep(client, tenure, seen, recorder));
        Some(Leading { until, term, over: over.drop_guard(), kept })
    }

    fn tell(&self, recorder: &EventRecorder, what: &str) {
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

    /// One attempt to take or renew the lease that takes this long at most: a server that does not answer must not
    /// make anybody act for longer than others let him. Answers when what took it was sent.
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

    /// Renews the lease until the leader's work is over, and then gives it up; ends the term when it is lost.
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
                self.tell(&recorder, "stopped leading");
                self.standing.set(&self.name, false, client.clock().monotonic());
                return;
            }
            if let Some(sent) = self.attempt(&client, &mut seen, left, over).await {
                term.renew(sent);
                self.standing.set(&self.name, true, sent);
            }
        }
        // What may be left of its work ends before the next leader begins.
        drop(tenure);
        self.standing.set(&self.name, false, client.clock().monotonic());
        self.tell(&recorder, "stopped leading");
        self.release(&client).await;
        recorder.written().await;
    }

    /// One attempt to take or renew the lease. If this process holds it then, answers when that was written at the
    /// earliest: right before it was sent. Others count from the write, not from its answer.
    async fn try_once(&self, client: &Client, seen: &mut Seen) -> Result<Option<Duration>> {
        let now = client.clock().now();
        let lease = match client.get::<Lease>(&self.namespace, &self.name).await {
            Ok(lease) => lease,
            Err(e) if e.is_not_found() && self.coordinated => return Ok(None),
            Err(e) if e.is_not_found() => {
                let sent = client.clock().monotonic();
                client.create(&self.first_lease(now)).await?;
                return Ok(Some(sent));
            }
            Err(e) => return Err(e),
        };
        seen.observe(&lease, client.clock().monotonic());
        let unchanged_for = seen.unchanged_for(client.clock().monotonic());
        let next = match self.coordinated {
            true => self.renewed_lease(&lease, now, unchanged_for),
            false => self.next_lease(&lease, now, unchanged_for),
        };
        let Some(next) = next else { return Ok(None) };
        let sent = client.clock().monotonic();
        client.update(&next).await.map(|_| Some(sent))
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

    /// The lease to write, or `None` while somebody else holds it.
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

    /// The lease renewed, if this process was elected and nobody is to follow it.
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
            lease_duration_seconds: i32::try_from(self.lease_duration.as_secs()).ok(),
            preferred_holder: None,
            ..spec
        };
        Some(Lease { spec: Some(next), ..lease.clone() })
    }

    fn spec(&self, acquired: Timestamp, renewed: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.lease_duration.as_secs()).ok(),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(renewed)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Gives the lease up if this process holds it. A server that does not answer is not waited for longer than a
    /// renewal would be.
    async fn release(&self, client: &Client) {
        let released = tokio::select! {
            released = self.try_release(client) => released,
            () = client.clock().sleep(self.renew_deadline) => {
                tracing::warn!(lease = %self.name, "the lease could not be given up in time");
                return;
            }
        };
        match released {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(lease = %self.name, %error, "the lease could not be given up");
            }
            _ => {}
        }
    }

    /// A renewal that was under way may arrive in between.
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

/// A lease that this process has. It is given up in the background when this is dropped.
struct Leading {
    /// Cancelled when the lease is lost or the leader is to stop.
    until: CancellationToken,
    term: Arc<Term>,
    /// Cancelled when the leader's work has ended.
    over: DropGuard,
    kept: JoinHandle<()>,
}

/// The same for whoever renews the lease. However he ends, nobody goes on as the leader without him.
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
    /// Gives the lease up, for a leader whose work has ended.
    async fn release(self) {
        drop(self.over);
        if let Err(error) = self.kept.await {
            tracing::error!(%error, "the lease was not kept");
        }
    }
}

/// How long a lease holds without a sign: as its holder has written, whatever this candidate would write.
fn held_for(spec: &LeaseSpec) -> Duration {
    Duration::from_secs(u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0))
}

/// When the lease was last seen to change, by this process's own clock: clocks of others do not matter.
#[derive(Default)]
struct Seen {
    spec: Option<LeaseSpec>,
    at: Duration,
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

#[cfg(test)]
mod tests {
    use super::*;

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
