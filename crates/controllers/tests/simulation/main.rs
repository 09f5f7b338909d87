//! The controllers against an API server on a bad day, by the seed: what must never happen does not, and in the end the
//! cluster is as its objects say.
//!
//! One seed again: `KNARR_SEED=7 cargo test -p knarr-controllers --test simulation -- --ignored --nocapture`; many:
//! `KNARR_SEEDS=2000`, beginning with `KNARR_SEED` or 0.

mod checks;
mod node;
mod objects;
mod user;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod, ReplicationController};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::TokioClock;
use knarr_client::{Client, Transport};
use knarr_controllers::{ClientOf, Options, run_chosen};
use knarr_testing::FakeApi;
use knarr_testing::faults::{Chance, Faulty, Rates};
use tokio_util::sync::CancellationToken;

use checks::Checks;

const CONTROLLERS: [&str; 7] = [
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "replicaset-controller",
    "statefulset-controller",
];
/// How long things go wrong, and how long the cluster has to come to rest.
const BAD: Duration = Duration::from_secs(120);
const REST: Duration = Duration::from_secs(400);
const TICK: Duration = Duration::from_millis(200);
/// Seeds of a run that asks for no others.
const SEEDS: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
#[ignore = "about half of the seeds still find something: a Deployment's bounds while its ReplicaSets are stale"]
fn nothing_forbidden_happens_and_the_cluster_comes_to_rest() {
    let first = number("KNARR_SEED").unwrap_or(0);
    let count = number("KNARR_SEEDS").unwrap_or(if number("KNARR_SEED").is_some() { 1 } else { SEEDS });
    let mut failed = Vec::new();
    for seed in first..first + count {
        if let Err(why) = run(seed) {
            eprintln!("seed {seed}: {why}");
            eprintln!(
                "again: KNARR_SEED={seed} cargo test -p knarr-controllers --test simulation -- --ignored --nocapture"
            );
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}

fn run(seed: u64) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // What components draw by themselves, such as back-offs.
    fastrand::seed(seed);
    runtime.map_err(|e| e.to_string())?.block_on(simulate(seed))
}

/// How bad the day is differs by the seed.
fn rates(rng: &mut fastrand::Rng) -> Rates {
    let mut upto = |most: f64| rng.f64() * most;
    Rates {
        latency: Duration::from_secs_f64(upto(0.1)),
        staleness: Duration::from_secs_f64(upto(3.0)),
        refused: upto(0.1),
        lost: upto(0.1),
        conflict: upto(0.2),
        broken: upto(0.05),
        expired: upto(0.5),
        crash: upto(0.02),
    }
}

async fn simulate(seed: u64) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let start = Timestamp::from_second(1_767_225_600).map_err(|e| e.to_string())?;
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(start));
    let api = FakeApi::new(
        Arc::clone(&clock),
        &[
            ControllerRevision::RESOURCE,
            DaemonSet::RESOURCE,
            Deployment::RESOURCE,
            Event::RESOURCE,
            Job::RESOURCE,
            Node::RESOURCE,
            PersistentVolumeClaim::RESOURCE,
            Pod::RESOURCE,
            PodDisruptionBudget::RESOURCE,
            ReplicaSet::RESOURCE,
            ReplicationController::RESOURCE,
            StatefulSet::RESOURCE,
        ],
    );
    objects::create(&api);
    let chance = Chance::new(rng.u64(..), rates(&mut rng));
    let end = CancellationToken::new();
    let lives = tokio::spawn(live(Arc::clone(&api), Arc::clone(&clock), chance.clone(), end.clone()));
    let (mut node, mut user) = (node::Node::new(rng.fork()), user::User::new(rng.fork()));
    let mut checks = Checks::default();
    let began = clock.monotonic();
    let mut calm = false;
    while clock.monotonic() - began < BAD + REST {
        clock.sleep(TICK).await;
        let now = clock.monotonic() - began;
        node.tick(&api, now).await;
        if now < BAD {
            user.tick(&api, now).await;
        } else if !calm {
            calm = true;
            chance.set(Rates::NONE);
        }
        checks.tick(&api, &node, now).map_err(|why| format!("after {:.1} s: {why}", now.as_secs_f64()))?;
        if calm && now > BAD + Duration::from_secs(30) && checks.at_rest(&api, &node, &user).is_ok() {
            break;
        }
    }
    end.cancel();
    let rest = checks.at_rest(&api, &node, &user).map_err(|why| format!("at rest: {why}"));
    lives.abort();
    rest
}

/// The controllers, and again after each crash.
async fn live(api: Arc<FakeApi>, clock: Arc<dyn Clock>, chance: Chance, end: CancellationToken) {
    while !end.is_cancelled() {
        let inner = Arc::clone(&api) as Arc<dyn Transport>;
        let way = Faulty::new(inner, Arc::clone(&clock), chance.clone());
        let client = Client::new(Arc::clone(&way) as Arc<dyn Transport>, Arc::clone(&clock), "simulation");
        let of = client.clone();
        let client_of: ClientOf = Arc::new(move |_| of.clone());
        let options = Options {
            cluster_cidr: "10.42.0.0/16".into(),
            node_cidr_mask_size: 24,
            root_ca: String::new(),
            certificate_signer: None,
            token_signer: None,
        };
        let stop = CancellationToken::new();
        let chosen = |name: &str| CONTROLLERS.contains(&name);
        let life =
            tokio::spawn(run_chosen(chosen, client_of, client, Arc::clone(&clock), options, stop.clone()));
        tokio::select! {
            () = end.cancelled() => {}
            () = way.crashed() => {}
        }
        way.kill();
        stop.cancel();
        life.abort();
        clock.sleep(Duration::from_millis(500)).await;
    }
}
