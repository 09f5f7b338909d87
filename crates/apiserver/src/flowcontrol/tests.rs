//! Tests of requests that wait, are rejected, time out, and release seats to others.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use knarr_client::clock::SystemClock;
use knarr_storage::{Embedded, Options};
use tokio_util::sync::CancellationToken;

use super::*;
use knarr_wire::query::Query;

async fn fairness(seats: u64, patience: Duration) -> Arc<Fairness> {
    let (store, clock) = (Arc::new(Embedded::memory(Options::default())), Arc::new(SystemClock));
    let supervisor = knarr_client::Supervisor::new(Arc::clone(&clock) as _);
    let started = Caches::start(store, Arc::clone(&clock) as _, [], &supervisor, CancellationToken::new());
    let caches = started.await.unwrap();
    Arc::new(Fairness::new(seats, patience, caches, clock, Arc::default()))
}

/// Sends all requests except those of system:masters to one level with one queue.
fn queue_everybody(fairness: &Fairness) {
    let mut levels = defaults::levels();
    levels.retain(|l| matches!(l["metadata"]["name"].as_str(), Some("exempt" | "global-default")));
    levels[1]["spec"]["limited"]["limitResponse"]["queuing"] =
        serde_json::json!({"queues": 1, "handSize": 1, "queueLengthLimit": 2});
    let typed = |v| Arc::new(serde_json::from_value(v).unwrap());
    let levels: Vec<_> = levels.into_iter().map(typed).collect();
    let schemas: Vec<_> =
        defaults::schemas().into_iter().map(|v| Arc::new(serde_json::from_value(v).unwrap())).collect();
    let mut state = fairness.lock();
    state.levels.digest(&levels, &schemas, Duration::ZERO);
    state.levels.levels.retain(|name, _| name != "catch-all");
    let level = state.levels.levels.get_mut("global-default").unwrap();
    level.queues.configure(queue_set::Queuing::Queues { queues: 1, hand: 1, length: 2 }, 1, Duration::ZERO);
}

fn request() -> (RequestInfo, Query) {
    let query = Query::parse("");
    (RequestInfo::parse(&Method::GET, "/api/v1/namespaces/a/pods/p", &query), query)
}

async fn ask(fairness: &Arc<Fairness>, user: &UserInfo) -> Result<Seat, Refused> {
    let (info, query) = request();
    fairness.admit(user, &info, &query, None).await
}

#[tokio::test]
async fn without_queues_the_server_turns_away_and_masters_pass() {
    let fairness = fairness(1, Duration::from_millis(10)).await;
    let (ann, admin) = (UserInfo::new("ann", &[]), UserInfo::new("admin", &["system:masters"]));
    let seat = ask(&fairness, &ann).await.ok().unwrap();
    assert_eq!((seat.classified.schema.as_str(), seat.classified.level.as_str()), ("catch-all", "catch-all"));
    let refused = ask(&fairness, &ann).await.err().unwrap();
    assert_eq!(refused.retry_after_seconds, 1);
    let exempt = ask(&fairness, &admin).await.ok().unwrap();
    assert_eq!(exempt.classified.level, "exempt");
    drop(seat);
    drop(ask(&fairness, &ann).await.ok().unwrap());
    let labels = ["catch-all", "catch-all", "concurrency-limit"];
    assert_eq!(fairness.metrics.value(Metric::FairnessRejected, &labels), 1.0);
    assert_eq!(fairness.metrics.value(Metric::FairnessExecuting, &["catch-all", "catch-all"]), 0.0);
}

#[tokio::test]
async fn requests_wait_for_their_turn_and_give_up_in_the_end() {
    let fairness = fairness(1, Duration::from_millis(80)).await;
    queue_everybody(&fairness);
    let ann = UserInfo::new("ann", &[]);
    let first = ask(&fairness, &ann).await.ok().unwrap();
    let waiting = {
        let (fairness, ann) = (Arc::clone(&fairness), ann.clone());
        tokio::spawn(async move { ask(&fairness, &ann).await.map(|s| s.queued).ok() })
    };
    while fairness.lock().levels.levels["global-default"].queues.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let dump = fairness.dump("dump_requests", true).unwrap();
    assert_eq!(dump.lines().count(), 3, "{dump}");
    assert!(fairness.dump("dump_queues", false).unwrap().contains("global-default"));
    drop(first);
    assert!(waiting.await.unwrap().is_some());
    let held = ask(&fairness, &ann).await.ok().unwrap();
    let refused = ask(&fairness, &ann).await.err().unwrap();
    assert_eq!(refused.classified.schema, "global-default");
    let labels = ["global-default", "global-default", "time-out"];
    assert_eq!(fairness.metrics.value(Metric::FairnessRejected, &labels), 1.0);
    drop(held);
    assert!(fairness.lock().levels.levels["global-default"].queues.is_idle());
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_seat() {
    let fairness = fairness(1, Duration::from_secs(60)).await;
    queue_everybody(&fairness);
    let ann = UserInfo::new("ann", &[]);
    let first = ask(&fairness, &ann).await.ok().unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(20), ask(&fairness, &ann)).await;
    assert!(waiting.is_err());
    let text = fairness.dump("dump_priority_levels", false).unwrap();
    let line = text.lines().find(|l| l.starts_with("global-default")).unwrap();
    assert_eq!(line.split(',').map(str::trim).nth(4), Some("0"), "{text}");
    drop(first);
    assert!(fairness.lock().levels.levels["global-default"].queues.is_idle());
    assert!(fairness.lock().details.is_empty() && fairness.lock().waiters.is_empty());
}
