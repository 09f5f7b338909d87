//! Starts the controllers of a list, each with its own identity and work queue.

use std::sync::Arc;

use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers, Supervisor};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::context::{ClientOf, Context, Descriptor, Options, Running};
use crate::list::ALL;
use crate::names::{event_source, service_account};

/// Runs all controllers until `stop`. The informers that all of them share use the client `shared`.
pub fn run(
    client_of: ClientOf,
    shared: Client,
    supervisor: Supervisor,
    options: Options,
    stop: CancellationToken,
) -> Running {
    run_chosen(&|_| true, client_of, shared, supervisor, options, stop)
}

/// Runs the controllers whose names `chosen` accepts, as [`run`] does.
pub fn run_chosen(
    chosen: &dyn Fn(&str) -> bool,
    client_of: ClientOf,
    shared: Client,
    supervisor: Supervisor,
    options: Options,
    stop: CancellationToken,
) -> Running {
    let chosen = ALL.iter().filter(|d| chosen(d.name)).collect();
    run_these(chosen, client_of, shared, supervisor, options, stop)
}

/// Runs these controllers as [`run`] does, each as a supervised task under its name.
pub fn run_these(
    chosen: Vec<&'static Descriptor>,
    client_of: ClientOf,
    shared: Client,
    supervisor: Supervisor,
    options: Options,
    stop: CancellationToken,
) -> Running {
    Box::pin(async move {
        let shared = shared.supervised_by(&supervisor);
        let informers = Arc::new(Informers::new(shared.clone(), stop.clone()));
        let options = Arc::new(options);
        let tracker = TaskTracker::new();
        for descriptor in chosen {
            let account = service_account(descriptor.name);
            // The token controller runs under the manager's own identity, as upstream's does: accounts have no tokens
            // before it runs.
            let of_manager = descriptor.name == crate::service_account_tokens::DESCRIPTOR.name;
            let client =
                if of_manager { shared.clone() } else { client_of(account).supervised_by(&supervisor) };
            let (informers, options) = (Arc::clone(&informers), Arc::clone(&options));
            // Some controllers end at once because they have nothing to do, for instance without a signing key.
            let life = supervisor.run_until_done(descriptor.name, stop.clone(), move |stop| {
                let (source, client) = (event_source(descriptor.name), client.clone());
                // The recorder outlives the stop, so that events emitted while the controller shuts down are written.
                let recording = CancellationToken::new();
                let recorder = EventRecorder::new(client.clone(), source, "", recording.clone());
                let context = Context {
                    name: descriptor.name,
                    informers: Arc::new(informers.until(stop.clone())),
                    recorder: recorder.clone(),
                    clock: Arc::clone(client.clock()),
                    client,
                    options: Arc::clone(&options),
                    stop,
                };
                let running = (descriptor.run)(Arc::new(context));
                async move {
                    let _recorded = recording.drop_guard();
                    running.await;
                    recorder.written().await;
                }
            });
            tracker.spawn(life);
        }
        tracker.close();
        tracker.wait().await;
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::kind::Kind;
    use knarr_apimachinery::clock::Clock;
    use knarr_client::clock::TokioClock;
    use knarr_testing::fake_api::FakeApi;
    use knarr_testing::faults::{Chance, Faulty, Rates};
    use tokio::sync::mpsc;

    use super::*;
    use crate::settings::Settings;

    static LIVES: AtomicUsize = AtomicUsize::new(0);
    static SEEN: std::sync::Mutex<Option<mpsc::Sender<(usize, String)>>> = std::sync::Mutex::new(None);

    /// Reports the objects it sees, and panics in its first run.
    static FRAGILE: Descriptor = Descriptor { name: "fragile-controller", run: |cx| Box::pin(fragile(cx)) };
    /// Ends at once.
    static IDLE: Descriptor = Descriptor { name: "idle-controller", run: |_| Box::pin(async {}) };

    async fn fragile(cx: Arc<Context>) {
        let life = LIVES.fetch_add(1, Ordering::SeqCst);
        let seen = SEEN.lock().unwrap().clone().unwrap();
        let maps = cx.informers.informer::<ConfigMap>();
        maps.add_handler(move |event| seen.try_send((life, event.object().name().to_owned())).unwrap());
        assert!(maps.wait_synced().await);
        assert!(life > 0, "a fault in the code");
        cx.stop.cancelled().await;
    }

    fn map(name: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("default".into());
        map.metadata.name = Some(name.into());
        map
    }

    fn options() -> Options {
        Options {
            cluster_cidr: "10.42.0.0/16".into(),
            node_cidr_mask_size: 24,
            service_cidr: None,
            root_ca: String::new(),
            certificate_signer: None,
            token_signer: None,
            settings: Settings::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_panics_is_down_then_restarted_and_its_first_life_sees_no_more() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let api = FakeApi::new(Arc::clone(&clock), &[ConfigMap::RESOURCE]);
        api.add(&map("first"));
        let (sender, mut seen) = mpsc::channel(16);
        *SEEN.lock().unwrap() = Some(sender);
        let (client, supervisor) = (api.client(), Supervisor::new(Arc::clone(&clock)));
        let of_client = client.clone();
        let stop = CancellationToken::new();
        let client_of: ClientOf = Arc::new(move |_| of_client.clone());
        let (these, watched) = (vec![&FRAGILE, &IDLE], supervisor.clone());
        let running = tokio::spawn(run_these(these, client_of, client, watched, options(), stop.clone()));

        assert_eq!(seen.recv().await, Some((0, "first".into())));
        clock.sleep(Duration::from_millis(1)).await;
        let health = || supervisor.health().into_iter().map(|h| (h.name, h.result)).collect::<Vec<_>>();
        let down = "it panicked: a fault in the code".to_owned();
        assert_eq!(
            health(),
            [("fragile-controller".into(), Err(down)), ("informers".into(), Ok(()))],
            "a controller that has ended is not shown"
        );
        assert_eq!(seen.recv().await, Some((1, "first".into())));
        assert_eq!(health()[0].1, Ok(()));
        assert!(
            knarr_client::metrics::render()
                .contains("knarr_task_restarts_total{task=\"fragile-controller\"} 1\n")
        );
        api.add(&map("second"));
        assert_eq!(seen.recv().await, Some((1, "second".into())));
        clock.sleep(Duration::from_secs(60)).await;
        assert!(seen.try_recv().is_err(), "the handlers of the first run are removed");
        stop.cancel();
        running.await.unwrap();
        assert_eq!(health(), []);
    }

    /// Waits for the first list and then counts a start.
    static WAITS: Descriptor = Descriptor { name: "waiting-controller", run: |cx| Box::pin(waits(cx)) };
    static BEGUN: AtomicUsize = AtomicUsize::new(0);

    async fn waits(cx: Arc<Context>) {
        if cx.informers.informer::<ConfigMap>().wait_synced().await {
            BEGUN.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_during_the_first_list_ends_controllers_before_they_begin() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let api = FakeApi::new(Arc::clone(&clock), &[ConfigMap::RESOURCE]);
        let chance = Chance::new(1, Rates::NONE);
        let silent = Faulty::new(Arc::clone(api.client().transport()), Arc::clone(&clock), chance);
        silent.kill();
        let client = Client::new(silent, Arc::clone(&clock), "test");
        let (of_client, supervisor) = (client.clone(), Supervisor::new(Arc::clone(&clock)));
        let client_of: ClientOf = Arc::new(move |_| of_client.clone());
        let stop = CancellationToken::new();
        let running = run_these(vec![&WAITS], client_of, client, supervisor, options(), stop.clone());
        let mut running = tokio::spawn(running);
        tokio::time::timeout(Duration::from_secs(60), &mut running).await.unwrap_err();
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(1), running).await.unwrap().unwrap();
        assert_eq!(BEGUN.load(Ordering::SeqCst), 0);
    }
}
