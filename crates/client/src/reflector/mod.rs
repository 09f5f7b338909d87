//! Keeps a local store equal to a collection of the API: lists it, then watches it. A watch that ends is resumed at the
//! last resourceVersion seen. Only when the server cannot resume there, the collection is listed again.
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

/// A function that is called for each change.
pub type Handler = Arc<dyn Fn(&Change) + Send + Sync>;

/// A handler, with the token that ends its registration.
struct Registered {
    handler: Handler,
    until: CancellationToken,
}

/// The page size of the initial list.
const PAGE: u32 = 10_000;
const FIRST_BACKOFF: Duration = Duration::from_millis(800);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// After this long without a failure, the back-off resets.
const BACKOFF_RESET: Duration = Duration::from_secs(120);
/// A watch that ends sooner than this and without an event is followed by a back-off.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The timeout sent to the server is this to twice this long: connections that broke unnoticed are detected that way.
const WATCH_SECONDS: u32 = 300;

/// A watched collection, with its store and handlers.
pub struct Reflector {
    resource: ResourceType,
    namespace: Option<String>,
    selection: ListOptions,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    store: Arc<ObjectStore>,
    /// `None` once the reflector has ended for good.
    handlers: Mutex<Option<Vec<Registered>>>,
    synced: AtomicBool,
    observed: AtomicU64,
    synced_notify: Notify,
}

impl Reflector {
    /// Creates a reflector; `selection` contains the label and field selectors.
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

    /// Restricts the reflector to one namespace, which is all that a node is allowed for the objects its pods refer to.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// The local copy of the collection.
    pub fn store(&self) -> &Arc<ObjectStore> {
        &self.store
    }

    fn handlers(&self) -> MutexGuard<'_, Option<Vec<Registered>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `handler` for everything in the store now, and for each change until `until` is cancelled. It must not
    /// block.
    pub fn add_handler(&self, until: &CancellationToken, handler: Handler) {
        // The lock keeps changes out while the handler processes the store.
        let mut handlers = self.handlers();
        for object in self.store.list(None) {
            call(&handler, &Change::Added(object));
        }
        if let Some(handlers) = &mut *handlers {
            // Components that are restarted add their handlers again; the old ones are removed here.
            handlers.retain(|registered| !registered.until.is_cancelled());
            handlers.push(Registered { handler, until: until.clone() });
        }
    }

    /// Drops all handlers for good, because they may hold an owner of this reflector. Ends all waiting for the first
    /// list.
    pub fn end(&self) {
        let handlers = self.handlers().take();
        self.synced_notify.notify_waiters();
        drop(handlers);
    }

    /// The resourceVersion of the store: it contains everything written up to that version.
    pub fn observed_version(&self) -> u64 {
        self.observed.load(Ordering::Acquire)
    }

    /// Returns whether the first list is complete.
    pub fn has_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Waits for the first list. Returns false if the reflector has ended for good before: then the store is
    /// incomplete.
    #[must_use = "without the first list the store is empty"]
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

    /// Lists and watches until `stop` is cancelled.
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

    /// Watches from the version `reached`, or lists if there is none.
    async fn list_or_watch(&self, reached: &mut Option<String>) -> Result<()> {
        match reached {
            None => *reached = Some(self.list().await?),
            Some(version) => self.watch(version).await?,
        }
        Ok(())
    }

    /// Runs one watch from `version`, which it updates. After an error, the caller must back off.
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
                // An event that is older than the store would revert it.
                Ok(event) if is_stale(&event, version) => {}
                Ok(event) => *version = self.apply(event),
                // The connection was lost, as can happen to a long watch. It is handled as if the server had ended the
                // watch.
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
        // A server that closes watches at once must not be called in a tight loop.
        metrics::short_watch(self.resource.plural);
        let lost = || Error::Connection {
            server: self.resource.plural.to_owned(),
            source: "the watch ended within a second, without an event".into(),
        };
        Err(broken.unwrap_or_else(lost))
    }

    /// Lists the whole collection, page by page. Returns the version to watch from.
    async fn list(&self) -> Result<String> {
        metrics::listed(self.resource.plural);
        let mut options = ListOptions { limit: Some(PAGE), ..self.selection.clone() };
        if !self.has_synced() {
            // Any state is fine to start with, so the server may answer from its cache.
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

    /// Applies one event and returns the new version of the store.
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

    /// Stores an object. `reached` is updated between the store and the handlers, so that tasks woken by a handler see
    /// both.
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

/// Calls a handler. One that panics misses this change; other handlers and later changes are not affected.
fn call(handler: &Handler, change: &Change) {
    if catch_unwind(AssertUnwindSafe(|| handler(change))).is_err() {
        let (Change::Added(object) | Change::Updated { new: object, .. } | Change::Deleted(object)) = change;
        metrics::handler_panicked();
        tracing::error!(object = %object.key(), "an informer's event handler panicked");
    }
}

/// Runs a reflector as a supervised task with this name, until `stop` is cancelled. Several may share a name.
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

/// Returns whether a watch cannot be resumed: the server no longer has the later events, does not know the resource any
/// more, or sends an event that cannot be decoded and would be sent again.
fn cannot_resume(error: &Error) -> bool {
    match error {
        Error::Status(status) => status.is_expired() || matches!(status.code(), 404 | 410),
        Error::Decode(_) | Error::Protocol(_) => true,
        Error::Connection { .. } | Error::LeaseLost => false,
    }
}

/// Returns whether the event is not newer than the version that the watch has reached.
fn is_stale(event: &WatchEvent, reached: &str) -> bool {
    let version = match event {
        WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o) => o.resource_version(),
        WatchEvent::Bookmark(_) => return false,
    };
    version > 0 && reached.parse().is_ok_and(|reached: u64| version <= reached)
}

#[cfg(test)]
mod tests;
