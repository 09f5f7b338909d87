//! Keeps a local store equal to a collection of the API: list, then watch. A watch that ends is resumed at the last
//! resourceVersion seen; only when the server cannot resume there, the collection is listed anew.
//!
//! Source: `k8s.io/client-go/tools/cache/reflector.go`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use knarr_api::kind::{ObjectKey, ResourceType};
use knarr_api::object::Object;
use knarr_apimachinery::clock::Clock;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::metrics;
use crate::store::ObjectStore;
use crate::supervisor::Supervisor;
use crate::transport::{ListOptions, Transport, WatchEvent};

/// A change as handlers see it.
#[derive(Debug, Clone)]
pub enum Change {
    Added(Arc<Object>),
    Updated { old: Arc<Object>, new: Arc<Object> },
    Deleted(Arc<Object>),
}

pub type Handler = Arc<dyn Fn(&Change) + Send + Sync>;

/// A handler, and until when it is of use.
struct Registered {
    handler: Handler,
    until: CancellationToken,
}

/// Page size of the initial list.
const PAGE: u32 = 10_000;
const FIRST_BACKOFF: Duration = Duration::from_millis(800);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// After so long without a failure the back-off starts anew.
const BACKOFF_RESET: Duration = Duration::from_secs(120);
/// A watch that ends sooner, and has brought nothing, is followed by a back-off.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The server is asked to end a watch after this and up to twice as long: a connection that died unseen is noticed.
const WATCH_SECONDS: u32 = 300;

/// One watched collection with its store and handlers.
pub struct Reflector {
    resource: ResourceType,
    namespace: Option<String>,
    selection: ListOptions,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    store: Arc<ObjectStore>,
    /// None at all once the reflector has ended for good.
    handlers: Mutex<Option<Vec<Registered>>>,
    synced: AtomicBool,
    observed: AtomicU64,
    synced_notify: Notify,
}

impl Reflector {
    /// `selection` gives the label and field selectors.
    pub fn new(
        resource: ResourceType,
        selection: ListOptions,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            resource,
            namespace: None,
            selection,
            transport,
            clock,
            store: Arc::default(),
            handlers: Mutex::new(Some(Vec::new())),
            synced: AtomicBool::new(false),
            observed: AtomicU64::new(0),
            synced_notify: Notify::new(),
        }
    }

    /// Looks at one namespace instead of all: what a node may do with the objects that its pods refer to.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    pub fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    fn handlers(&self) -> MutexGuard<'_, Option<Vec<Registered>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `handler` for everything in the store now, then for each change until `until`. It must not block.
    pub fn add_handler(&self, until: &CancellationToken, handler: Handler) {
        // Holding the lock keeps changes out while the handler learns what is there.
        let mut handlers = self.handlers();
        for object in self.store.list(None) {
            call(&handler, &Change::Added(object));
        }
        if let Some(handlers) = &mut *handlers {
            // Whoever is restarted adds its handlers again: those of the life before go now.
            handlers.retain(|registered| !registered.until.is_cancelled());
            handlers.push(Registered { handler, until: until.clone() });
        }
    }

    /// Lets go of all handlers for good: they may hold whoever holds this reflector. Nobody waits for its list any more.
    pub fn end(&self) {
        let handlers = self.handlers().take();
        self.synced_notify.notify_waiters();
        drop(handlers);
    }

    /// The resourceVersion that the store has reached: everything written up to it is in the store.
    pub fn observed_version(&self) -> u64 {
        self.observed.load(Ordering::Acquire)
    }

    /// Whether the first list has arrived whole.
    pub fn has_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Waits for the first list. False if the reflector has ended for good without it: then the store says nothing.
    #[must_use = "without the first list nothing is known"]
    pub async fn wait_synced(&self) -> bool {
        loop {
            let notified = self.synced_notify.notified();
            if self.has_synced() {
                return true;
            }
            if self.handlers().is_none() {
                return false;
            }
            notified.await;
        }
    }

    /// Lists and watches until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut backoff = Backoff::new(FIRST_BACKOFF, LONGEST_BACKOFF, BACKOFF_RESET);
        let mut reached = None;
        loop {
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                ended = self.list_or_watch(&mut reached) => ended,
            };
            let Err(error) = ended else { continue };
            if cannot_resume(&error) {
                reached = None;
            }
            tracing::debug!(resource = self.resource.plural, %error, "list or watch ended");
            let asked = error.retry_after().unwrap_or_default().min(LONGEST_BACKOFF);
            let wait = backoff.step(self.clock.monotonic()).max(asked);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.clock.sleep(wait) => {}
            }
        }
    }

    /// Watches from the version reached so far; without one, lists.
    async fn list_or_watch(&self, reached: &mut Option<String>) -> Result<()> {
        match reached {
            None => *reached = Some(self.list().await?),
            Some(version) => self.watch(version).await?,
        }
        Ok(())
    }

    /// One watch, from `version`, which goes along with it. An error asks for a back-off.
    async fn watch(&self, version: &mut String) -> Result<()> {
        let options = ListOptions {
            resource_version: Some(version.clone()),
            allow_bookmarks: true,
            timeout_seconds: Some(WATCH_SECONDS + fastrand::u32(..WATCH_SECONDS)),
            ..self.selection.clone()
        };
        metrics::watched(self.resource.plural);
        let (began, from) = (self.clock.monotonic(), version.clone());
        let mut stream = self.transport.watch(&self.resource, self.namespace.as_deref(), &options).await?;
        let mut broken = None;
        while let Some(event) = stream.next().await {
            match event {
                // An event that is older than the store would take it back.
                Ok(event) if is_told_again(&event, version) => {}
                Ok(event) => *version = self.apply(event),
                // The connection broke, which may happen to a long watch: as if the server had ended it.
                Err(error @ Error::Connection { .. }) => {
                    broken = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if *version != from || self.clock.monotonic().saturating_sub(began) >= SHORT_WATCH {
            return Ok(());
        }
        // A server that closes watches at once must not be asked in a tight loop.
        metrics::short_watch(self.resource.plural);
        let lost = || Error::Connection {
            server: self.resource.plural.to_owned(),
            source: "the watch ended within a second, without an event".into(),
        };
        Err(broken.unwrap_or_else(lost))
    }

    /// The whole collection, page by page; returns the version to watch from.
    async fn list(&self) -> Result<String> {
        metrics::listed(self.resource.plural);
        let mut options = ListOptions { limit: Some(PAGE), ..self.selection.clone() };
        if !self.has_synced() {
            // Any state will do for a start, so the server may answer from its cache.
            options.resource_version = Some("0".into());
        }
        let mut items = Vec::new();
        let version = loop {
            let page = self.transport.list(&self.resource, self.namespace.as_deref(), &options).await?;
            items.extend(page.items);
            match page.continue_token {
                Some(token) if !token.is_empty() => {
                    options.continue_token = Some(token);
                    options.resource_version = None;
                }
                _ => break page.resource_version,
            }
        };
        self.replace(items);
        self.observed.fetch_max(version.parse().unwrap_or(0), Ordering::AcqRel);
        self.synced.store(true, Ordering::Release);
        self.synced_notify.notify_waiters();
        Ok(version)
    }

    fn replace(&self, items: Vec<Arc<Object>>) {
        let mut gone: std::collections::BTreeSet<ObjectKey> =
            self.store.list(None).iter().map(|o| o.key()).collect();
        for object in items {
            gone.remove(&object.key());
            self.put(object, 0);
        }
        gone.iter().for_each(|key| self.remove(key, 0));
    }

    /// Applies one event and returns the version it brings the store to.
    fn apply(&self, event: WatchEvent) -> String {
        let version = match event {
            WatchEvent::Added(o) | WatchEvent::Modified(o) => {
                let version = o.resource_version();
                self.put(o, version);
                version
            }
            WatchEvent::Deleted(o) => {
                self.remove(&o.key(), o.resource_version());
                o.resource_version()
            }
            WatchEvent::Bookmark(version) => {
                self.observed.fetch_max(version.parse().unwrap_or(0), Ordering::AcqRel);
                return version;
            }
        };
        version.to_string()
    }

    /// `reached` is noted between store and handlers: whoever a handler wakes finds both.
    fn put(&self, new: Arc<Object>, reached: u64) {
        let handlers = self.handlers();
        let notify = |change: &Change| handlers.iter().flatten().for_each(|r| call(&r.handler, change));
        let replaced = self.store.put(Arc::clone(&new));
        self.observed.fetch_max(reached, Ordering::AcqRel);
        let change = match replaced {
            None => Change::Added(new),
            Some(old) if old.resource_version() == new.resource_version() && old.uid() == new.uid() => return,
            Some(old) if old.uid() != new.uid() => {
                notify(&Change::Deleted(Arc::clone(&old)));
                Change::Added(new)
            }
            Some(old) => Change::Updated { old, new },
        };
        notify(&change);
    }

    fn remove(&self, key: &ObjectKey, reached: u64) {
        let handlers = self.handlers();
        let removed = self.store.remove(key);
        self.observed.fetch_max(reached, Ordering::AcqRel);
        if let Some(old) = removed {
            let change = Change::Deleted(old);
            handlers.iter().flatten().for_each(|r| call(&r.handler, &change));
        }
    }
}

/// A handler that panics misses this change; other handlers, and later changes, are not affected.
fn call(handler: &Handler, change: &Change) {
    if catch_unwind(AssertUnwindSafe(|| handler(change))).is_err() {
        let (Change::Added(object) | Change::Updated { new: object, .. } | Change::Deleted(object)) = change;
        metrics::handler_panicked();
        tracing::error!(object = %object.key(), "an informer's event handler panicked");
    }
}

/// Runs a reflector as a supervised task of this name until `stop`. Several may share a name.
pub fn spawn(
    reflector: &Arc<Reflector>,
    supervisor: &Supervisor,
    name: &'static str,
    stop: CancellationToken,
) {
    let reflector = Arc::clone(reflector);
    supervisor.spawn(name, stop, move |stop| {
        let reflector = Arc::clone(&reflector);
        async move { reflector.run(stop).await }
    });
}

/// Whether a watch cannot go on where the last one ended: the server has forgotten what came after, does not know the
/// resource any more, or sends an event that cannot be read and would be sent again.
fn cannot_resume(error: &Error) -> bool {
    match error {
        Error::Status(status) => status.is_expired() || matches!(status.code(), 404 | 410),
        Error::Decode(_) | Error::Protocol(_) => true,
        Error::Connection { .. } | Error::LeaseLost => false,
    }
}

/// Whether the event is not newer than the version that the watch has come to.
fn is_told_again(event: &WatchEvent, reached: &str) -> bool {
    let version = match event {
        WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o) => o.resource_version(),
        WatchEvent::Bookmark(_) => return false,
    };
    version > 0 && reached.parse().is_ok_and(|reached: u64| version <= reached)
}

#[cfg(test)]
mod tests;
