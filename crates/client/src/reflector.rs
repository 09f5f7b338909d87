//! Keeps a local store equal to a collection of the API: list, then watch, and again when the watch ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use knarr_api::kind::{ObjectKey, ResourceType};
use knarr_api::object::Object;
use knarr_apimachinery::clock::Clock;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::store::ObjectStore;
use crate::transport::{ListOptions, Transport, WatchEvent};

/// A change as handlers see it.
#[derive(Debug, Clone)]
pub enum Change {
    Added(Arc<Object>),
    Updated { old: Arc<Object>, new: Arc<Object> },
    Deleted(Arc<Object>),
}

pub type Handler = Arc<dyn Fn(&Change) + Send + Sync>;

/// Page size of the initial list.
const PAGE: u32 = 10_000;
const FIRST_BACKOFF: Duration = Duration::from_millis(800);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// One watched collection with its store and handlers.
pub struct Reflector {
    resource: ResourceType,
    namespace: Option<String>,
    selection: ListOptions,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    store: Arc<ObjectStore>,
    /// None at all once the reflector has ended for good.
    handlers: Mutex<Option<Vec<Handler>>>,
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

    fn handlers(&self) -> MutexGuard<'_, Option<Vec<Handler>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `handler` for everything in the store now, then for each change. It must not block.
    pub fn add_handler(&self, handler: Handler) {
        // Holding the lock keeps changes out while the handler learns what is there.
        let mut handlers = self.handlers();
        for object in self.store.list(None) {
            handler(&Change::Added(object));
        }
        if let Some(handlers) = &mut *handlers {
            handlers.push(handler);
        }
    }

    /// Lets go of all handlers for good: they may hold whoever holds this reflector.
    pub fn end(&self) {
        let handlers = self.handlers().take();
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

    /// Waits for the first list.
    pub async fn wait_synced(&self) {
        loop {
            let notified = self.synced_notify.notified();
            if self.has_synced() {
                return;
            }
            notified.await;
        }
    }

    /// Lists and watches until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut backoff = FIRST_BACKOFF;
        while !stop.is_cancelled() {
            let result = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                result = self.list_and_watch(&mut backoff) => result,
            };
            if let Err(error) = result {
                if !error.is_expired() {
                    tracing::debug!(resource = self.resource.plural, %error, "list or watch ended");
                }
                let wait = backoff.mul_f64(0.5 + fastrand::f64());
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.clock.sleep(wait) => {}
                }
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
            }
        }
    }

    async fn list_and_watch(&self, backoff: &mut Duration) -> Result<()> {
        let mut version = self.list().await?;
        *backoff = FIRST_BACKOFF;
        loop {
            let options = ListOptions {
                resource_version: Some(version.clone()),
                allow_bookmarks: true,
                ..self.selection.clone()
            };
            let mut stream =
                self.transport.watch(&self.resource, self.namespace.as_deref(), &options).await?;
            let mut quiet = true;
            while let Some(event) = stream.next().await {
                quiet = false;
                let event = event?;
                // What is known already, told again, would take the store back.
                if !is_told_again(&event, &version) {
                    version = self.apply(event);
                }
            }
            if quiet {
                // A server that closes watches at once must not be asked in a tight loop.
                return Err(Error::Protocol("the watch ended without an event".into()));
            }
        }
    }

    /// The whole collection, page by page; returns the version to watch from.
    async fn list(&self) -> Result<String> {
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
        let tell = |change: &Change| handlers.iter().flatten().for_each(|handler| handler(change));
        let replaced = self.store.put(Arc::clone(&new));
        self.observed.fetch_max(reached, Ordering::AcqRel);
        let change = match replaced {
            None => Change::Added(new),
            Some(old) if old.resource_version() == new.resource_version() && old.uid() == new.uid() => return,
            Some(old) if old.uid() != new.uid() => {
                tell(&Change::Deleted(Arc::clone(&old)));
                Change::Added(new)
            }
            Some(old) => Change::Updated { old, new },
        };
        tell(&change);
    }

    fn remove(&self, key: &ObjectKey, reached: u64) {
        let handlers = self.handlers();
        let removed = self.store.remove(key);
        self.observed.fetch_max(reached, Ordering::AcqRel);
        if let Some(old) = removed {
            let change = Change::Deleted(old);
            handlers.iter().flatten().for_each(|handler| handler(&change));
        }
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
