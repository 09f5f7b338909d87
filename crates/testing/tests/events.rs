//! The last events of a component that stops are written.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::clock::TokioClock;
use knarr_client::events::{EventRecorder, EventType};
use knarr_testing::FakeApi;
use knarr_testing::faults::{Chance, Faulty, Rates};
use tokio_util::sync::CancellationToken;

struct Lab {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    recorder: EventRecorder,
    stop: CancellationToken,
}

/// Returns a recorder whose requests, and their answers, take up to `latency`.
fn lab(latency: Duration) -> Lab {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &[Event::RESOURCE, Pod::RESOURCE]);
    let rates = Rates { latency, ..Rates::NONE };
    let slow = Faulty::new(Arc::clone(api.client().transport()), Arc::clone(&clock), Chance::new(7, rates));
    let client = Client::new(slow, Arc::clone(&clock), "test");
    let stop = CancellationToken::new();
    let recorder = EventRecorder::new(client, "test", "", stop.clone());
    Lab { api, clock, recorder, stop }
}

fn record(recorder: &EventRecorder, count: usize) {
    for n in 0..count {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("default".into());
        pod.metadata.name = Some(format!("p{n}"));
        recorder.event(&pod, EventType::Normal, "Seen", "it is there");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_recorded_before_the_stop_is_written_after_it() {
    let Lab { api, clock, recorder, stop } = lab(Duration::from_millis(40));
    record(&recorder, 20);
    stop.cancel();
    assert!(api.all::<Event>().is_empty(), "nothing was written yet");
    recorder.written().await;
    assert_eq!(api.all::<Event>().len(), 20);
    // Without events there is nothing to wait for.
    let began = clock.monotonic();
    recorder.written().await;
    assert!(clock.monotonic() - began < Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_keeps_nobody_from_ending() {
    let Lab { api, clock, recorder, stop } = lab(Duration::from_secs(1000));
    record(&recorder, 20);
    let began = clock.monotonic();
    recorder.written().await;
    assert_eq!(clock.monotonic() - began, Duration::from_secs(2));
    stop.cancel();
    // The writer ends as well, and a recorder without a writer does not wait.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = clock.monotonic();
    recorder.written().await;
    assert!(clock.monotonic() - began < Duration::from_millis(1));
    assert!(api.all::<Event>().is_empty());
}
