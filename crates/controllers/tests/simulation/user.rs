//! Somebody who scales, rolls out, deletes and evicts.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Time};
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;

use crate::node::{app, is_ready};
use crate::objects::NAMESPACE;

pub struct User {
    rng: fastrand::Rng,
    next: Duration,
    next_eviction: Duration,
    image: u32,
    /// Whether the Deployment `gone` has been deleted.
    pub deleted: bool,
}

impl User {
    pub fn new(rng: fastrand::Rng) -> Self {
        let begin = Duration::from_secs(20);
        Self { rng, next: begin, next_eviction: begin, image: 1, deleted: false }
    }

    pub async fn tick(&mut self, api: &Arc<FakeApi>, now: Duration) {
        if now >= self.next {
            self.next = now + Duration::from_secs_f64(1.0 + self.rng.f64() * 12.0);
            self.act(api).await;
        }
        if now >= self.next_eviction {
            self.next_eviction = now + Duration::from_secs_f64(0.2 + self.rng.f64() * 3.0);
            self.evict(api).await;
        }
    }

    async fn act(&mut self, api: &Arc<FakeApi>) {
        let count = self.rng.i32(1..6);
        match self.rng.u8(..8) {
            0 => api.edit::<Deployment>(NAMESPACE, "web", |d| {
                d.spec.replicas = Some(count);
                bump(&mut d.metadata.generation);
            }),
            1 | 2 => {
                let image = self.image();
                api.edit::<Deployment>(NAMESPACE, "web", |d| {
                    set_image(&mut d.spec.template.spec, &image);
                    bump(&mut d.metadata.generation);
                });
            }
            3 => api.edit::<StatefulSet>(NAMESPACE, "db", |s| {
                s.spec.replicas = Some(count);
                bump(&mut s.metadata.generation);
            }),
            4 => {
                let image = self.image();
                api.edit::<StatefulSet>(NAMESPACE, "db", |s| {
                    set_image(&mut s.spec.template.spec, &image);
                    bump(&mut s.metadata.generation);
                });
            }
            5 => {
                let image = self.image();
                api.edit::<DaemonSet>(NAMESPACE, "agent", |d| {
                    set_image(&mut d.spec.template.spec, &image);
                    bump(&mut d.metadata.generation);
                });
            }
            6 => {
                let pods: Vec<Pod> = api
                    .all::<Pod>()
                    .into_iter()
                    .filter(|p| matches!(app(p), "db" | "batch" | "agent"))
                    .collect();
                if let Some(pod) = pods.get(self.rng.usize(..pods.len().max(1))) {
                    let _ =
                        api.client().delete::<Pod>(NAMESPACE, pod.name(), &DeleteOptions::default()).await;
                }
            }
            _ => {
                self.deleted = true;
                let options = DeleteOptions {
                    propagation_policy: Some(
                        if self.rng.bool() { "Background" } else { "Foreground" }.to_owned(),
                    ),
                    ..DeleteOptions::default()
                };
                let _ = api.client().delete::<Deployment>(NAMESPACE, "gone", &options).await;
            }
        }
    }

    fn image(&mut self) -> String {
        self.image += 1;
        format!("image:{}", self.image)
    }

    /// As the eviction subresource does it: the budget is charged first, under the version that was read.
    async fn evict(&mut self, api: &Arc<FakeApi>) {
        let pods: Vec<Pod> =
            api.all::<Pod>().into_iter().filter(|p| app(p) == "guarded" && is_ready(p)).collect();
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

fn bump(generation: &mut Option<i64>) {
    *generation = Some(generation.unwrap_or(0) + 1);
}

fn set_image(spec: &mut Option<k8s_openapi::api::core::v1::PodSpec>, image: &str) {
    spec.get_or_insert_default().containers[0].image = Some(image.to_owned());
}
