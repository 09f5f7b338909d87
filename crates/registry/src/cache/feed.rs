//! Loads the caches from storage and keeps them up to date with one watch over everything.

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

/// All API objects live below this key.
pub const ROOT: &str = "/registry/";
/// Keys read at once while loading.
const PAGE: usize = 2000;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// How long typed views stay that nobody asks for: from once to twice this; less while there are many new ones, which
/// weigh several times as much as the objects themselves.
const REST_EVERY: Duration = Duration::from_secs(20);
const REST_LOOK: Duration = Duration::from_secs(5);
const REST_BUSY: Duration = Duration::from_secs(2);
/// So many changes between two looks are many.
const MANY_CHANGES: u64 = 1000;

/// The store could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read the store")]
    Store(#[from] knarr_storage::Error),
    /// It is whole, only its key is missing: to leave it out would hide it, and invite to delete it.
    #[error(
        "{0} is stored encrypted, and nothing decrypts it: name the file with its key with --encryption-provider-config"
    )]
    Encrypted(String),
}

/// More than one where a new cache is about to take the place of another; the first is in use.
type ByName = BTreeMap<String, Vec<Arc<Cache>>>;

/// The caches of all stored resources.
pub struct Caches {
    /// By `group/resource`, with `core` for the core group.
    by_name: ArcSwap<ByName>,
    /// Held while a cache is added or removed.
    changing: Mutex<()>,
    applied: watch::Sender<u64>,
    progress: Mutex<Option<ProgressRequester>>,
    /// Whether there is a watch on the store now.
    following: AtomicBool,
}

impl Caches {
    /// Loads everything, then follows the store until `stop`, as a task of this supervisor. When that task fails,
    /// everything is loaded anew, as nobody knows what was applied last; so all watches end, and clients list again.
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

    /// What keeps the caches from being complete: resources that are not loaded yet, and all of them while nothing
    /// follows the store.
    pub fn incomplete(&self) -> Vec<String> {
        let by_name = self.by_name.load();
        let following = self.following.load(Ordering::Acquire);
        let is_incomplete =
            |caches: &[Arc<Cache>]| !following || caches.first().is_some_and(|c| c.is_loading());
        by_name.iter().filter(|(_, caches)| is_incomplete(caches)).map(|(name, _)| name.clone()).collect()
    }

    /// How many objects each resource has, by `group/resource`.
    pub fn counts(&self) -> Vec<(String, u64, u64)> {
        let by_name = self.by_name.load();
        let load = |(name, caches): (&String, &Vec<Arc<Cache>>)| {
            let (count, average, _) = caches.first()?.load();
            Some((name.clone(), count, average))
        };
        by_name.iter().filter_map(load).collect()
    }

    /// How many stored objects of each resource cannot be read, by `group/resource`, where there are any.
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

    /// Starts a cache of a resource at run time. It holds everything when this returns; one that was there before goes on
    /// until [`Caches::retire`].
    pub async fn add(
        &self,
        store: &dyn Store,
        name: &str,
        selectable: &'static [&'static str],
        normalize: Option<Normalize>,
    ) -> Result<Arc<Cache>, LoadError> {
        let cache = Arc::new(Cache::loading(selectable, normalize));
        // From here on it is told of events, so that nothing is missed between reading and following.
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

    /// Ends all caches of a resource but this one.
    pub fn retire(&self, name: &str, but: &Arc<Cache>) {
        self.change(name, |caches| caches.retain(|c| Arc::ptr_eq(c, but)));
    }

    /// Changes the caches of a resource; the watches of those that go end.
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

    /// The revision up to which all caches are complete.
    pub fn applied(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Waits until the caches hold everything up to `revision`.
    pub async fn wait_for(&self, revision: u64) {
        if self.applied() >= revision {
            return;
        }
        // Writes outside of the API's keys move the revision without an event here.
        if let Some(progress) = self.progress.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            progress.request();
        }
        let mut receiver = self.applied.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = receiver.wait_for(|applied| *applied >= revision).await;
    }

    /// Now and then drops the typed views that have gone out of use: a cluster at rest holds its objects once.
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

    /// Loads all caches at one revision. Those that are still being filled are among them: what they have read may be
    /// older than the place from which the store is followed next.
    async fn load(&self, store: &dyn Store) -> Result<u64, LoadError> {
        loop {
            let by_name = self.by_name.load_full();
            let (mut found, revision) = read_all(store, &by_name).await?;
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            if !Arc::ptr_eq(&by_name, &self.by_name.load_full()) {
                // A cache has come meanwhile, for which nothing was read.
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
                    tracing::error!(error = %ended, "cannot load the watch cache anew")
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(backoff) => {}
            }
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
            // History that is gone, or not the one that was read (a store put back from a backup): all anew.
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

    /// Follows the store from the revision that was loaded, after loading where nothing is, until that fails.
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

    /// Follows the store from `revision` on until the watch fails.
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
        // Somebody may have begun to wait before there was a watch to ask.
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

/// Says when the store is not followed any more, in whatever way that came.
struct Following<'a>(&'a AtomicBool);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Loaded {
    /// Takes in what is stored under a key of a resource.
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

/// All stored objects at one revision, by resource and by the place of the cache among those of the resource.
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

/// Which cache a storage key belongs to, and its key there.
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

/// An event as a cache takes it in.
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

/// Everything that is stored of one resource, at one revision.
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
