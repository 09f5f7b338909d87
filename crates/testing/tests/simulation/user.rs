//! A simulated user who scales, rolls out and back, pauses, deletes and evicts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Time};
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;

use crate::front::Front;
use crate::node::{app, is_ready};
use crate::objects::{BOUNDED, DOOMED, NAMESPACE, QUOTA, TARGET};

pub struct User {
    rng: fastrand::Rng,
    next: Duration,
    next_eviction: Duration,
    image: u32,
    /// Whether the Deployments `gone` and `kept` have been deleted, the latter with orphaned dependents.
    pub deleted: bool,
    /// Whether a whole namespace was deleted.
    pub doomed: bool,
    pub orphaned: bool,
}

impl User {
    pub fn new(rng: fastrand::Rng) -> Self {
        let begin = Duration::from_secs(20);
        Self {
            rng,
            next: begin,
            next_eviction: begin,
            image: 1,
            deleted: false,
            doomed: false,
            orphaned: false,
        }
    }

    pub async fn tick(&mut self, api: &Arc<FakeApi>, front: &Front, now: Duration) {
        if now >= self.next {
            self.next = now + Duration::from_secs_f64(1.0 + self.rng.f64() * 8.0);
            self.act(api, front).await;
        }
        if now >= self.next_eviction {
            self.next_eviction = now + Duration::from_secs_f64(0.2 + self.rng.f64() * 3.0);
            self.evict(api).await;
        }
    }

    /// Resumes what is paused, which would never reach its wanted state.
    pub fn go_home(api: &Arc<FakeApi>) {
        deployment(api, |d| d.spec.paused = None);
    }

    async fn act(&mut self, api: &Arc<FakeApi>, front: &Front) {
        let count = self.rng.i32(1..6);
        match self.rng.u8(..19) {
            0 | 1 => deployment(api, |d| d.spec.replicas = Some(count)),
            2 | 3 => {
                let image = self.image();
                deployment(api, |d| set_image(&mut d.spec.template.spec, &image));
            }
            4 => {
                // Rolls back to an earlier image.
                let image = format!("image:{}", self.rng.u32(1..=self.image));
                deployment(api, |d| set_image(&mut d.spec.template.spec, &image));
            }
            5 => deployment(api, |d| d.spec.paused = (d.spec.paused != Some(true)).then_some(true)),
            n @ (6 | 7) => {
                let name = if n == 6 { "db" } else { "cache" };
                stateful_set(api, name, |s| s.spec.replicas = Some(count));
            }
            n @ (8 | 9) => {
                let (name, image) = (if n == 8 { "db" } else { "cache" }, self.image());
                stateful_set(api, name, |s| set_image(&mut s.spec.template.spec, &image));
            }
            10 => {
                let (name, image) = (if self.rng.bool() { "agent" } else { "relay" }, self.image());
                api.edit::<DaemonSet>(NAMESPACE, name, |d| {
                    set_image(&mut d.spec.template.spec, &image);
                    bump(&mut d.metadata.generation);
                });
            }
            11 | 12 => self.delete_pod(api).await,
            13 | 14 => front.load.store(TARGET * self.rng.i64(1..9), Ordering::SeqCst),
            15 | 16 => {
                let replicas = Some(self.rng.i32(1..QUOTA + 3));
                api.edit::<ReplicaSet>(BOUNDED, BOUNDED, |s| {
                    s.spec.replicas = replicas;
                    bump(&mut s.metadata.generation);
                });
            }
            17 => {
                self.doomed = true;
                let _ = api.client().delete::<Namespace>("", DOOMED, &DeleteOptions::default()).await;
            }
            _ => {
                let policy = ["Background", "Foreground", "Orphan"][self.rng.usize(..3)];
                let name = if policy == "Orphan" { "kept" } else { "gone" };
                self.deleted |= name == "gone";
                self.orphaned |= name == "kept";
                let options =
                    DeleteOptions { propagation_policy: Some(policy.to_owned()), ..DeleteOptions::default() };
                let _ = api.client().delete::<Deployment>(NAMESPACE, name, &options).await;
            }
        }
    }

    async fn delete_pod(&mut self, api: &Arc<FakeApi>) {
        let mut pods = api.every::<Pod>();
        pods.retain(|p| !matches!(app(p), "web" | "gone" | "kept" | "guarded" | "scaled"));
        if let Some(pod) = pods.get(self.rng.usize(..pods.len().max(1))) {
            let _ = api.client().delete::<Pod>(pod.namespace(), pod.name(), &DeleteOptions::default()).await;
        }
    }

    fn image(&mut self) -> String {
        self.image += 1;
        format!("image:{}", self.image)
    }

    /// Evicts like the eviction subresource: the budget is charged first, at the version that was read.
    async fn evict(&mut self, api: &Arc<FakeApi>) {
        let mut pods = api.every::<Pod>();
        pods.retain(|p| app(p) == "guarded" && is_ready(p));
        let Some(pod) = pods.get(self.rng.usize(..pods.len().max(1))) else { return };
        let client = api.client();
        let Ok(mut budget) = client.get::<PodDisruptionBudget>(NAMESPACE, "guarded").await else { return };
        let observed = budget.metadata.generation;
        let Some(status) = &mut budget.status else { return };
        let allowed = status.disruptions_allowed.unwrap_or(0);
        if status.observed_generation != observed || allowed < 1 {
            return;
        }
        status.disruptions_allowed = Some(allowed - 1);
        let disrupted = status.disrupted_pods.get_or_insert_default();
        disrupted.insert(pod.name().to_owned(), Time(client.clock().now()));
        if client.update_status(&budget).await.is_ok() {
            let _ = client.delete::<Pod>(NAMESPACE, pod.name(), &DeleteOptions::default()).await;
        }
    }
}

fn deployment(api: &Arc<FakeApi>, change: impl FnOnce(&mut Deployment)) {
    api.edit::<Deployment>(NAMESPACE, "web", |d| {
        change(d);
        bump(&mut d.metadata.generation);
    });
}

fn stateful_set(api: &Arc<FakeApi>, name: &str, change: impl FnOnce(&mut StatefulSet)) {
    api.edit::<StatefulSet>(NAMESPACE, name, |s| {
        change(s);
        bump(&mut s.metadata.generation);
    });
}

fn bump(generation: &mut Option<i64>) {
    *generation = Some(generation.unwrap_or(0) + 1);
}

fn set_image(spec: &mut Option<PodSpec>, image: &str) {
    spec.get_or_insert_default().containers[0].image = Some(image.to_owned());
}
