//! The watch cache: holds every stored object once, keeps recent events for watches, and is fed by one storage watch.

pub mod damaged;
mod expected;
mod feed;
mod selection;
mod watcher;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use knarr_api::object::Object;
use tokio::sync::mpsc;

use damaged::Loaded;
use expected::Expected;
pub use feed::{Caches, LoadError, ROOT};
pub use selection::Selection;
use watcher::Start;
pub use watcher::{Change, Kind, Watcher, left};

/// The limit of recent events kept per resource, by number and by the bytes of the objects that they keep alive.
pub const RING_EVENTS: usize = 8192;
const RING_BYTES: usize = 24 * 1024 * 1024;
/// After this many events, informers have handled the replaced objects, and their typed views are dropped.
const VIEWS_KEPT: usize = 256;
/// The number of events that may be queued for one watcher before its watch is ended.
const WATCHER_BUFFER: usize = 1024;

type Objects = BTreeMap<Box<str>, Arc<Object>>;

/// One change of one object.
#[derive(Debug)]
pub struct CacheEvent {
    /// The new state; for a deletion, the last state with the deletion's resourceVersion.
    pub object: Arc<Object>,
    pub previous: Option<Arc<Object>>,
    pub deleted: bool,
    /// The encoded object, created by the first watcher that needs it.
    pub wire: Arc<Wire>,
}

/// The encodings of an object, shared by all watchers of its event.
#[derive(Debug, Default)]
pub struct Wire {
    pub protobuf: OnceLock<Bytes>,
}

impl CacheEvent {
    pub fn new(object: Arc<Object>, previous: Option<Arc<Object>>, deleted: bool) -> Self {
        Self { object, previous, deleted, wire: Arc::default() }
    }

    pub fn revision(&self) -> u64 {
        self.object.resource_version()
    }

    fn bytes(&self) -> usize {
        self.object.json_len()
    }
}

/// Converts stored JSON into the form in which it is held: pruned, defaulted and so on.
pub type Normalize = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, serde_json::Error> + Send + Sync>;

/// All objects of one stored resource.
pub struct Cache {
    /// The paths that field selectors may use.
    pub selectable: &'static [&'static str],
    /// Set if stored objects may need normalization before they are held.
    normalize: Option<Normalize>,
    expected: Expected,
    state: RwLock<State>,
    /// Increases with every change; indexes built on the cache compare it.
    generation: AtomicU64,
}

#[derive(Default)]
struct State {
    /// By `namespace/name`, or by name for cluster-scoped objects: the order in which storage lists.
    objects: Objects,
    /// The keys of stored objects that cannot be decoded.
    damaged: BTreeSet<Box<str>>,
    ring: VecDeque<Arc<CacheEvent>>,
    ring_bytes: usize,
    /// Watches may start after this revision or later ones.
    oldest: u64,
    /// The cache contains all changes of the whole store up to this revision.
    applied: u64,
    /// The last revision that changed this resource.
    changed: u64,
    /// The revision of the loaded objects; they include all events up to it.
    loaded: u64,
    /// The events that arrive while the first objects are still being read.
    waiting: Option<Vec<(Box<str>, Applied)>>,
    /// Whether the resource is no longer served: no watch can start.
    closed: bool,
    watchers: Watchers,
}

impl State {
    fn apply(&mut self, key: Box<str>, change: Applied) {
        // The loaded objects already include this event.
        if change.revision() <= self.loaded {
            return;
        }
        if let Applied::Unreadable { present: true, .. } = change {
            self.damaged.insert(key.clone());
        } else {
            self.damaged.remove(&key);
        }
        let previous = match &change {
            Applied::Put(object) => self.objects.insert(key, Arc::clone(object)),
            Applied::Delete(_) | Applied::Unreadable { .. } => self.objects.remove(&key),
        };
        let (object, deleted) = match change {
            Applied::Put(object) => (object, false),
            Applied::Delete(object) => (object, true),
            // For watchers, an object that becomes undecodable is deleted.
            Applied::Unreadable { revision, .. } => {
                self.changed = revision;
                self.applied = self.applied.max(revision);
                let last = previous.as_ref().and_then(|object| object.at_version(revision));
                let Some(object) = last else { return };
                (Arc::new(object), true)
            }
        };
        let event = Arc::new(CacheEvent::new(object, previous, deleted));
        self.changed = event.revision();
        // A list that is answered between this event and the end of its batch must not have a revision below the
        // event's.
        self.applied = self.applied.max(event.revision());
        self.watchers.send(&event);
        self.ring_bytes += event.bytes();
        self.ring.push_back(event);
        self.forget_views();
        while self.ring.len() > RING_EVENTS || self.ring_bytes > RING_BYTES {
            let Some(gone) = self.ring.pop_front() else { break };
            self.ring_bytes -= gone.bytes();
            self.oldest = gone.revision();
        }
    }

    /// Drops the typed views of the object that was replaced `VIEWS_KEPT` events ago. Only watches still need it, and
    /// they read its bytes; a view takes several times their size.
    fn forget_views(&self) {
        let Some(event) = self.ring.len().checked_sub(VIEWS_KEPT).and_then(|i| self.ring.get(i)) else {
            return;
        };
        if let Some(replaced) = &event.previous {
            replaced.forget_view();
        }
        if event.deleted {
            event.object.forget_view();
        }
    }
}

type Senders = Vec<mpsc::Sender<Arc<CacheEvent>>>;

/// The watchers, indexed so that an event's receivers are found without asking every watcher.
#[derive(Default)]
struct Watchers {
    all: Senders,
    /// The watchers that select one value of one field.
    by_field: BTreeMap<&'static str, BTreeMap<Box<str>, Senders>>,
    /// The number of registrations by field since the last sweep.
    since_sweep: usize,
}

/// The minimum number of registrations between two sweeps.
const SWEEP_AFTER: usize = 256;

impl Watchers {
    fn register(&mut self, selection: &Selection, sender: mpsc::Sender<Arc<CacheEvent>>) {
        let senders = match selection.indexed_field() {
            Some((path, value)) => {
                self.sweep();
                self.by_field.entry(path).or_default().entry(value.into()).or_default()
            }
            None => &mut self.all,
        };
        senders.retain(|s| !s.is_closed());
        senders.push(sender);
    }

    /// Removes closed watchers, also of values for which no more events arrive.
    fn sweep(&mut self) {
        self.since_sweep += 1;
        let held: usize = self.by_field.values().map(BTreeMap::len).sum();
        if self.since_sweep < SWEEP_AFTER.max(held) {
            return;
        }
        self.since_sweep = 0;
        for by_value in self.by_field.values_mut() {
            by_value.retain(|_, senders| {
                senders.retain(|s| !s.is_closed());
                !senders.is_empty()
            });
        }
    }

    fn send(&mut self, event: &Arc<CacheEvent>) {
        push(&mut self.all, event);
        for (path, by_value) in &mut self.by_field {
            let new = event.object.header().field(path).unwrap_or("");
            deliver(by_value, new, event);
            let old = event.previous.as_ref().and_then(|o| o.header().field(path)).unwrap_or("");
            if old != new {
                deliver(by_value, old, event);
            }
        }
        self.by_field.retain(|_, by_value| !by_value.is_empty());
    }
}

fn deliver(by_value: &mut BTreeMap<Box<str>, Senders>, value: &str, event: &Arc<CacheEvent>) {
    if let Some(senders) = by_value.get_mut(value) {
        push(senders, event);
        if senders.is_empty() {
            by_value.remove(value);
        }
    }
}

/// Sends the event to each watcher. A watcher that is closed or cannot keep up is dropped, which ends its watch.
fn push(senders: &mut Senders, event: &Arc<CacheEvent>) {
    senders.retain(|s| s.try_send(Arc::clone(event)).is_ok());
}

/// The result of a list.
pub struct Snapshot {
    pub items: Vec<Arc<Object>>,
    pub revision: u64,
    /// The number of objects that were compared with the selection.
    pub looked_at: u64,
}

/// The start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the current state as `ADDED` events.
    State,
    /// With the events from now on.
    Now,
    /// With the events after this revision.
    After(u64),
}

/// The requested revision is older than the oldest kept event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld {
    pub oldest: u64,
}

impl Cache {
    fn new(selectable: &'static [&'static str], normalize: Option<Normalize>) -> Self {
        Self {
            selectable,
            normalize,
            expected: Expected::default(),
            state: RwLock::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// Creates a cache that is filled while the store is already being followed.
    fn loading(selectable: &'static [&'static str], normalize: Option<Normalize>) -> Self {
        let state = State { waiting: Some(Vec::new()), ..State::default() };
        Self { state: RwLock::new(state), ..Self::new(selectable, normalize) }
    }

    /// Announces an object that is about to be written, so that its event need not be parsed.
    pub fn expect(&self, object: &Arc<Object>) {
        if self.normalize.is_none() {
            self.expected.add(Arc::clone(object));
        }
    }

    /// Forgets an announced object whose write failed.
    pub fn give_up(&self, stored: &Bytes) {
        self.expected.take(stored);
    }

    /// Returns the object of an event: the announced object of these bytes, or the decoded bytes.
    fn arrived(&self, key: &str, stored: &Bytes, revision: u64) -> Result<Object, serde_json::Error> {
        let known = self.expected.take(stored).or_else(|| self.get(key).filter(|o| o.shares(stored)));
        match known.and_then(|object| object.at_version(revision)) {
            Some(object) => Ok(object),
            None => self.decode(stored, revision),
        }
    }

    /// Decodes stored JSON into an object as it is held.
    pub fn decode(&self, stored: &Bytes, revision: u64) -> Result<Object, serde_json::Error> {
        match &self.normalize {
            Some(normalize) => Object::from_stored(normalize(stored)?.into(), revision, self.selectable),
            None => Object::from_stored(stored.clone(), revision, self.selectable),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes with the content.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the object of the key `namespace/name` or `name`, as far as the cache knows.
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.read().objects.get(key).cloned()
    }

    /// Returns all objects of a namespace, or of all namespaces, in key order.
    pub fn list(&self, namespace: Option<&str>) -> Vec<Arc<Object>> {
        in_namespace(&self.read().objects, namespace).map(|(_, o)| Arc::clone(o)).collect()
    }

    /// Drops the typed views that were not used since the previous call.
    fn rest(&self) {
        self.expected.clear();
        self.read().objects.values().for_each(|object| object.rest());
    }

    /// Returns whether the first objects are still being read.
    fn is_loading(&self) -> bool {
        self.read().waiting.is_some()
    }

    /// Returns the number of objects, their average size, and the number of watchers without an indexed field.
    pub fn load(&self) -> (u64, u64, u64) {
        const SAMPLE: usize = 16;
        let state = self.read();
        let sampled: Vec<u64> = state.objects.values().take(SAMPLE).map(|o| o.json_len() as u64).collect();
        let average = sampled.iter().sum::<u64>().checked_div(sampled.len() as u64).unwrap_or(0);
        (state.objects.len() as u64, average, state.watchers.all.len() as u64)
    }

    /// Returns the selected objects at one revision; with `after`, only those whose key follows it.
    pub fn snapshot(&self, namespace: Option<&str>, selection: &Selection, after: Option<&str>) -> Snapshot {
        let state = self.read();
        let mut looked_at = 0;
        let items = in_namespace(&state.objects, namespace)
            .filter(|(key, _)| after.is_none_or(|after| ***key > *after))
            .inspect(|_| looked_at += 1)
            .filter(|(_, o)| selection.matches(o))
            .map(|(_, o)| Arc::clone(o))
            .collect();
        Snapshot { items, revision: state.applied, looked_at }
    }

    /// Returns whether the content has not changed since `revision`.
    pub fn unchanged_since(&self, revision: u64) -> bool {
        let state = self.read();
        state.changed <= revision && revision <= state.applied
    }

    /// Starts a watch. No event is skipped or repeated between the initial events and the later ones.
    pub fn watch(
        &self,
        namespace: Option<&str>,
        selection: Selection,
        from: WatchFrom,
    ) -> Result<Watcher, TooOld> {
        self.watch_with(namespace, selection, from, None)
    }

    /// Starts a watch with events that the cache no longer keeps: those after `asked` up to `through`. The history
    /// may be ahead of the cache; events up to `through` that the cache applies later are not repeated.
    pub fn resume(
        &self,
        namespace: Option<&str>,
        selection: Selection,
        asked: u64,
        through: u64,
        history: Vec<Arc<CacheEvent>>,
    ) -> Result<Watcher, TooOld> {
        self.watch_with(namespace, selection, WatchFrom::After(through), Some((asked, history)))
    }

    /// Starts a watch while no event can be applied. `live_after` is the revision at which the replay ends and after
    /// which the live events begin.
    fn watch_with(
        &self,
        namespace: Option<&str>,
        selection: Selection,
        from: WatchFrom,
        history: Option<(u64, Vec<Arc<CacheEvent>>)>,
    ) -> Result<Watcher, TooOld> {
        let mut state = self.write();
        let live_after = match from {
            WatchFrom::After(revision) if revision < state.oldest => {
                return Err(TooOld { oldest: state.oldest });
            }
            WatchFrom::After(revision) => revision.max(state.applied),
            WatchFrom::State | WatchFrom::Now => state.applied,
        };
        let mut start = Start { began_at: live_after, live_after, ..Start::default() };
        match from {
            WatchFrom::Now => {}
            WatchFrom::State => {
                let all = in_namespace(&state.objects, namespace).filter(|(_, o)| selection.matches(o));
                start.state.extend(all.map(|(_, o)| Arc::clone(o)));
            }
            WatchFrom::After(revision) => {
                let (asked, history) = history.unwrap_or((revision, Vec::new()));
                start.began_at = asked;
                start.replay.extend(history);
                let first = state.ring.partition_point(|e| e.revision() <= revision);
                start.replay.extend(state.ring.range(first..).cloned());
            }
        }
        let (sender, receiver) = mpsc::channel(WATCHER_BUFFER);
        // Without its sender, the watch ends after the initial events.
        if !state.closed {
            state.watchers.register(&selection, sender);
        }
        Ok(Watcher::new(namespace, selection, start, receiver))
    }

    /// Returns the keys of stored objects that cannot be decoded, of a namespace or of all.
    pub fn damaged(&self, namespace: Option<&str>) -> Vec<String> {
        damaged::within(&self.read().damaged, namespace).map(str::to_owned).collect()
    }

    /// Replaces all content and ends all watches: for the first load, and after the feed lost its position.
    fn reset(&self, loaded: Loaded, revision: u64) {
        let mut state = self.write();
        *state = State {
            objects: loaded.objects,
            damaged: loaded.damaged,
            oldest: revision,
            applied: revision,
            changed: revision,
            loaded: revision,
            closed: state.closed,
            ..State::default()
        };
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the loading: sets these objects as of `revision`, and applies the events received since.
    fn finish_loading(&self, loaded: Loaded, revision: u64) {
        let mut state = self.write();
        // The feed has reloaded everything meanwhile, or the cache was closed: the loaded objects are outdated.
        let Some(waiting) = state.waiting.take() else { return };
        state.objects = loaded.objects;
        state.damaged = loaded.damaged;
        (state.oldest, state.changed, state.loaded) = (revision, revision, revision);
        let applied = std::mem::replace(&mut state.applied, revision).max(revision);
        // No newer event can arrive in between: the lock is held throughout.
        for (key, change) in waiting {
            state.apply(key, change);
        }
        state.applied = state.applied.max(applied);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends all watches, and refuses new ones.
    fn close(&self) {
        let mut state = self.write();
        state.closed = true;
        state.waiting = None;
        state.watchers = Watchers::default();
    }

    /// Applies all changes of one revision. No list or watch sees only a part of them, because both read up to a
    /// revision.
    fn apply(&self, changes: Vec<(Box<str>, Applied)>) {
        let mut state = self.write();
        if let Some(waiting) = &mut state.waiting {
            waiting.extend(changes);
            return;
        }
        for (key, change) in changes {
            state.apply(key, change);
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn set_applied(&self, revision: u64) {
        let mut state = self.write();
        state.applied = state.applied.max(revision);
    }
}

enum Applied {
    Put(Arc<Object>),
    /// The last state, with the deletion's resourceVersion.
    Delete(Arc<Object>),
    /// The stored object cannot be decoded, or the deleted one could not be.
    Unreadable {
        revision: u64,
        present: bool,
    },
}

impl Applied {
    fn revision(&self) -> u64 {
        match self {
            Self::Put(object) | Self::Delete(object) => object.resource_version(),
            Self::Unreadable { revision, .. } => *revision,
        }
    }
}

fn in_namespace<'a>(
    objects: &'a BTreeMap<Box<str>, Arc<Object>>,
    namespace: Option<&str>,
) -> impl Iterator<Item = (&'a Box<str>, &'a Arc<Object>)> {
    let prefix = namespace.filter(|ns| !ns.is_empty()).map(|ns| format!("{ns}/")).unwrap_or_default();
    objects
        .range::<str, _>((std::ops::Bound::Included(prefix.as_str()), std::ops::Bound::Unbounded))
        .take_while({
            let prefix = prefix.clone();
            move |(key, _)| key.starts_with(prefix.as_str())
        })
}

/// For tests of code that reads a cache, here and in other crates: changes without a store.
#[cfg(any(test, feature = "scripted"))]
impl Cache {
    pub fn scripted() -> Self {
        let cache = Self::new(&[], None);
        cache.reset(Loaded::default(), 1);
        cache
    }

    pub fn put(&self, key: &str, object: &serde_json::Value, revision: u64) {
        let object = self.decode(&object.to_string().into(), revision).expect("a valid object");
        self.apply(vec![(key.into(), Applied::Put(Arc::new(object)))]);
    }

    pub fn delete(&self, key: &str, revision: u64) {
        let last =
            self.get(key).and_then(|object| object.at_version(revision)).expect("an object that is there");
        self.apply(vec![(key.into(), Applied::Delete(Arc::new(last)))]);
    }

    /// Simulates a lost watch of the store: everything is reloaded, and all watches end.
    pub fn load_again(&self) {
        let (loaded, applied) = {
            let state = self.read();
            let loaded = Loaded { objects: state.objects.clone(), damaged: state.damaged.clone() };
            (loaded, state.applied)
        };
        self.reset(loaded, applied);
    }
}

#[cfg(test)]
mod tests;
