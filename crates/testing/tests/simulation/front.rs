//! What an API server does besides storing: it refuses creations in a terminating namespace, charges quotas,
//! and serves scales and pod metrics.

use std::future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::{List, ListOptions, Transport, WatchStream};
use knarr_client::{Client, Error, Result};
use knarr_testing::FakeApi;
use serde_json::{Value, json};

use crate::checks::Outcome;
use crate::node::{app, is_ready};
use crate::objects::{BOUNDED, DOOMED, NAMESPACE, SCALED};

/// The longest time between a quota's charge and the creation of the object that it was charged for.
const CHARGED: Duration = Duration::from_millis(20);
/// How often a charge with a conflict is tried.
const TRIES: usize = 5;
/// The most requests of a run, several times as many as the busiest run has: with more, components keep each
/// other busy without end.
const MOST_REQUESTS: u64 = 200_000;

pub struct Front {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    rng: Mutex<fastrand::Rng>,
    /// The CPU that the pods of the scaled Deployment use together, in millicores.
    pub load: AtomicI64,
    requests: AtomicU64,
}

type Answer = Option<std::result::Result<Value, StatusError>>;

impl Front {
    pub fn new(api: &Arc<FakeApi>, clock: &Arc<dyn Clock>, rng: fastrand::Rng) -> Arc<Self> {
        let (api, clock) = (Arc::clone(api), Arc::clone(clock));
        Arc::new(Self {
            api,
            clock,
            rng: Mutex::new(rng),
            load: AtomicI64::new(100),
            requests: AtomicU64::new(0),
        })
    }

    /// Fails once there were too many requests. Then no more are answered, because otherwise simulated time
    /// would not advance.
    pub fn look(&self) -> Outcome {
        let requests = self.requests.load(Ordering::SeqCst);
        if requests <= MOST_REQUESTS {
            return Ok(());
        }
        let last: Vec<String> =
            self.api.requests().iter().rev().take(20).map(|r| format!("{} {}", r.method, r.path)).collect();
        Err(format!("more than {MOST_REQUESTS} requests; the last: {}", last.join(", ")))
    }

    /// Returns an error if a create is refused.
    async fn admit(&self, path: &str) -> std::result::Result<(), StatusError> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let Some(at) = parts.iter().position(|p| *p == "namespaces") else { return Ok(()) };
        let [namespace, plural] = parts[at + 1..] else { return Ok(()) };
        match self.api.get::<Namespace>("", namespace) {
            Some(there) if there.metadata.deletion_timestamp.is_some() => {
                return Err(terminating(namespace, plural));
            }
            None if namespace == DOOMED => {
                return Err(StatusError::not_found(&Namespace::RESOURCE.group_resource(), namespace));
            }
            _ => {}
        }
        if (namespace, plural) != (BOUNDED, "pods") {
            return Ok(());
        }
        self.charge().await?;
        let wait = CHARGED.mul_f64(self.rng.lock().unwrap_or_else(PoisonError::into_inner).f64());
        self.clock.sleep(wait).await;
        Ok(())
    }

    /// Charges one more pod, by compare-and-swap.
    async fn charge(&self) -> std::result::Result<(), StatusError> {
        let client =
            Client::new(Arc::clone(&self.api) as Arc<dyn Transport>, Arc::clone(&self.clock), "quota");
        let refused = |why: &str| Err(StatusError::forbidden(&GroupResource::new("", "pods"), "", why));
        for _ in 0..TRIES {
            let Some(mut quota) = self.api.get::<ResourceQuota>(BOUNDED, BOUNDED) else { return Ok(()) };
            let number = |of: &Option<std::collections::BTreeMap<String, Quantity>>| {
                of.as_ref()?.get("pods")?.0.parse::<i64>().ok()
            };
            let status = quota.status.get_or_insert_default();
            let (Some(hard), Some(used)) = (number(&status.hard), number(&status.used)) else {
                return refused("status unknown for quota: bounded, resources: pods");
            };
            if used >= hard {
                let why = format!(
                    "exceeded quota: bounded, requested: pods=1, used: pods={used}, limited: pods={hard}"
                );
                return refused(&why);
            }
            let used = status.used.get_or_insert_default();
            used.entry("pods".to_owned())
                .and_modify(|q| q.0 = (q.0.parse::<i64>().unwrap_or(0) + 1).to_string());
            if client.update_status(&quota).await.is_ok() {
                return Ok(());
            }
        }
        refused("could not charge the quota")
    }

    /// Answers requests for the scale of a Deployment and for pod metrics.
    fn answer(&self, request: &http::Request<Bytes>) -> Answer {
        let path = request.uri().path();
        if path == format!("/apis/metrics.k8s.io/v1beta1/namespaces/{NAMESPACE}/pods") {
            return Some(Ok(self.metrics()));
        }
        let deployment = path.strip_suffix("/scale")?;
        let name = deployment.strip_prefix(&format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/"))?;
        let Some(mut deployment) = self.api.get::<Deployment>(NAMESPACE, name) else {
            return Some(Err(StatusError::path_not_found()));
        };
        if request.method() == Method::PUT {
            let scale: Value = serde_json::from_slice(request.body()).unwrap_or_default();
            let version = scale["metadata"]["resourceVersion"].as_str();
            if version.is_some_and(|v| Some(v) != deployment.metadata.resource_version.as_deref()) {
                return Some(Err(StatusError::modified(&Deployment::RESOURCE.group_resource(), name)));
            }
            let replicas = scale["spec"]["replicas"].as_i64().and_then(|n| i32::try_from(n).ok());
            self.api.edit::<Deployment>(NAMESPACE, name, |d| {
                d.spec.replicas = replicas;
                d.metadata.generation = d.metadata.generation.map(|g| g + 1);
            });
            deployment = self.api.get::<Deployment>(NAMESPACE, name).unwrap_or_default();
        }
        let (spec, status) = (deployment.spec.replicas, deployment.status.unwrap_or_default().replicas);
        Some(Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": name, "namespace": NAMESPACE,
                "resourceVersion": deployment.metadata.resource_version},
            "spec": {"replicas": spec}, "status": {"replicas": status, "selector": format!("app={name}")}})))
    }

    /// Returns the metrics: the load, shared by the Deployment's pods.
    fn metrics(&self) -> Value {
        let pods = self.api.every::<Pod>();
        let ready: Vec<_> = pods.iter().filter(|p| app(p) == SCALED && is_ready(p)).collect();
        let each = self.load.load(Ordering::SeqCst) / i64::try_from(ready.len().max(1)).unwrap_or(1);
        let item = |pod: &&Arc<Pod>| {
            json!({"metadata": {"name": pod.name()}, "timestamp": self.clock.now().to_string(), "window": "15s",
                "containers": [{"name": "c", "usage": {"cpu": format!("{each}m")}}]})
        };
        json!({"items": ready.iter().map(item).collect::<Vec<_>>()})
    }
}

fn terminating(namespace: &str, plural: &str) -> StatusError {
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = StatusError::forbidden(&GroupResource::new("", plural), "", &why);
    let cause = StatusCause {
        reason: Some("NamespaceTerminating".into()),
        message: Some(format!("namespace {namespace} is being terminated")),
        field: Some("metadata.namespace".into()),
    };
    error.0.details.get_or_insert_with(StatusDetails::default).causes = Some(vec![cause]);
    error
}

#[async_trait]
impl Transport for Front {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        if self.requests.fetch_add(1, Ordering::SeqCst) >= MOST_REQUESTS {
            return future::pending().await;
        }
        if let Some(answer) = self.answer(&request) {
            let body = answer.map_err(Error::Status)?.to_string();
            return Ok(http::Response::new(Bytes::from(body)));
        }
        if request.method() == Method::POST {
            self.admit(request.uri().path()).await.map_err(Error::Status)?;
        }
        self.api.send(request).await
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        self.api.list(resource, namespace, options).await
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        self.api.watch(resource, namespace, options).await
    }
}
