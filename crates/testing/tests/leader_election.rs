//! A leader that stops releases its lease, but only after its work has ended, if that ends in time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::TokioClock;
use knarr_client::leader_election::LeaderElection;
use knarr_client::leadership::Leadership;
use knarr_client::transport::{List, ListOptions, Transport, WatchStream};
use knarr_client::{Client, Error};
use knarr_testing::FakeApi;
use knarr_testing::faults::{Chance, Faulty, Rates};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a leader's work continues after its token was cancelled: longer than the lease lasts.
const WINDING_UP: Duration = Duration::from_secs(7);
const LEASE: Duration = Duration::from_secs(3);
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
/// Longer than any wait for a leader.
const NEVER: Duration = Duration::from_secs(1_000_000);

struct Candidate {
    stop: CancellationToken,
    works: Arc<AtomicBool>,
    running: JoinHandle<()>,
}

/// Starts a process that stands for the lease; `at_work` counts the processes that act under it.
fn candidate(
    api: &Arc<FakeApi>,
    identity: &str,
    at_work: &Arc<AtomicUsize>,
    winding_up: Duration,
) -> Candidate {
    let (clock, stop) = (Arc::clone(api.client().clock()), CancellationToken::new());
    // Answers take a moment, so that a request that is not awaited is not finished.
    let rates = Rates { latency: Duration::from_millis(300), ..Rates::NONE };
    let slow = Faulty::new(Arc::clone(api.client().transport()), Arc::clone(&clock), Chance::new(7, rates));
    let client = Client::new(slow, clock, identity);
    let (works, at_work, until) = (Arc::new(AtomicBool::new(false)), Arc::clone(at_work), stop.clone());
    let election = LeaderElection {
        lease_duration: LEASE,
        renew_deadline: RENEW_DEADLINE,
        retry_period: Duration::from_millis(500),
        ..LeaderElection::new("kube-system", "kube-controller-manager", identity)
    };
    let shown = Arc::clone(&works);
    let running = tokio::spawn(async move {
        let work = |leading: Leadership| {
            let (works, at_work) = (Arc::clone(&works), Arc::clone(&at_work));
            let leading = leading.until;
            async move {
                assert_eq!(at_work.fetch_add(1, Ordering::SeqCst), 0, "another one still acts");
                works.store(true, Ordering::SeqCst);
                leading.cancelled().await;
                tokio::time::sleep(winding_up).await;
                works.store(false, Ordering::SeqCst);
                at_work.fetch_sub(1, Ordering::SeqCst);
            }
        };
        election.while_leading(client, until, work).await;
    });
    Candidate { stop, works: shown, running }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_given_up_when_the_work_under_it_has_ended() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &[Lease::RESOURCE, Event::RESOURCE]);
    let holder = || {
        let lease = api.get::<Lease>("kube-system", "kube-controller-manager").unwrap();
        lease.spec.unwrap().holder_identity.unwrap()
    };
    let at_work = Arc::default();
    let first = candidate(&api, "first", &at_work, WINDING_UP);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(first.works.load(Ordering::SeqCst));
    let second = candidate(&api, "second", &at_work, WINDING_UP);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!second.works.load(Ordering::SeqCst));

    first.stop.cancel();
    tokio::time::sleep(WINDING_UP - Duration::from_secs(1)).await;
    assert!(first.works.load(Ordering::SeqCst), "is still at it");
    assert_eq!(holder(), "first");
    let before = clock.monotonic();
    first.running.await.unwrap();
    assert_ne!(holder(), "first", "a process that has ended does not hold the lease");
    while !second.works.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = clock.monotonic() - before;
    assert!(took < LEASE - Duration::from_millis(500), "the next one waited for {took:?}");

    second.stop.cancel();
    second.running.await.unwrap();
    assert_eq!(holder(), "", "no process is left");
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_keeps_neither_the_lease_nor_the_process() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &[Lease::RESOURCE, Event::RESOURCE]);
    let stuck = candidate(&api, "stuck", &Arc::default(), NEVER);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(stuck.works.load(Ordering::SeqCst));
    stuck.stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), stuck.running).await.unwrap().unwrap();
    let lease = api.get::<Lease>("kube-system", "kube-controller-manager").unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

/// Returns a client whose requests, and their answers, take up to this long.
fn slow(api: &Arc<FakeApi>, identity: &str, latency: Duration, seed: u64) -> (Client, Chance) {
    let clock = Arc::clone(api.client().clock());
    let chance = Chance::new(seed, Rates { latency, ..Rates::NONE });
    let slow = Faulty::new(Arc::clone(api.client().transport()), Arc::clone(&clock), chance.clone());
    (Client::new(slow, clock, identity), chance)
}

/// The leader tries to write a ConfigMap all the time, even when it should end.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_writes_even_if_renewals_were_answered_late() {
    for seed in 0..20 {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let kinds = [Lease::RESOURCE, Event::RESOURCE, ConfigMap::RESOURCE];
        let api = FakeApi::new(Arc::clone(&clock), &kinds);
        let election = |identity: &str| LeaderElection {
            lease_duration: LEASE,
            renew_deadline: RENEW_DEADLINE,
            retry_period: Duration::from_millis(500),
            ..LeaderElection::new("kube-system", "kube-controller-manager", identity)
        };
        let (renewing, chance) = slow(&api, "first", Duration::from_millis(200), seed);
        let (sent, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let writer = api.client();
        let (written, until, own) = (Arc::clone(&sent), stop.clone(), Arc::clone(&clock));
        let first = tokio::spawn(async move {
            let work = |leading: Leadership| {
                let (client, written, clock) =
                    (writer.clone().under(&leading), Arc::clone(&written), Arc::clone(&own));
                async move {
                    let mut map = ConfigMap::default();
                    map.metadata.namespace = Some("default".into());
                    for n in 0.. {
                        map.metadata.name = Some(format!("m{n}"));
                        match client.create(&map).await {
                            Ok(_) => written.lock().unwrap().push(clock.now()),
                            Err(Error::LeaseLost) => {}
                            Err(other) => panic!("{other}"),
                        }
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            };
            election("first").while_leading(renewing, until, work).await;
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        // From now on no renewal of the lease arrives.
        chance.set_down(true);
        api.disconnect();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let renewed = api.writes().iter().rfind(|r| r.path.contains("/leases")).unwrap().at;
        let last = *sent.lock().unwrap().last().unwrap();
        let since: Duration = last.duration_since(renewed).try_into().unwrap();
        assert!(since > Duration::from_secs(1), "seed {seed}: it led for {since:?} only");
        // Other candidates count from the arrival of the renewal.
        assert!(since <= RENEW_DEADLINE, "seed {seed}: it wrote {since:?} after the last renewal");
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(60), first).await.unwrap().unwrap();
    }
}

/// Counts reads of single objects.
struct Reads {
    inner: Arc<dyn Transport>,
    gets: Arc<AtomicUsize>,
}

#[async_trait]
impl Transport for Reads {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Error> {
        if request.method() == http::Method::GET {
            self.gets.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.send(request).await
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List, Error> {
        self.inner.list(resource, namespace, options).await
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream, Error> {
        self.inner.watch(resource, namespace, options).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_renews_without_reading_until_others_write() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &[Lease::RESOURCE, Event::RESOURCE]);
    let gets = Arc::new(AtomicUsize::new(0));
    let reads = Reads { inner: Arc::clone(api.client().transport()), gets: Arc::clone(&gets) };
    let client = Client::new(Arc::new(reads), Arc::clone(&clock), "one");
    let election = LeaderElection {
        lease_duration: LEASE,
        renew_deadline: RENEW_DEADLINE,
        retry_period: Duration::from_millis(500),
        ..LeaderElection::new("kube-system", "kube-controller-manager", "one")
    };
    let (stop, lost) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let (until, shown) = (stop.clone(), Arc::clone(&lost));
    let running = tokio::spawn(async move {
        let work = |leading: Leadership| {
            let (lost, leading) = (Arc::clone(&shown), leading.until);
            async move {
                leading.cancelled().await;
                lost.store(true, Ordering::SeqCst);
            }
        };
        election.while_leading(client, until, work).await;
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(gets.load(Ordering::SeqCst), 1, "the first look alone");
    // Another client changes the object, not the holder.
    let mut lease = api.get::<Lease>("kube-system", "kube-controller-manager").unwrap();
    lease.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    api.client().update(&lease).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(gets.load(Ordering::SeqCst), 2, "once more after the conflict");
    assert!(!lost.load(Ordering::SeqCst));
    stop.cancel();
    running.await.unwrap();
}
