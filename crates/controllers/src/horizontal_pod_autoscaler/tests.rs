//! Tests of the whole controller against an in-memory API server whose metrics the test sets.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::{List, ListOptions, Transport, WatchStream};
use knarr_client::{Client, Error};
use knarr_testing::FakeApi;
use serde_json::json;

use super::*;
use crate::testing::World;

/// Answers requests for scales and metrics, and passes others on to the server.
struct Metered {
    api: Arc<FakeApi>,
    inner: Client,
    /// The usage of each pod in millicores; a negative value means that the metrics API is down.
    milli: Arc<AtomicI64>,
    /// The value of the external metric `queue`.
    queue: Arc<AtomicI64>,
}

impl Metered {
    fn answer(&self, request: &http::Request<Bytes>) -> Option<Result<Value, StatusError>> {
        let path = request.uri().path();
        if path.ends_with("/deployments/web/scale") {
            if request.method() == Method::PUT {
                let scale: Value = serde_json::from_slice(request.body()).unwrap();
                let replicas = scale["spec"]["replicas"].as_i64().unwrap() as i32;
                self.api.edit::<Deployment>("ns", "web", |d| d.spec.replicas = Some(replicas));
            }
            let replicas = self.api.get::<Deployment>("ns", "web")?.spec.replicas;
            return Some(Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
                "metadata": {"name": "web", "namespace": "ns"}, "spec": {"replicas": replicas},
                "status": {"replicas": replicas, "selector": "app=web"}})));
        }
        if path == "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue" {
            let value = self.queue.load(Ordering::SeqCst).to_string();
            return Some(Ok(json!({"items": [{"metricName": "queue", "value": value}]})));
        }
        if path != "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods" {
            return None;
        }
        assert_eq!(request.uri().query(), Some("labelSelector=app%3Dweb"));
        let milli = self.milli.load(Ordering::SeqCst);
        if milli < 0 {
            return Some(Err(StatusError::unavailable("down")));
        }
        let item = |pod: &Pod| {
            json!({"metadata": {"name": pod.name()}, "timestamp": "2026-06-01T00:00:00Z", "window": "15s",
                "containers": [{"name": "c", "usage": {"cpu": format!("{milli}m")}}]})
        };
        Some(Ok(json!({"items": self.api.all::<Pod>().iter().map(item).collect::<Vec<_>>()})))
    }
}

#[async_trait]
impl Transport for Metered {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        match self.answer(&request) {
            Some(Ok(value)) => Ok(http::Response::new(Bytes::from(value.to_string()))),
            Some(Err(error)) => Err(Error::Status(error)),
            None => self.inner.transport().send(request).await,
        }
    }

    async fn list(&self, r: &ResourceType, namespace: Option<&str>, options: &ListOptions) -> Result<List> {
        self.inner.transport().list(r, namespace, options).await
    }

    async fn watch(
        &self,
        r: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        self.inner.transport().watch(r, namespace, options).await
    }
}

struct Lab {
    world: World,
    milli: Arc<AtomicI64>,
    queue: Arc<AtomicI64>,
}

impl Lab {
    /// Makes a Deployment of this size with as many pods that request half a CPU, and an autoscaler with target 50
    /// percent.
    async fn new(replicas: i32, spec: Value) -> Self {
        let world = World::new(&[
            HorizontalPodAutoscaler::RESOURCE,
            Deployment::RESOURCE,
            Pod::RESOURCE,
            ApiEvent::RESOURCE,
        ]);
        let api = Arc::clone(&world.api);
        api.add::<Deployment>(
            &serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns"},
            "spec": {"replicas": replicas, "selector": {}, "template": {}}}))
            .unwrap(),
        );
        let (milli, queue) = (Arc::new(AtomicI64::new(250)), Arc::new(AtomicI64::new(0)));
        let inner = api.client();
        let clock = Arc::clone(inner.clock());
        let (milli_now, queue_now) = (Arc::clone(&milli), Arc::clone(&queue));
        let metered = Metered { api: Arc::clone(&api), inner, milli: milli_now, queue: queue_now };
        let client = Client::new(Arc::new(metered), clock, "test");
        let lab = Self { world, milli, queue };
        lab.pods(replicas);
        let mut whole = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 10,
            "metrics": [{"type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        api.add::<HorizontalPodAutoscaler>(
            &serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns", "generation": 1},
            "spec": whole}))
            .unwrap(),
        );
        lab.world.start_with(&DESCRIPTOR, client);
        lab
    }

    fn pods(&self, count: i32) {
        for n in 0..count {
            let since = "2025-01-01T00:00:00Z";
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": format!("web-{n}"), "namespace": "ns", "labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
                "status": {"phase": "Running", "startTime": since,
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]},
            }))
            .unwrap();
            self.world.api.add(&pod);
        }
    }

    fn replicas(&self) -> i32 {
        self.world.api.get::<Deployment>("ns", "web").unwrap().spec.replicas.unwrap()
    }

    fn edit(&self, change: impl FnOnce(&mut HorizontalPodAutoscaler)) {
        self.world.api.edit("ns", "web", change);
    }

    fn condition(&self, type_: &str) -> (String, String, String) {
        let hpa = self.world.api.get::<HorizontalPodAutoscaler>("ns", "web").unwrap();
        let found = hpa.status.unwrap().conditions.unwrap().into_iter().find(|c| c.type_ == type_).unwrap();
        (found.status, found.reason.unwrap(), found.message.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn use_above_the_target_adds_pods_and_below_takes_them_after_a_while() {
    let lab = Lab::new(2, json!({})).await;
    lab.world.pass(1.0).await;
    assert_eq!(lab.replicas(), 2);
    let hpa = lab.world.api.get::<HorizontalPodAutoscaler>("ns", "web").unwrap();
    let status = hpa.status.unwrap();
    assert_eq!((status.current_replicas, status.desired_replicas), (Some(2), 2));
    assert_eq!(status.observed_generation, Some(1));
    let current = status.current_metrics.unwrap()[0].resource.clone().unwrap().current;
    assert_eq!((current.average_utilization, current.average_value.unwrap().0.as_str()), (Some(50), "250m"));
    assert_eq!(lab.condition("ScalingLimited").1, "DesiredWithinRange");
    lab.milli.store(500, Ordering::SeqCst);
    lab.world.pass(15.0).await;
    assert_eq!(lab.replicas(), 4);
    assert_eq!(lab.condition("AbleToScale").1, "SucceededRescale");
    let events = lab.world.events();
    let want = "web SuccessfulRescale New size: 4; reason: cpu resource utilization (percentage of request) above target";
    assert!(events.iter().any(|e| e == want), "{events:?}");
    lab.pods(4);
    lab.milli.store(50, Ordering::SeqCst);
    lab.world.pass(60.0).await;
    assert_eq!(lab.replicas(), 4);
    assert_eq!(lab.condition("AbleToScale").1, "ScaleDownStabilized");
    lab.world.pass(300.0).await;
    assert_eq!(lab.replicas(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_metrics_nothing_changes_and_the_condition_says_why() {
    let lab = Lab::new(3, json!({})).await;
    lab.milli.store(-1, Ordering::SeqCst);
    lab.world.pass(20.0).await;
    assert_eq!(lab.replicas(), 3);
    let (status, reason, message) = lab.condition("ScalingActive");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "FailedGetResourceMetric"));
    assert_eq!(
        message,
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for \
         resource cpu: unable to fetch metrics from resource metrics API: down"
    );
    let events = lab.world.events();
    let want = "web FailedComputeMetricsReplicas invalid metrics (1 invalid out of 1), first error is: failed to get cpu \
                resource metric value: failed to get cpu utilization";
    assert!(events.iter().any(|e| e.starts_with(want)), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn bounds_hold_without_metrics_and_zero_switches_off() {
    let lab = Lab::new(20, json!({})).await;
    lab.world.pass(1.0).await;
    assert_eq!(lab.replicas(), 10);
    let lab = Lab::new(1, json!({"minReplicas": 3})).await;
    lab.world.pass(1.0).await;
    assert_eq!(lab.replicas(), 3);
    let lab = Lab::new(0, json!({})).await;
    lab.world.pass(1.0).await;
    assert_eq!(lab.replicas(), 0);
    assert_eq!(lab.condition("ScalingActive").1, "ScalingDisabled");
}

/// Tests KEP-4951.
#[tokio::test(start_paused = true)]
async fn each_direction_has_the_tolerance_that_it_is_given() {
    let behavior = json!({"scaleUp": {"tolerance": "200m"},
        "scaleDown": {"tolerance": "50m", "stabilizationWindowSeconds": 0}});
    let lab = Lab::new(20, json!({"maxReplicas": 40, "behavior": behavior})).await;
    let after = async |milli: i64| {
        lab.milli.store(milli, Ordering::SeqCst);
        lab.world.pass(20.0).await;
        lab.replicas()
    };
    // 16 percent above the target: more than the default 10, less than the configured 20.
    assert_eq!(after(290).await, 20);
    // 6 percent below the target: more than the configured 5.
    assert_eq!(after(235).await, 19);
    lab.edit(|hpa| {
        hpa.spec.behavior = None;
        hpa.metadata.generation = Some(2);
    });
    assert_eq!(after(290).await, 24);
}

/// Tests KEP-2021.
#[tokio::test(start_paused = true)]
async fn a_workload_is_scaled_to_zero_and_back() {
    let metric = json!({"type": "External", "external": {"metric": {"name": "queue"},
        "target": {"type": "AverageValue", "averageValue": "5"}}});
    let lab = Lab::new(2, json!({"minReplicas": 0, "maxReplicas": 9, "metrics": [metric]})).await;
    lab.queue.store(10, Ordering::SeqCst);
    lab.world.pass(20.0).await;
    assert_eq!(lab.replicas(), 2);
    lab.queue.store(0, Ordering::SeqCst);
    lab.world.pass(400.0).await;
    assert_eq!(lab.replicas(), 0);
    assert_eq!(
        lab.condition("ScaledToZero"),
        ("True".into(), "ScaledToZero".into(), "the HPA controller scaled the workload to zero".into())
    );
    lab.world.pass(60.0).await;
    assert_eq!((lab.replicas(), &*lab.condition("ScalingActive").0), (0, "True"), "it is still evaluated");

    lab.queue.store(12, Ordering::SeqCst);
    lab.world.pass(20.0).await;
    assert_eq!(lab.replicas(), 3);
    assert_eq!(lab.condition("ScaledToZero").1, "NotScaledToZero");

    // A zero that another client set disables autoscaling: it stays.
    lab.world.api.edit::<Deployment>("ns", "web", |d| d.spec.replicas = Some(0));
    lab.world.pass(60.0).await;
    assert_eq!(lab.replicas(), 0);
    assert_eq!(lab.condition("ScalingActive").1, "ScalingDisabled");
}

#[tokio::test(start_paused = true)]
async fn more_pods_that_are_wanted_at_least_end_a_scale_to_zero() {
    let metric = json!({"type": "External", "external": {"metric": {"name": "queue"},
        "target": {"type": "Value", "value": "5"}}});
    let lab = Lab::new(1, json!({"minReplicas": 0, "metrics": [metric]})).await;
    lab.world.pass(400.0).await;
    assert_eq!((lab.replicas(), &*lab.condition("ScaledToZero").0), (0, "True"));
    lab.edit(|hpa| {
        hpa.spec.min_replicas = Some(2);
        hpa.metadata.generation = Some(2);
    });
    lab.world.pass(1.0).await;
    assert_eq!((lab.replicas(), &*lab.condition("ScaledToZero").0), (2, "False"));
}

/// Source: `updateHPA` of `k8s.io/kubernetes/pkg/controller/podautoscaler/horizontal.go`.
#[tokio::test(start_paused = true)]
async fn a_new_generation_is_looked_at_at_once_and_a_new_status_is_not() {
    let lab = Lab::new(2, json!({})).await;
    lab.world.pass(5.0).await;
    assert_eq!(lab.replicas(), 2);
    lab.milli.store(500, Ordering::SeqCst);
    lab.edit(|hpa| hpa.status.as_mut().unwrap().desired_replicas = 7);
    lab.world.pass(5.0).await;
    assert_eq!(lab.replicas(), 2, "not before the period is over");
    lab.edit(|hpa| {
        hpa.spec.min_replicas = Some(2);
        hpa.metadata.generation = Some(2);
    });
    lab.world.pass(1.0).await;
    assert_eq!(lab.replicas(), 4);
    let hpa = lab.world.api.get::<HorizontalPodAutoscaler>("ns", "web").unwrap();
    assert_eq!(hpa.status.unwrap().observed_generation, Some(2));
}
