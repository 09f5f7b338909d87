//! A faulty transport to the API server: late, stalled, broken and replayed watches, lost answers, refused
//! and conflicting writes, a server that is down, and a component that crashes between two writes.
//!
//! All randomness is from one seeded generator.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future, stream};
use http::Method;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::{List, ListOptions, Transport, WatchEvent, WatchStream};
use knarr_client::{Error, Result};
use tokio::sync::Notify;

/// The rates of the faults: probabilities between 0 and 1, and maximum delays.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// The longest time that a request takes to arrive, and its answer to return.
    pub latency: Duration,
    /// The longest delay of a watch event.
    pub staleness: Duration,
    /// A write is refused before it is carried out.
    pub refused: f64,
    /// A write is carried out and its answer is lost.
    pub lost: f64,
    /// A change gets a conflict; its retry does not.
    pub conflict: f64,
    /// A watch breaks after an event.
    pub broken: f64,
    /// A broken watch cannot resume at its revision, which is too old.
    pub expired: f64,
    /// A resumed watch repeats some of its events.
    pub replayed: f64,
    /// A watch sends nothing for a long time, up to [`STALL`], and then everything at once.
    pub stalled: f64,
    /// The component crashes after a write, before it gets the answer.
    pub crash: f64,
}

impl Rates {
    /// No faults.
    pub const NONE: Self = Self {
        latency: Duration::ZERO,
        staleness: Duration::ZERO,
        refused: 0.0,
        lost: 0.0,
        conflict: 0.0,
        broken: 0.0,
        expired: 0.0,
        replayed: 0.0,
        stalled: 0.0,
        crash: 0.0,
    };
}

/// How long a watch may stall.
pub const STALL: Duration = Duration::from_secs(20);
/// How many revisions a replayed watch goes back.
const REPLAY: u64 = 40;

/// The generator and rates that all transports of one test share.
#[derive(Clone)]
pub struct Chance(Arc<Mutex<Drawn>>);

struct Drawn {
    rng: fastrand::Rng,
    rates: Rates,
    /// Whether the server is down.
    down: bool,
}

impl Chance {
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self(Arc::new(Mutex::new(Drawn { rng: fastrand::Rng::with_seed(seed), rates, down: false })))
    }

    /// Sets the rates from now on.
    pub fn set(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// Sets whether the server is down. Its watches must be ended as well: `FakeApi::disconnect`.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    fn is_down(&self) -> bool {
        self.lock().down
    }

    fn lock(&self) -> MutexGuard<'_, Drawn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw<T>(&self, of: impl FnOnce(&mut fastrand::Rng, &Rates) -> T) -> T {
        let mut inner = self.lock();
        let Drawn { rng, rates, .. } = &mut *inner;
        of(rng, rates)
    }

    fn happens(&self, chance: impl FnOnce(&Rates) -> f64) -> bool {
        self.draw(|rng, rates| {
            let chance = chance(rates);
            chance > 0.0 && rng.f64() < chance
        })
    }

    fn up_to(&self, most: impl FnOnce(&Rates) -> Duration) -> Duration {
        self.draw(|rng, rates| most(rates).mul_f64(rng.f64()))
    }
}

/// The transport of one life of a component: after a crash, no request returns.
pub struct Faulty {
    inner: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    chance: Chance,
    crashed: AtomicBool,
    crash: Notify,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Transport>, clock: Arc<dyn Clock>, chance: Chance) -> Arc<Self> {
        Arc::new(Self { inner, clock, chance, crashed: AtomicBool::new(false), crash: Notify::new() })
    }

    /// Waits until this life has ended.
    pub async fn crashed(&self) {
        loop {
            let notified = self.crash.notified();
            if self.crashed.load(Ordering::SeqCst) {
                return;
            }
            notified.await;
        }
    }

    /// Ends this life.
    pub fn kill(&self) {
        self.crashed.store(true, Ordering::SeqCst);
        self.crash.notify_waiters();
    }

    /// Blocks forever if the component is dead, so that it gets no answer.
    async fn unless_dead(&self) {
        if self.crashed.load(Ordering::SeqCst) {
            future::pending::<()>().await;
        }
    }

    async fn travel(&self) {
        let wait = self.chance.up_to(|r| r.latency);
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
        self.unless_dead().await;
    }
}

fn lost() -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    Error::Connection { server: "the server of the test".into(), source: source.into() }
}

#[async_trait]
impl Transport for Faulty {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        self.travel().await;
        if self.chance.is_down() {
            return Err(lost());
        }
        let writes = request.method() != Method::GET;
        // Events are not tested here, and would use up random numbers.
        let writes = writes && !request.uri().path().contains("/events");
        if writes && self.chance.happens(|r| r.refused) {
            return Err(Error::Status(StatusError::unavailable(
                "the server is currently unable to handle it",
            )));
        }
        let changes = matches!(*request.method(), Method::PUT | Method::PATCH);
        if writes && changes && self.chance.happens(|r| r.conflict) {
            return Err(Error::Status(StatusError::modified(&GroupResource::new("", "objects"), "it")));
        }
        let answer = self.inner.send(request).await;
        if writes && self.chance.happens(|r| r.crash) {
            self.kill();
        }
        self.travel().await;
        if writes && self.chance.happens(|r| r.lost) {
            return Err(lost());
        }
        answer
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        if self.chance.is_down() {
            return Err(lost());
        }
        let list = self.inner.list(resource, namespace, options).await;
        // A list that arrives late shows an old state.
        let wait = self.chance.up_to(|r| r.staleness);
        self.clock.sleep(wait).await;
        self.unless_dead().await;
        if self.chance.happens(|r| r.refused) {
            return Err(lost());
        }
        list
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        self.travel().await;
        if self.chance.is_down() {
            return Err(lost());
        }
        if self.chance.happens(|r| r.expired) {
            return Err(Error::Status(StatusError::expired("too old resource version")));
        }
        let mut options = options.clone();
        if self.chance.happens(|r| r.replayed) {
            let back = self.chance.draw(|rng, _| rng.u64(1..REPLAY));
            let from = options.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
            options.resource_version = from.map(|v| v.saturating_sub(back).to_string());
        }
        let events = self.inner.watch(resource, namespace, &options).await?;
        let late =
            Late { events, chance: self.chance.clone(), clock: Arc::clone(&self.clock), waited: false };
        Ok(Box::pin(stream::unfold(Some(late), |late| async move {
            let mut late = late?;
            let event = late.next().await?;
            let broken = late.chance.happens(|r| r.broken);
            Some((event, (!broken).then_some(late)))
        })))
    }
}

/// A watch whose events are late: all events that gather while one is delayed arrive with it.
struct Late {
    events: WatchStream,
    chance: Chance,
    clock: Arc<dyn Clock>,
    waited: bool,
}

impl Late {
    async fn next(&mut self) -> Option<Result<WatchEvent>> {
        let event = match self.events.next().now_or_never() {
            Some(event) => event?,
            None => {
                self.waited = false;
                self.events.next().await?
            }
        };
        if !self.waited {
            let stalled = self.chance.happens(|r| r.stalled);
            let wait = self.chance.up_to(|r| if stalled { STALL } else { r.staleness });
            if !wait.is_zero() {
                self.clock.sleep(wait).await;
            }
            self.waited = true;
        }
        Some(event)
    }
}
