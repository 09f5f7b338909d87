//! Tests the reflector against a server with scripted answers.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::kind::Kind;
use knarr_apimachinery::status::StatusError;

use super::*;
use crate::client::Client;
use crate::clock::TokioClock;
use crate::informer::Informers;
use crate::transport::{List, WatchStream};

/// The answer of the server to the next request.
enum Answer {
    /// A list at this version, with objects by name and version.
    List(u64, &'static [(&'static str, u64)]),
    /// A watch that sends these events and ends.
    Watch(Vec<Result<WatchEvent>>),
    /// A watch that stays open for this long without events.
    Quiet(Duration),
    Refuse(Error),
}

/// A server that records the lists and watches it gets. At the end of its script it no longer answers.
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<String>>,
    done: Notify,
    clock: TokioClock,
}

impl Script {
    async fn next(&self, verb: &str, options: &ListOptions) -> Answer {
        let version = options.resource_version.as_deref().unwrap_or("current");
        self.asked.lock().unwrap().push(format!("{verb} {version}"));
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None => {
                self.done.notify_one();
                std::future::pending().await
            }
        }
    }
}

#[async_trait]
impl Transport for Script {
    async fn send(&self, _: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        Err(Error::Protocol("informers only list and watch".into()))
    }

    async fn list(&self, _: &ResourceType, _: Option<&str>, options: &ListOptions) -> Result<List> {
        match self.next("list", options).await {
            Answer::List(version, objects) => Ok(List {
                items: objects.iter().map(|(name, version)| object(name, *version)).collect(),
                resource_version: version.to_string(),
                continue_token: None,
            }),
            Answer::Refuse(error) => Err(error),
            _ => Err(Error::Protocol("the script has no list here".into())),
        }
    }

    async fn watch(&self, _: &ResourceType, _: Option<&str>, options: &ListOptions) -> Result<WatchStream> {
        assert!(options.allow_bookmarks, "without bookmarks a quiet watch cannot be resumed");
        match self.next("watch", options).await {
            Answer::Watch(events) => Ok(Box::pin(stream::iter(events))),
            Answer::Quiet(time) => {
                let over = self.clock.sleep(time);
                Ok(Box::pin(stream::once(over).filter_map(|()| async { None })))
            }
            Answer::Refuse(error) => Err(error),
            Answer::List(..) => Err(Error::Protocol("the script has no watch here".into())),
        }
    }
}

fn object(name: &str, version: u64) -> Arc<Object> {
    let json = format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}}}}"#);
    Arc::new(Object::new(Bytes::from(json), &[]).unwrap())
}

fn added(name: &str, version: u64) -> Result<WatchEvent> {
    Ok(WatchEvent::Added(object(name, version)))
}

fn lost() -> Error {
    Error::Connection { server: "test".into(), source: "connection reset".into() }
}

/// Runs a reflector to the end of the script. Returns its requests, the contents of its store, and how long it took.
async fn run(answers: Vec<Answer>) -> (Vec<String>, Vec<String>, Duration) {
    let clock = TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let script = Arc::new(Script {
        answers: Mutex::new(answers.into()),
        asked: Mutex::default(),
        done: Notify::new(),
        clock,
    });
    let reflector = Arc::new(Reflector::new(
        ConfigMap::RESOURCE,
        ListOptions::default(),
        Arc::clone(&script) as _,
        Arc::new(clock),
    ));
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (reflector, stop) = (Arc::clone(&reflector), stop.clone());
        async move { reflector.run(stop).await }
    });
    script.done.notified().await;
    let took = clock.monotonic();
    stop.cancel();
    running.await.unwrap();
    let asked = script.asked.lock().unwrap().clone();
    let held = reflector.store().list(None).iter().map(|o| o.key().name.to_string()).collect();
    (asked, held, took)
}

const FIRST: Answer = Answer::List(10, &[("a", 4)]);

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_is_resumed_where_it_was() {
    let events = vec![added("b", 12), Ok(WatchEvent::Bookmark("15".into())), Err(lost())];
    let (asked, held, took) =
        run(vec![FIRST, Answer::Watch(events), Answer::Watch(vec![added("c", 17)])]).await;
    assert_eq!(asked, ["list 0", "watch 10", "watch 15", "watch 17"]);
    assert_eq!(held, ["a", "b", "c"]);
    assert_eq!(took, Duration::ZERO, "a watch that brought something is followed by the next at once");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_is_asked_less_and_less_often_and_not_to_list() {
    let refused = || Answer::Refuse(lost());
    let busy = Answer::Refuse(Error::Status(StatusError::unavailable("starting")));
    let (asked, held, took) = run(vec![FIRST, refused(), refused(), busy, Answer::Watch(Vec::new())]).await;
    assert_eq!(asked, ["list 0", "watch 10", "watch 10", "watch 10", "watch 10", "watch 10"]);
    assert_eq!(held, ["a"]);
    // 0.8 + 1.6 + 3.2 + 6.4 seconds, plus jitter of up to the same length; the last delay follows a watch that ended at
    // once.
    assert!(took >= Duration::from_secs(12) && took < Duration::from_secs(24), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_server_has_forgotten_is_listed_anew() {
    let expired = || Error::Status(StatusError::expired("too old resource version: 10 (20)"));
    let plain = || Error::Status(StatusError::new(410, "", "gone"));
    let second = || Answer::List(30, &[("b", 25)]);
    for (what, answer) in [
        ("the answer", Answer::Refuse(expired())),
        ("an ERROR event", Answer::Watch(vec![added("x", 11), Err(expired())])),
        ("an answer without a Status", Answer::Refuse(plain())),
        ("the resource is gone", Answer::Refuse(Error::Status(StatusError::path_not_found()))),
        ("unreadable", Answer::Watch(vec![Err(Error::Protocol("watch event: not JSON".into()))])),
    ] {
        let (asked, held, _) = run(vec![FIRST, answer, second()]).await;
        assert_eq!(asked, ["list 0", "watch 10", "list current", "watch 30"], "{what}");
        assert_eq!(held, ["b"], "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_failures_in_a_watch_are_no_reason_to_list() {
    let failed = Err(Error::Status(StatusError::new(500, "InternalError", "etcd lost its leader")));
    let (asked, held, _) = run(vec![FIRST, Answer::Watch(vec![added("b", 11), failed])]).await;
    assert_eq!(asked, ["list 0", "watch 10", "watch 11"]);
    assert_eq!(held, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_that_the_server_ends_is_resumed_at_once() {
    let (asked, _, took) = run(vec![FIRST, Answer::Quiet(Duration::from_secs(400))]).await;
    assert_eq!(asked, ["list 0", "watch 10", "watch 10"]);
    assert_eq!(took, Duration::from_secs(400));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_only_repeats_itself_is_not_asked_for_in_a_tight_loop() {
    let again = || Answer::Watch(vec![added("a", 9), Ok(WatchEvent::Bookmark("10".into()))]);
    let (asked, _, took) = run(vec![FIRST, again(), again()]).await;
    assert_eq!(asked, ["list 0", "watch 10", "watch 10", "watch 10"]);
    assert!(took >= Duration::from_millis(2400), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_misses_one_change_and_no_other_handler_does() {
    let clock = TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let answers = vec![FIRST, Answer::Watch(vec![added("bad", 11), added("good", 12)])];
    let script = Arc::new(Script {
        answers: Mutex::new(answers.into()),
        asked: Mutex::default(),
        done: Notify::new(),
        clock,
    });
    let (transport, clock) = (Arc::clone(&script) as _, Arc::new(clock));
    let reflector = Reflector::new(ConfigMap::RESOURCE, ListOptions::default(), transport, clock);
    let seen = [Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new()))];
    for (seen, panics) in seen.iter().zip([true, false]) {
        let seen = Arc::clone(seen);
        let handler: Handler = Arc::new(move |change| {
            let Change::Added(object) = change else { return };
            assert!(!panics || &*object.key().name != "bad", "a fault in the handler");
            seen.lock().unwrap().push(object.key().name.to_string());
        });
        reflector.add_handler(&CancellationToken::new(), handler);
    }
    tokio::select! {
        () = reflector.run(CancellationToken::new()) => {}
        () = script.done.notified() => {}
    }
    assert_eq!(*seen[0].lock().unwrap(), ["a", "good"]);
    assert_eq!(*seen[1].lock().unwrap(), ["a", "bad", "good"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_the_first_list_ends_the_wait_for_it() {
    let clock = TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
    let silent = || Script { answers: Mutex::default(), asked: Mutex::default(), done: Notify::new(), clock };
    let (stop, part) = (CancellationToken::new(), CancellationToken::new());
    let client = Client::new(Arc::new(silent()), Arc::new(clock), "test");
    let informers = Informers::new(client, stop.clone());
    let informer = informers.informer::<ConfigMap>();
    let of_part = informers.until(part.clone()).informer::<ConfigMap>();
    let untyped = informers.untyped(ConfigMap::RESOURCE, ListOptions::default());
    let waits = tokio::spawn(async move { informer.wait_synced().await });
    let part_waits = tokio::spawn(async move { of_part.wait_synced().await });
    let untyped_waits = tokio::spawn(async move { untyped.wait_synced().await });
    clock.sleep(Duration::from_secs(60)).await;
    assert!(!waits.is_finished() && !part_waits.is_finished() && !untyped_waits.is_finished());
    part.cancel();
    assert!(!part_waits.await.unwrap());
    assert!(!waits.is_finished());
    stop.cancel();
    assert!(!waits.await.unwrap());
    assert!(!untyped_waits.await.unwrap());
    assert!(!informers.wait_synced().await);
}
