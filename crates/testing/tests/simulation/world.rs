//! One run: API server, controllers, scheduler, machines and a user in one process, all driven by one seed.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
    ResourceQuota, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::TokioClock;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers, Supervisor, Transport};
use knarr_controllers::{ClientOf, run_chosen};
use knarr_scheduler::Scheduler;
use knarr_testing::FakeApi;
use knarr_testing::faults::{Chance, Faulty, Rates};
use tokio_util::sync::CancellationToken;

use crate::checks::{Checks, Outcome, at_rest};
use crate::front::Front;
use crate::node::Machines;
use crate::objects;
use crate::user::User;

const CONTROLLERS: [&str; 14] = [
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "statefulset-controller",
    "taint-eviction-controller",
];
/// How long faults happen.
const BAD: Duration = Duration::from_secs(120);
/// How long the cluster has to become quiet: failed work is retried after 1000 s at most.
const REST: Duration = Duration::from_secs(1200);
/// The cluster is quiet if nothing happens for this long.
const QUIET: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(200);
/// How long a component that has crashed is down.
const RESTART: Duration = Duration::from_millis(500);

fn resources() -> Vec<ResourceType> {
    vec![
        ControllerRevision::RESOURCE,
        CronJob::RESOURCE,
        CSIDriver::RESOURCE,
        CSINode::RESOURCE,
        CSIStorageCapacity::RESOURCE,
        DaemonSet::RESOURCE,
        Deployment::RESOURCE,
        DeviceClass::RESOURCE,
        DeviceTaintRule::RESOURCE,
        Event::RESOURCE,
        HorizontalPodAutoscaler::RESOURCE,
        Job::RESOURCE,
        Lease::RESOURCE,
        Namespace::RESOURCE,
        Node::RESOURCE,
        PersistentVolume::RESOURCE,
        PersistentVolumeClaim::RESOURCE,
        Pod::RESOURCE,
        PodDisruptionBudget::RESOURCE,
        ReplicaSet::RESOURCE,
        ReplicationController::RESOURCE,
        ResourceClaim::RESOURCE,
        ResourceQuota::RESOURCE,
        ResourceSlice::RESOURCE,
        Service::RESOURCE,
        StatefulSet::RESOURCE,
        StorageClass::RESOURCE,
        VolumeAttachment::RESOURCE,
    ]
}

/// Chooses the rates of the faults by the seed.
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
        replayed: upto(0.5),
        stalled: upto(0.02),
        crash: upto(0.02),
    }
}

/// A run and its findings.
pub struct Run {
    pub api: Arc<FakeApi>,
    pub outcome: Outcome,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.api.clear();
    }
}

/// Runs the seed.
pub fn run(seed: u64) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // For random numbers that components draw themselves, such as back-offs.
    fastrand::seed(seed);
    runtime.expect("a runtime").block_on(simulate(seed))
}

async fn simulate(seed: u64) -> Run {
    let mut rng = fastrand::Rng::with_seed(seed);
    let start = Timestamp::from_second(1_767_225_600).expect("a time");
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(start));
    let api = FakeApi::new(Arc::clone(&clock), &resources());
    objects::create(&api);
    let front = Front::new(&api, &clock, rng.fork());
    let chance = Chance::new(rng.u64(..), rates(&mut rng));
    let end = CancellationToken::new();
    let life = |component: Component, seed: u64| {
        let lives = Lives {
            component,
            seed,
            front: Arc::clone(&front),
            clock: Arc::clone(&clock),
            chance: chance.clone(),
            end: end.clone(),
        };
        tokio::spawn(lives.live())
    };
    let components = [life(Component::Controllers, 0), life(Component::Scheduler, rng.u64(..))];
    let outcome = day(&api, &front, &clock, &chance, &mut rng).await;
    end.cancel();
    components.iter().for_each(tokio::task::JoinHandle::abort);
    Run { api, outcome }
}

/// Runs the time with faults and the time after it.
async fn day(
    api: &Arc<FakeApi>,
    front: &Arc<Front>,
    clock: &Arc<dyn Clock>,
    chance: &Chance,
    rng: &mut fastrand::Rng,
) -> Outcome {
    let machines_fail = rng.u8(..3) == 0;
    let mut machines = Machines::new(rng.fork(), machines_fail.then_some(BAD));
    let (mut user, mut server) = (User::new(rng.fork()), Server::new(rng.fork()));
    let mut checks = Checks::new(machines_fail);
    let began = clock.monotonic();
    let mut calm = false;
    loop {
        clock.sleep(TICK).await;
        let now = clock.monotonic() - began;
        let at = |why: String| format!("after {:.1} s: {why}", now.as_secs_f64());
        machines.tick(api, now).await.map_err(at)?;
        if now < BAD {
            user.tick(api, front, now).await;
            server.tick(api, chance, now);
        } else if !calm {
            calm = true;
            chance.set(Rates::NONE);
            chance.set_down(false);
            User::go_home(api);
        }
        checks.look(api, now).map_err(at)?;
        front.look().map_err(at)?;
        if now < BAD + QUIET {
            continue;
        }
        let rest = at_rest(&checks, api, front, &user);
        if rest.is_ok() || now > BAD + REST {
            return rest.map_err(|why| format!("at rest: {why}"));
        }
    }
}

/// The API server, which is down for a while now and then.
struct Server {
    rng: fastrand::Rng,
    down_at: Duration,
    up_at: Duration,
}

impl Server {
    fn new(mut rng: fastrand::Rng) -> Self {
        let down_at = Duration::from_secs_f64(15.0 + rng.f64() * 200.0);
        let up_at = down_at + Duration::from_secs_f64(1.0 + rng.f64() * 5.0);
        Self { rng, down_at, up_at }
    }

    fn tick(&mut self, api: &FakeApi, chance: &Chance, now: Duration) {
        if now >= self.up_at {
            chance.set_down(false);
            *self = Self::new(self.rng.fork());
            self.down_at += now;
            self.up_at += now;
        } else if now >= self.down_at {
            chance.set_down(true);
            api.disconnect();
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Component {
    Controllers,
    Scheduler,
}

impl Component {
    fn start(self, client: Client, seed: u64, stop: CancellationToken) -> tokio::task::JoinHandle<()> {
        match self {
            Self::Controllers => tokio::spawn(controllers(&CONTROLLERS, client, stop)),
            Self::Scheduler => tokio::spawn(scheduler(client, seed, stop)),
        }
    }
}

/// A component that is started again after each crash.
struct Lives {
    component: Component,
    seed: u64,
    front: Arc<Front>,
    clock: Arc<dyn Clock>,
    chance: Chance,
    end: CancellationToken,
}

impl Lives {
    async fn live(self) {
        while !self.end.is_cancelled() {
            let inner = Arc::clone(&self.front) as Arc<dyn Transport>;
            let way = Faulty::new(inner, Arc::clone(&self.clock), self.chance.clone());
            let client =
                Client::new(Arc::clone(&way) as Arc<dyn Transport>, Arc::clone(&self.clock), "simulation");
            let stop = CancellationToken::new();
            let life = self.component.start(client, self.seed, stop.clone());
            tokio::select! {
                biased;
                () = self.end.cancelled() => {}
                () = way.crashed() => {}
            }
            way.kill();
            stop.cancel();
            life.abort();
            self.clock.sleep(RESTART).await;
        }
    }
}

/// Runs the controllers of these names.
pub async fn controllers(names: &'static [&'static str], client: Client, stop: CancellationToken) {
    let (way, clock) = (Arc::clone(client.transport()), Arc::clone(client.clock()));
    let at = Arc::clone(&clock);
    let client_of: ClientOf =
        Arc::new(move |account| Client::new(Arc::clone(&way), Arc::clone(&at), account));
    let options = knarr_controllers::Options {
        cluster_cidr: "10.42.0.0/16".into(),
        node_cidr_mask_size: 24,
        service_cidr: None,
        root_ca: String::new(),
        certificate_signer: None,
        token_signer: None,
        settings: knarr_controllers::Settings::default(),
    };
    let chosen = |name: &str| names.contains(&name);
    run_chosen(&chosen, client_of, client, Supervisor::new(clock), options, stop).await;
}

async fn scheduler(client: Client, seed: u64, stop: CancellationToken) {
    let informers = Arc::new(Informers::new(client.clone(), stop.clone()));
    let recorder = EventRecorder::new(client, "default-scheduler", "", stop.clone());
    let options = knarr_scheduler::Options { seed, ..knarr_scheduler::Options::default() };
    let scheduler = Scheduler::new(&informers, recorder, options).expect("the default configuration");
    if informers.wait_synced().await {
        scheduler.run(stop).await;
    }
}

/// Informers hold handlers, which may hold the informers.
#[tokio::test(start_paused = true)]
async fn a_life_that_has_ended_leaves_nothing_behind() {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &resources());
    objects::create(&api);
    for component in [Component::Controllers, Component::Scheduler] {
        let inner = Arc::clone(&api) as Arc<dyn Transport>;
        let way = Faulty::new(inner, Arc::clone(&clock), Chance::new(0, Rates::NONE));
        let left = Arc::downgrade(&way);
        let stop = CancellationToken::new();
        let client = Client::new(way, Arc::clone(&clock), "simulation");
        let life = component.start(client, 0, stop.clone());
        clock.sleep(Duration::from_secs(60)).await;
        stop.cancel();
        life.await.expect("no panic");
        clock.sleep(Duration::from_secs(60)).await;
        assert_eq!(left.strong_count(), 0, "{component:?}");
    }
}
