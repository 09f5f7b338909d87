//! Tests of the cache with scripted changes: selectors, start revisions, limits.

use std::sync::{Mutex, Weak};

use knarr_storage::{Event, EventKind, KeyValue};

use super::*;

fn object(name: &str, labels: &str, revision: u64) -> Arc<Object> {
    let json = format!(
        "{{\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"ns\",\"labels\":{{{labels}}}}},\"spec\":{{}}}}"
    );
    Arc::new(Object::from_stored(json.into_bytes().into(), revision, &[]).unwrap())
}

fn cache() -> Cache {
    let cache = Cache::new(&[], None);
    cache.reset(Loaded::default(), 10);
    cache
}

fn pods() -> knarr_api::resource_ref::ResourceRef {
    knarr_api::resources::find("", "pods").unwrap().into()
}

fn labelled(text: &str) -> Selection {
    let labels = knarr_apimachinery::selector::Selector::parse(text).unwrap();
    Selection { labels, ..Selection::everything(pods()) }
}

fn apply(cache: &Cache, key: &str, change: Applied) {
    cache.apply(vec![(key.into(), change)]);
}

fn put(cache: &Cache, name: &str, labels: &str, revision: u64) {
    apply(cache, &format!("ns/{name}"), Applied::Put(object(name, labels, revision)));
}

fn show(change: &Change) -> String {
    let sign = match change.kind {
        Kind::Added => '+',
        Kind::Modified => '~',
        Kind::Deleted => '-',
    };
    format!("{sign}{}@{}", change.object.name(), change.object.resource_version())
}

fn drain(watcher: &mut Watcher) -> Vec<String> {
    std::iter::from_fn(|| watcher.try_next()).map(|c| show(&c)).collect()
}

#[test]
fn selectors_turn_changes_into_coming_and_going() {
    let cache = cache();
    let mut watcher = cache.watch(None, labelled("a=1"), WatchFrom::Now).ok().unwrap();
    put(&cache, "x", "\"a\":\"1\"", 11);
    put(&cache, "x", "\"a\":\"1\",\"b\":\"2\"", 12);
    put(&cache, "y", "\"a\":\"2\"", 13);
    put(&cache, "x", "\"a\":\"2\"", 14);
    put(&cache, "x", "\"a\":\"1\"", 15);
    apply(&cache, "ns/x", Applied::Delete(object("x", "\"a\":\"1\"", 16)));
    apply(&cache, "ns/y", Applied::Delete(object("y", "\"a\":\"2\"", 17)));
    assert_eq!(drain(&mut watcher), ["+x@11", "~x@12", "-x@14", "+x@15", "-x@16"]);
}

#[test]
fn what_left_the_selection_is_shown_as_it_was() {
    let cache = cache();
    let mut watcher = cache.watch(None, labelled("a=1"), WatchFrom::Now).ok().unwrap();
    put(&cache, "x", "\"a\":\"1\"", 11);
    put(&cache, "x", "\"a\":\"2\"", 12);
    watcher.try_next();
    let Some(Change { kind: Kind::Deleted, object: gone, .. }) = watcher.try_next() else {
        panic!("not deleted")
    };
    assert_eq!(gone.header().label("a"), Some("1"));
    assert_eq!(gone.resource_version(), 12);
}

#[test]
fn watches_start_anywhere_and_never_skip_or_repeat() {
    let cache = cache();
    put(&cache, "a", "", 11);
    put(&cache, "b", "", 12);
    let everything = || Selection::everything(pods());
    let mut from_11 = cache.watch(None, everything(), WatchFrom::After(11)).ok().unwrap();
    let mut from_state = cache.watch(None, everything(), WatchFrom::State).ok().unwrap();
    let mut ahead = cache.watch(None, everything(), WatchFrom::After(13)).ok().unwrap();
    put(&cache, "c", "", 13);
    put(&cache, "a", "", 14);
    assert_eq!(drain(&mut from_11), ["+b@12", "+c@13", "~a@14"]);
    assert_eq!(drain(&mut from_state), ["+a@11", "+b@12", "+c@13", "~a@14"]);
    assert_eq!(drain(&mut ahead), ["~a@14"]);
    assert_eq!(cache.watch(None, everything(), WatchFrom::After(9)).err(), Some(TooOld { oldest: 10 }));
}

#[test]
fn namespaces_and_names_are_kept_apart() {
    let cache = cache();
    let by_name = Selection {
        fields: knarr_apimachinery::selector::FieldSelector::equals("metadata.name", "b"),
        ..Selection::everything(pods())
    };
    let mut named = cache.watch(Some("ns"), by_name, WatchFrom::Now).ok().unwrap();
    let mut elsewhere = cache.watch(Some("n"), Selection::everything(pods()), WatchFrom::Now).ok().unwrap();
    put(&cache, "a", "", 11);
    put(&cache, "b", "", 12);
    assert_eq!(drain(&mut named), ["+b@12"]);
    assert!(drain(&mut elsewhere).is_empty());
    assert_eq!(cache.snapshot(Some("ns"), &Selection::everything(pods()), None).items.len(), 2);
    assert!(cache.snapshot(Some("n"), &Selection::everything(pods()), None).items.is_empty());
    let after = cache.snapshot(Some("ns"), &Selection::everything(pods()), Some("ns/a"));
    assert_eq!((after.items.len(), after.revision), (1, 12));
}

#[test]
fn the_ring_forgets_and_slow_watchers_end() {
    let cache = cache();
    let mut slow = cache.watch(None, Selection::everything(pods()), WatchFrom::Now).ok().unwrap();
    for i in 0..(RING_EVENTS as u64 + 5) {
        put(&cache, "a", "", 11 + i);
    }
    let refused = cache.watch(None, Selection::everything(pods()), WatchFrom::After(11)).err();
    assert_eq!(refused, Some(TooOld { oldest: 15 }));
    assert_eq!(drain(&mut slow).len(), WATCHER_BUFFER);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(slow.next()).is_none());
}

#[test]
fn what_comes_while_loading_is_neither_lost_nor_told_twice() {
    let cache = Cache::loading(&[], None);
    put(&cache, "a", "", 11);
    put(&cache, "b", "", 14);
    cache.set_applied(14);
    // The load happened at 12: it contains `a`, but not yet `b`.
    let objects = BTreeMap::from([("ns/a".into(), object("a", "", 11))]);
    cache.finish_loading(Loaded { objects, ..Loaded::default() }, 12);
    put(&cache, "a", "", 11);
    put(&cache, "c", "", 15);
    let everything = || Selection::everything(pods());
    let names = |s: &Snapshot| s.items.iter().map(|o| o.name().to_owned()).collect::<Vec<_>>();
    let snapshot = cache.snapshot(None, &everything(), None);
    assert_eq!((names(&snapshot), snapshot.revision), (vec!["a".into(), "b".into(), "c".into()], 15));
    let mut after = cache.watch(None, everything(), WatchFrom::After(12)).ok().unwrap();
    assert_eq!(drain(&mut after), ["+b@14", "+c@15"]);
    assert_eq!(cache.watch(None, everything(), WatchFrom::After(11)).err(), Some(TooOld { oldest: 12 }));
}

#[test]
fn a_closed_cache_ends_its_watches() {
    let cache = cache();
    let mut running = cache.watch(None, Selection::everything(pods()), WatchFrom::Now).ok().unwrap();
    put(&cache, "a", "", 11);
    cache.close();
    let mut late = cache.watch(None, Selection::everything(pods()), WatchFrom::State).ok().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        assert_eq!(running.next().await.map(|c| show(&c)).as_deref(), Some("+a@11"));
        assert!(running.next().await.is_none());
        assert_eq!(late.next().await.map(|c| show(&c)).as_deref(), Some("+a@11"));
        assert!(late.next().await.is_none());
    });
}

#[test]
fn watches_resume_from_older_history_without_a_seam() {
    let cache = cache();
    put(&cache, "a", "", 11);
    put(&cache, "b", "", 12);
    // The store returns older events, and some that the cache still keeps.
    let event = |name: &str, revision| Arc::new(CacheEvent::new(object(name, "", revision), None, false));
    let history = vec![event("x", 7), event("y", 9), event("a", 11)];
    let mut watcher = cache.resume(None, Selection::everything(pods()), 6, 11, history).ok().unwrap();
    put(&cache, "c", "", 13);
    assert_eq!(drain(&mut watcher), ["+x@7", "+y@9", "+a@11", "+b@12", "+c@13"]);
}

#[test]
fn a_history_that_reaches_further_than_the_cache_is_not_repeated() {
    let cache = cache();
    put(&cache, "a", "", 11);
    let event = |name: &str, revision| Arc::new(CacheEvent::new(object(name, "", revision), None, false));
    let history = vec![event("x", 7), event("a", 11), event("b", 12), event("c", 13)];
    let mut watcher = cache.resume(None, Selection::everything(pods()), 6, 13, history).ok().unwrap();
    // The cache now receives what the history already contained.
    put(&cache, "b", "", 12);
    put(&cache, "c", "", 13);
    put(&cache, "d", "", 14);
    assert_eq!(drain(&mut watcher), ["+x@7", "+a@11", "+b@12", "+c@13", "+d@14"]);
}

#[test]
fn a_bookmark_is_not_true_of_a_watch_that_was_ended() {
    let cache = cache();
    let mut watcher = cache.watch(None, Selection::everything(pods()), WatchFrom::Now).ok().unwrap();
    put(&cache, "a", "", 11);
    drain(&mut watcher);
    assert_eq!(watcher.bookmark(15), Some(15));
    assert_eq!(watcher.bookmark(10), Some(11), "never behind what was handed out");
    for i in 0..=WATCHER_BUFFER as u64 {
        put(&cache, "a", "", 12 + i);
    }
    assert_eq!(drain(&mut watcher).len(), WATCHER_BUFFER);
    assert_eq!(watcher.bookmark(12 + WATCHER_BUFFER as u64), None, "the last event is missing");
}

/// Returns an event as the store sends it.
fn event(name: &str, revision: u64, deleted: bool) -> Event {
    let kv = KeyValue {
        key: format!("/registry/core/pods/ns/{name}").into(),
        value: object(name, "", revision).json(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: None,
    };
    let (kind, prev) = match deleted {
        true => (EventKind::Delete, Some(kv.clone())),
        false => (EventKind::Put, None),
    };
    Event { kind, kv, prev }
}

#[test]
fn a_revision_is_applied_whole() {
    // Takes a snapshot each time an object is decoded.
    let views = Arc::new(Mutex::new(Vec::new()));
    let cache = Arc::new_cyclic(|cache: &Weak<Cache>| {
        let (cache, views) = (Weak::clone(cache), Arc::clone(&views));
        let look = move |stored: &[u8]| {
            let snapshot = cache.upgrade().unwrap().snapshot(None, &Selection::everything(pods()), None);
            views.lock().unwrap().push((snapshot.revision, snapshot.items.len()));
            Ok(stored.to_vec())
        };
        Cache::new(&[], Some(Arc::new(look)))
    });
    let by_name = BTreeMap::from([("core/pods".to_owned(), vec![Arc::clone(&cache)])]);
    feed::apply(&by_name, &[event("a", 11, false), event("b", 11, false)]);
    // When a lease expires, several objects are deleted in one revision.
    feed::apply(&by_name, &[event("a", 12, true), event("b", 12, true)]);
    let mut late = cache.watch(None, Selection::everything(pods()), WatchFrom::State).ok().unwrap();
    assert_eq!(*views.lock().unwrap(), [(0, 0), (0, 0), (11, 2), (11, 2)]);
    assert!(drain(&mut late).is_empty());
}

#[test]
fn replaced_objects_lose_their_typed_view_after_a_while() {
    use k8s_openapi::api::core::v1::Pod;
    let cache = cache();
    let first = object("a", "", 11);
    let view = first.typed::<Pod>().unwrap();
    apply(&cache, "ns/a", Applied::Put(Arc::clone(&first)));
    for i in 0..VIEWS_KEPT as u64 {
        assert!(Arc::ptr_eq(&view, &first.typed::<Pod>().unwrap()));
        put(&cache, "a", "", 12 + i);
    }
    put(&cache, "a", "", 20_000);
    assert!(!Arc::ptr_eq(&view, &first.typed::<Pod>().unwrap()), "decoded anew");
}

#[test]
fn what_cannot_be_read_is_set_aside_until_it_is_replaced_or_deleted() {
    let cache = Arc::new(cache());
    let by_name = BTreeMap::from([("core/pods".to_owned(), vec![Arc::clone(&cache)])]);
    let mut watcher = cache.watch(None, Selection::everything(pods()), WatchFrom::Now).ok().unwrap();
    let damaged = |revision| {
        let mut event = event("a", revision, false);
        event.kv.value = "{\"metadata\":".into();
        event
    };
    feed::apply(&by_name, &[event("a", 11, false)]);
    feed::apply(&by_name, &[damaged(12), event("b", 12, false)]);
    assert_eq!(cache.damaged(Some("ns")), ["ns/a"]);
    assert!(cache.get("ns/a").is_none() && cache.get("ns/b").is_some());
    feed::apply(&by_name, &[event("a", 13, false)]);
    assert!(cache.damaged(None).is_empty());
    feed::apply(&by_name, &[damaged(14)]);
    let gone = Event { kind: EventKind::Delete, prev: Some(damaged(14).kv), ..event("a", 15, true) };
    feed::apply(&by_name, &[gone]);
    assert!(cache.damaged(None).is_empty());
    assert_eq!(drain(&mut watcher), ["+a@11", "-a@12", "+b@12", "+a@13", "-a@14"]);
}
