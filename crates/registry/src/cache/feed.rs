//! Loads the caches from the store, and keeps them up to date with one watch over all keys.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use knarr_storage::{
    Event, EventKind, KeyRange, KeyValue, ProgressRequester, RangeRequest, Store, WatchItem, WatchRequest,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::damaged::{self, Loaded};
use super::{Applied, Cache, Normalize};
use crate::encryption;

/// The prefix of all API objects.
pub const ROOT: &str = "/registry/";
/// How many keys are read at once while loading.
const PAGE: usize = 2000;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// How long unused typed views are kept: between one and two times this. While many objects change, it is less,
/// because new views take several times as much memory as the objects themselves.
const REST_EVERY: Duration = Duration::from_secs(20);
const REST_LOOK: Duration = Duration::from_secs(5);
const REST_BUSY: Duration = Duration::from_secs(2);
/// The number of changes between two checks that counts as many.
const MANY_CHANGES: u64 = 1000;

/// Why the store could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read the store")]
    Store(#[from] knarr_storage::Error),
    /// The object is intact, only its key is missing. Skipping it would hide it, and invite users to delete it.
    #[error(
        "{0} is stored encrypted, and nothing decrypts it: name the file with its key with --encryption-provider-config"
    )]
    Encrypted(String),
}

/// A resource has more than one cache while a new one is about to replace the old one; the first is in use.
type ByName = BTreeMap<String, Vec<Arc<Cache>>>;

/// The caches of all stored resources.
pub struct Caches {
    /// By `group/resource`, with `core` for the core group.
    by_name: ArcSwap<ByName>,
    /// Held while a cache is added or removed.
    changing: Mutex<()>,
    applied: watch::Sender<u64>,
    progress: Mutex<Option<ProgressRequester>>,
    /// Whether a watch on the store is running.
    following: AtomicBool,
}

impl Caches {
    /// Loads everything, then follows the store until `stop`, as a task of this supervisor. When that task fails,
    /// everything is loaded again, because the last applied event is unknown; this ends all watches, and clients list
    /// again.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        names: impl IntoIterator<Item = (String, &'static [&'static str])>,
        supervisor: &Supervisor,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, LoadError> {
        let by_name: ByName = names
            .into_iter()
            .map(|(name, selectable)| (name, vec![Arc::new(Cache::new(selectable, None))]))
            .collect();
        let caches = Arc::new(Self {
            by_name: ArcSwap::from_pointee(by_name),
            changing: Mutex::default(),
            applied: watch::Sender::new(0),
            progress: Mutex::default(),
            following: AtomicBool::new(false),
        });
        let mut loaded = Some(caches.load(&*store).await?);
        let (resting, of_rest) = (Arc::clone(&caches), Arc::clone(&clock));
        supervisor.spawn("watch-cache-views", stop.clone(), move |stop| {
            Arc::clone(&resting).rest(Arc::clone(&of_rest), stop)
        });
        let followed = Arc::clone(&caches);
        supervisor.spawn("watch-cache", stop, move |stop| {
            let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
            Arc::clone(&followed).follow(store, clock, loaded.take(), stop)
        });
        Ok(caches)
    }

    /// Returns the resources whose caches are incomplete: those still loading, or all while no watch follows the
    /// store.
    pub fn incomplete(&self) -> Vec<String> {
        let by_name = self.by_name.load();
        let following = self.following.load(Ordering::Acquire);
        let is_incomplete =
            |caches: &[Arc<Cache>]| !following || caches.first().is_some_and(|c| c.is_loading());
        by_name.iter().filter(|(_, caches)| is_incomplete(caches)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the number of objects and their average size for each resource, by `group/resource`.
    pub fn counts(&self) -> Vec<(String, u64, u64)> {
        let by_name = self.by_name.load();
        let load = |(name, caches): (&String, &Vec<Arc<Cache>>)| {
            let (count, average, _) = caches.first()?.load();
            Some((name.clone(), count, average))
        };
        by_name.iter().filter_map(load).collect()
    }

    /// Returns the number of stored objects that cannot be decoded, by `group/resource`; resources without any are
    /// left out.
    pub fn damaged(&self) -> Vec<(String, usize)> {
        let by_name = self.by_name.load();
        let count = |(name, caches): (&String, &Vec<Arc<Cache>>)| {
            Some((name.clone(), caches.first()?.damaged(None).len())).filter(|(_, count)| *count > 0)
        };
        by_name.iter().filter_map(count).collect()
    }

    pub fn get(&self, name: &str) -> Option<Arc<Cache>> {
        self.by_name.load().get(name).and_then(|caches| caches.first()).cloned()
    }

    /// Adds a cache of a resource at run time. It is complete when this returns. An older cache of the resource stays
    /// in use until [`Caches::retire`].
    pub async fn add(
        &self,
        store: &dyn Store,
        name: &str,
        selectable: &'static [&'static str],
        normalize: Option<Normalize>,
    ) -> Result<Arc<Cache>, LoadError> {
        let cache = Arc::new(Cache::loading(selectable, normalize));
        // From here on the cache receives events, so that none is missed between reading and following.
        self.change(name, |caches| caches.push(Arc::clone(&cache)));
        match load_one(store, name, &cache).await {
            Ok((loaded, revision)) => {
                cache.finish_loading(loaded, revision);
                Ok(cache)
            }
            Err(error) => {
                self.change(name, |caches| caches.retain(|c| !Arc::ptr_eq(c, &cache)));
                Err(error)
            }
        }
    }

    /// Ends the cache of a resource that is no longer served, and its watches.
    pub fn remove(&self, name: &str) {
        self.change(name, Vec::clear);
    }

    /// Ends all caches of a resource except this one.
    pub fn retire(&self, name: &str, but: &Arc<Cache>) {
        self.change(name, |caches| caches.retain(|c| Arc::ptr_eq(c, but)));
    }

    /// Changes the caches of a resource, and ends the watches of those that are removed.
    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<Arc<Cache>>)) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut by_name = ByName::clone(&self.by_name.load());
        let mut caches = by_name.remove(name).unwrap_or_default();
        let before = caches.clone();
        change(&mut caches);
        let gone: Vec<Arc<Cache>> =
            before.into_iter().filter(|c| !caches.iter().any(|left| Arc::ptr_eq(left, c))).collect();
        if !caches.is_empty() {
            by_name.insert(name.to_owned(), caches);
        }
        self.by_name.store(Arc::new(by_name));
        gone.iter().for_each(|c| c.close());
    }

    /// Returns the revision up to which all caches are complete.
    pub fn applied(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Waits until the caches are complete up to `revision`.
    pub async fn wait_for(&self, revision: u64) {
        if self.applied() >= revision {
            return;
        }
        // Writes outside of the API's keys advance the store's revision without an event here.
        if let Some(progress) = self.progress.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            progress.request();
        }
        let mut receiver = self.applied.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = receiver.wait_for(|applied| *applied >= revision).await;
    }

    /// Periodically drops typed views that are no longer used, so that an idle cluster holds each object only once.
    async fn rest(self: Arc<Self>, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let (mut changes, mut busy, mut rested) = (0, false, clock.monotonic());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(if busy { REST_BUSY } else { REST_LOOK }) => {}
            }
            let caches = self.by_name.load();
            let all = || caches.values().flatten();
            let before = std::mem::replace(&mut changes, all().map(|cache| cache.generation()).sum::<u64>());
            busy = changes.abs_diff(before) >= MANY_CHANGES;
            let now = clock.monotonic();
            if busy || now.saturating_sub(rested) >= REST_EVERY {
                rested = now;
                all().for_each(|cache| cache.rest());
            }
        }
    }

    /// Loads all caches at one revision, also those that are still being filled: what they have read may be older
    /// than the revision from which the store is followed next.
    async fn load(&self, store: &dyn Store) -> Result<u64, LoadError> {
        loop {
            let by_name = self.by_name.load_full();
            let (mut found, revision) = read_all(store, &by_name).await?;
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            if !Arc::ptr_eq(&by_name, &self.by_name.load_full()) {
                // A cache was added in the meantime, and nothing was read for it.
                continue;
            }
            for (name, caches) in &*by_name {
                for (at, cache) in caches.iter().enumerate() {
                    cache.reset(found.remove(&(name.as_str(), at)).unwrap_or_default(), revision);
                }
            }
            self.applied.send_replace(revision);
            return Ok(revision);
        }
    }

    async fn follow(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        mut loaded: Option<u64>,
        stop: CancellationToken,
    ) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.load_and_watch(&*store, &mut loaded, &mut backoff) => ended,
            };
            if matches!(ended, LoadError::Store(knarr_storage::Error::Closed)) {
                return;
            }
            match &ended {
                LoadError::Store(error) => tracing::warn!(%error, "storage watch ended"),
                LoadError::Encrypted(_) => {
                    tracing::error!(error = %ended, "cannot reload the watch cache")
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(backoff) => {}
            }
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
            // The history has been compacted, or is not the one that was loaded (a store restored from a backup):
            // reload everything.
            if matches!(
                ended,
                LoadError::Store(
                    knarr_storage::Error::Compacted { .. } | knarr_storage::Error::FutureRevision { .. }
                )
            ) {
                loaded = None;
            }
        }
    }

    /// Loads everything unless it is loaded, then follows the store from the loaded revision until that fails.
    async fn load_and_watch(
        &self,
        store: &dyn Store,
        loaded: &mut Option<u64>,
        backoff: &mut Duration,
    ) -> LoadError {
        let mut revision = match *loaded {
            Some(revision) => revision,
            None => match self.load(store).await {
                Ok(revision) => revision,
                Err(error) => return error,
            },
        };
        let following = Following(&self.following);
        let ended = self.watch(store, &mut revision, backoff).await;
        drop(following);
        *loaded = Some(revision);
        ended.into()
    }

    /// Follows the store from `revision` until the watch fails.
    async fn watch(
        &self,
        store: &dyn Store,
        revision: &mut u64,
        backoff: &mut Duration,
    ) -> knarr_storage::Error {
        let mut watch = match store.watch(WatchRequest::prefix(ROOT).after(*revision)).await {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        self.following.store(true, Ordering::Release);
        let progress = watch.progress_requester();
        // A caller may have started to wait before a watch existed that could be asked for progress.
        progress.request();
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        loop {
            match watch.next().await {
                None => return knarr_storage::Error::Closed,
                Some(Err(error)) => return error,
                Some(Ok(item)) => {
                    *backoff = FIRST_BACKOFF;
                    *revision = item.revision();
                    let by_name = self.by_name.load_full();
                    if let WatchItem::Events(events) = &item {
                        let revisions = events.events.chunk_by(|a, b| a.kv.mod_revision == b.kv.mod_revision);
                        revisions.for_each(|events| apply(&by_name, events));
                    }
                    by_name.values().flatten().for_each(|c| c.set_applied(*revision));
                    self.applied.send_replace(*revision);
                }
            }
        }
    }
}

/// Clears the flag when the watch of the store ends, for whatever reason.
struct Following<'a>(&'a AtomicBool);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Loaded {
    /// Decodes the value stored under a key of a resource and adds it.
    fn take(&mut self, cache: &Cache, resource: &str, key: &str, kv: &KeyValue) -> Result<(), LoadError> {
        match cache.decode(&kv.value, kv.mod_revision) {
            Ok(object) => drop(self.objects.insert(key.into(), Arc::new(object))),
            Err(_) if kv.value.starts_with(encryption::RESERVED) => {
                return Err(LoadError::Encrypted(format!("{resource}/{key}")));
            }
            Err(error) => {
                damaged::report(resource, key, &kv.value, &error);
                self.damaged.insert(key.into());
            }
        }
        Ok(())
    }
}

/// Reads all stored objects at one revision, by resource and by the cache's index among those of the resource.
async fn read_all<'a>(
    store: &dyn Store,
    by_name: &'a ByName,
) -> Result<(BTreeMap<(&'a str, usize), Loaded>, u64), LoadError> {
    let mut found: BTreeMap<(&str, usize), Loaded> = BTreeMap::new();
    let mut request = RangeRequest::prefix(ROOT).limit(PAGE).without_count();
    loop {
        let page = store.range(request.clone()).await?;
        for kv in &page.kvs {
            let Some((name, caches, key)) = place(by_name, &kv.key) else { continue };
            for (at, cache) in caches.iter().enumerate() {
                found.entry((name, at)).or_default().take(cache, name, key, kv)?;
            }
        }
        match page.kvs.last() {
            Some(last) if page.more => {
                request.range = KeyRange::prefix(ROOT).after(&last.key);
                request.revision = Some(page.revision);
            }
            _ => return Ok((found, page.revision)),
        }
    }
}

/// Returns the caches that a storage key belongs to, and its key there.
fn place<'a, 'k>(by_name: &'a ByName, key: &'k [u8]) -> Option<(&'a str, &'a [Arc<Cache>], &'k str)> {
    let rest = std::str::from_utf8(key).ok()?.strip_prefix(ROOT)?;
    let slash = rest.match_indices('/').nth(1)?.0;
    let (name, caches) = by_name.get_key_value(&rest[..slash])?;
    Some((name, caches, &rest[slash + 1..]))
}

/// Applies the events of one revision, to each cache at once.
pub(super) fn apply(by_name: &ByName, events: &[Event]) {
    let mut by_resource: BTreeMap<&str, Vec<(&str, &Event)>> = BTreeMap::new();
    for event in events {
        if let Some((name, _, key)) = place(by_name, &event.kv.key) {
            by_resource.entry(name).or_default().push((key, event));
        }
    }
    for (name, events) in by_resource {
        for cache in by_name.get(name).into_iter().flatten() {
            cache.apply(events.iter().filter_map(|(key, event)| arrived(cache, name, key, event)).collect());
        }
    }
}

/// Decodes an event for a cache.
fn arrived(cache: &Cache, resource: &str, key: &str, event: &Event) -> Option<(Box<str>, Applied)> {
    let (stored, deleted) = match event.kind {
        EventKind::Put => (&event.kv, false),
        EventKind::Delete => (event.prev.as_ref()?, true),
    };
    match cache.arrived(key, &stored.value, event.kv.mod_revision) {
        Ok(object) if deleted => Some((key.into(), Applied::Delete(Arc::new(object)))),
        Ok(object) => Some((key.into(), Applied::Put(Arc::new(object)))),
        Err(error) => {
            if !deleted {
                damaged::report(resource, key, &stored.value, &error);
            }
            let revision = event.kv.mod_revision;
            Some((key.into(), Applied::Unreadable { revision, present: !deleted }))
        }
    }
}

/// Reads all stored objects of one resource at one revision.
async fn load_one(store: &dyn Store, name: &str, cache: &Cache) -> Result<(Loaded, u64), LoadError> {
    let prefix = format!("{ROOT}{name}/");
    let mut loaded = Loaded::default();
    let mut request = RangeRequest::prefix(prefix.clone()).limit(PAGE).without_count();
    loop {
        let page = store.range(request.clone()).await?;
        for kv in &page.kvs {
            let Some(key) = std::str::from_utf8(&kv.key).ok().and_then(|k| k.strip_prefix(&*prefix)) else {
                continue;
            };
            loaded.take(cache, name, key, kv)?;
        }
        match page.kvs.last() {
            Some(last) if page.more => {
                request.range = KeyRange::prefix(prefix.clone()).after(&last.key);
                request.revision = Some(page.revision);
            }
            _ => return Ok((loaded, page.revision)),
        }
    }
}
