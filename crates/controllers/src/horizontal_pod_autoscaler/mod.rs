//! HorizontalPodAutoscaler: scales workloads to the number of pods that their metrics require, within bounds and
//! rates.

mod evaluate;
mod limits;
mod metrics;
mod replicas;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Result};
use serde_json::Value;

use crate::context::{Context, Descriptor};
use crate::metrics::{self as metric_store, Metric};
use crate::settings::AutoscalerSettings;
use crate::support::discovery::Discovery;
use evaluate::{Failure, Input};
use limits::{History, Rules};
use metrics::Source;
use status::{ABLE, ACTIVE, Draft, LIMITED, ZERO};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "horizontal-pod-autoscaler-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

/// How often a write of the scale is attempted when other clients change it concurrently.
const ATTEMPTS: usize = 5;

struct Controller {
    cx: Arc<Context>,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    queue: Arc<WorkQueue<ObjectKey>>,
    memory: Mutex<BTreeMap<ObjectKey, Memory>>,
}

/// The state kept about an autoscaler.
#[derive(Default)]
struct Memory {
    history: History,
    /// The selector of its target's pods.
    selector: Option<Selector>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let autoscalers = cx.informers.informer::<HorizontalPodAutoscaler>();
    let pods = cx.informers.informer::<Pod>();
    let on_change = Arc::clone(&queue);
    autoscalers.add_handler(move |event| {
        // The controller's own status writes must not requeue the autoscaler at once.
        let own = matches!(event, Event::Updated { old, new } if old.metadata.generation == new.metadata.generation);
        if !own {
            on_change.add(event.object().key());
        }
    });
    let all = autoscalers.lister();
    metric_store::at_scrape("autoscalers", move || {
        metric_store::clear(Metric::HpaDesired);
        let all = all.list();
        metric_store::set(Metric::Hpas, &[], all.len() as f64);
        for (hpa, status) in all.iter().filter_map(|hpa| Some((hpa, hpa.status.as_ref()?))) {
            let labels = [hpa.namespace(), hpa.name()];
            metric_store::set(Metric::HpaDesired, &labels, f64::from(status.desired_replicas));
        }
    });
    if !(autoscalers.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let controller =
        Arc::new(Controller { cx, autoscalers, pods, queue: Arc::clone(&queue), memory: Mutex::default() });
    let reconcile = move |key: ObjectKey| {
        let controller = Arc::clone(&controller);
        async move {
            controller.reconcile(&key).await;
            Ok::<(), knarr_client::Error>(())
        }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// The scale of a target: its address and content.
struct Scale {
    path: String,
    value: Value,
}

impl Scale {
    fn number(&self, pointer: &str) -> i32 {
        let number = self.value.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        i32::try_from(number).unwrap_or(i32::MAX)
    }
}

fn measure(status: &HorizontalPodAutoscalerStatus, is_well: bool, took: Duration) {
    let action = match status.desired_replicas.cmp(&status.current_replicas.unwrap_or(0)) {
        std::cmp::Ordering::Greater => "scale_up",
        std::cmp::Ordering::Less => "scale_down",
        std::cmp::Ordering::Equal => "none",
    };
    let labels = if is_well { [action, "none"] } else { ["none", "internal"] };
    metric_store::add(Metric::HpaReconciliations, &labels, 1.0);
    metric_store::record(Metric::HpaSeconds, &labels, took.as_secs_f64());
}

/// The combined result of all metrics.
struct Wanted {
    /// The number of replicas and the name of the metric that determined it; `None` if nothing can be decided.
    replicas: Option<(i32, String)>,
    /// One status for each metric of the spec, empty if it could not be evaluated.
    statuses: Vec<MetricStatus>,
    /// The error, if any metric failed.
    failure: Option<String>,
}

impl Controller {
    fn settings(&self) -> &AutoscalerSettings {
        &self.cx.settings().autoscaler
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reconciles one autoscaler and requeues it after the sync period, whatever the result.
    async fn reconcile(&self, key: &ObjectKey) {
        let Some(hpa) = self.autoscalers.lister().get_key(key) else {
            self.memory().remove(key);
            return;
        };
        let mut draft = Draft::of(&hpa, self.cx.clock.now());
        let began = self.cx.clock.monotonic();
        let outcome = self.autoscale(key, &hpa, &mut draft).await;
        let took = self.cx.clock.monotonic().saturating_sub(began);
        measure(&draft.status, outcome.is_ok(), took);
        if let Err(why) = outcome {
            tracing::debug!(hpa = %key, why, "the autoscaler did not scale its target");
        }
        if hpa.status.as_ref() != Some(&draft.status) {
            let next = HorizontalPodAutoscaler {
                status: Some(draft.status),
                ..HorizontalPodAutoscaler::clone(&hpa)
            };
            match self.cx.client.update_status(&next).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    self.emit(&hpa, "FailedUpdateStatus", &error.to_string());
                }
                _ => {}
            }
        }
        self.queue.add_after(key.clone(), self.settings().sync_period);
    }

    fn emit(&self, hpa: &HorizontalPodAutoscaler, reason: &str, text: &str) {
        self.cx.recorder.event(hpa, EventType::Warning, reason, text);
    }

    async fn autoscale(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        draft: &mut Draft,
    ) -> Result<(), String> {
        let scale = self.scale(hpa).await.map_err(|why| {
            self.emit(hpa, "FailedGetScale", &why);
            let text = format!("the HPA controller was unable to get the target's current scale: {why}");
            draft.condition(ABLE, false, "FailedGetScale", text);
            why
        })?;
        let text = "the HPA controller was able to get the target's current scale";
        draft.condition(ABLE, true, "SucceededGetScale", text);
        let current = scale.number("/spec/replicas");
        let now = self.cx.clock.now();
        self.memory().entry(key.clone()).or_default().history.begin(now, current);
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        let was_zero = draft.is_scaled_to_zero();
        let mut statuses = Vec::new();
        let mut failure = None;
        let (desired, reason) = if current == 0 && !(was_zero && (min != 0 || counts_without_pods(hpa))) {
            let text = "scaling is disabled since the replica count of the target is zero";
            draft.condition(ACTIVE, false, "ScalingDisabled", text);
            (0, String::new())
        } else if current > max {
            (max, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current != 0 && current < min {
            (min, "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            let wanted = self.evaluate(key, hpa, &scale, draft).await;
            (statuses, failure) = (wanted.statuses, wanted.failure);
            let Some((replicas, metric)) = wanted.replicas else {
                let why = failure.unwrap_or_default();
                draft.numbers(current, None, statuses, false);
                self.emit(hpa, "FailedComputeMetricsReplicas", &why);
                return Err(why);
            };
            self.decide(key, hpa, draft, current, (replicas, &metric))
        };
        let rescale = desired != current;
        if rescale {
            let written = self.rescale(scale, desired).await;
            if let Err(error) = written {
                self.emit(
                    hpa,
                    "FailedRescale",
                    &format!("New size: {desired}; reason: {reason}; error: {error}"),
                );
                let text = format!("the HPA controller was unable to update the target scale: {error}");
                draft.condition(ABLE, false, "FailedUpdateScale", text);
                draft.numbers(current, None, statuses, false);
                return Err(error);
            }
            self.rescaled(key, hpa, draft, (current, desired), &reason);
        }
        draft.numbers(current, Some(desired), statuses, rescale);
        failure.map_or(Ok(()), Err)
    }

    /// Decides on the number of replicas to set now, with the reason.
    fn decide(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        draft: &mut Draft,
        current: i32,
        (wanted, metric): (i32, &str),
    ) -> (i32, String) {
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        let mut reason = match wanted.cmp(&current) {
            std::cmp::Ordering::Greater => format!("{metric} above target"),
            std::cmp::Ordering::Less => "All metrics below target".to_owned(),
            std::cmp::Ordering::Equal => String::new(),
        };
        let window = self.settings().downscale_stabilization;
        let rules = hpa.spec.behavior.as_ref().map(|b| Rules::of(b, window));
        let now = self.cx.clock.now();
        let limited = {
            let mut memory = self.memory();
            let history = &mut memory.entry(key.clone()).or_default().history;
            limits::limit(history, rules.as_ref(), window, now, current, wanted, (min, max))
        };
        draft.condition(ABLE, true, limited.able.0, limited.able.1);
        let (is_limited, why) = limited.limit;
        draft.condition(LIMITED, is_limited, why.0, why.1);
        let mut desired = limited.replicas;
        if current == 0 && min != 0 && desired < min {
            desired = min;
            if reason.is_empty() {
                reason = "Current number of replicas below Spec.MinReplicas".to_owned();
            }
        }
        (desired, reason)
    }

    fn rescaled(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        draft: &mut Draft,
        (from, to): (i32, i32),
        reason: &str,
    ) {
        let text = format!("the HPA controller was able to update the target scale to {to}");
        draft.condition(ABLE, true, "SucceededRescale", text);
        let text = format!("New size: {to}; reason: {reason}");
        self.cx.recorder.event(hpa, EventType::Normal, "SuccessfulRescale", text);
        if let Some(behavior) = &hpa.spec.behavior {
            let now = self.cx.clock.now();
            let rules = Rules::of(behavior, self.settings().downscale_stabilization);
            let mut memory = self.memory();
            memory.entry(key.clone()).or_default().history.changed(now, &rules, from, to);
        }
        if from > 0 && to == 0 && hpa.spec.min_replicas == Some(0) && counts_without_pods(hpa) {
            draft.condition(ZERO, true, "ScaledToZero", "the HPA controller scaled the workload to zero");
        } else {
            let text = "the HPA controller did not scale the workload to zero";
            draft.condition(ZERO, false, "NotScaledToZero", text);
        }
    }

    /// Evaluates all metrics: the highest number wins, unless a failed metric might have required more.
    async fn evaluate(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        scale: &Scale,
        draft: &mut Draft,
    ) -> Wanted {
        let text = scale.value.pointer("/status/selector").and_then(Value::as_str).unwrap_or("");
        let pods = match self.pods_of(key, hpa, text, draft) {
            Ok(pods) => pods,
            Err(why) => return Wanted { replicas: None, statuses: Vec::new(), failure: Some(why) },
        };
        let input = Input {
            settings: self.settings(),
            source: Source { client: &self.cx.client, namespace: hpa.namespace() },
            hpa,
            selector: text,
            pods: &pods,
            current: scale.number("/spec/replicas"),
            observed: scale.number("/status/replicas"),
            now: self.cx.clock.now(),
        };
        let specs = hpa.spec.metrics.as_deref().unwrap_or_default();
        let (mut greatest, mut statuses) = ((0, String::new()), Vec::new());
        let mut failures: Vec<Failure> = Vec::new();
        for spec in specs {
            match input.metric(spec).await {
                Ok(found) => {
                    if greatest.0 == 0 || found.proposal.replicas > greatest.0 {
                        greatest = (found.proposal.replicas, found.name);
                    }
                    statuses.push(found.status);
                }
                Err(failure) => {
                    self.emit(hpa, failure.reason, &failure.inner);
                    failures.push(failure);
                    // An empty entry keeps the positions of the others.
                    statuses.push(MetricStatus::default());
                }
            }
        }
        let failure = failures.first().map(|first| {
            let (bad, all) = (failures.len(), specs.len());
            format!("invalid metrics ({bad} invalid out of {all}), first error is: {}", first.outer)
        });
        if let Some(first) = failures.first()
            && (failures.len() >= specs.len() || greatest.0 < input.current)
        {
            let text = format!("the HPA was unable to compute the replica count: {}", first.inner);
            draft.condition(ACTIVE, false, first.reason, text);
            return Wanted { replicas: None, statuses, failure };
        }
        let text = format!("the HPA was able to successfully calculate a replica count from {}", greatest.1);
        draft.condition(ACTIVE, true, "ValidMetricFound", text);
        Wanted { replicas: Some(greatest), statuses, failure }
    }

    /// Returns the target's pods, which no other autoscaler may control.
    fn pods_of(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        selector: &str,
        draft: &mut Draft,
    ) -> Result<Vec<Arc<Pod>>, String> {
        if selector.is_empty() {
            self.emit(hpa, "SelectorRequired", "selector is required");
            let text = "the HPA target's scale is missing a selector";
            draft.condition(ACTIVE, false, "InvalidSelector", text);
            return Err("selector is required".to_owned());
        }
        let parsed = Selector::parse(selector).map_err(|error| {
            let why =
                format!("couldn't convert selector into a corresponding internal selector object: {error}");
            self.emit(hpa, "InvalidSelector", &why);
            draft.condition(ACTIVE, false, "InvalidSelector", why.clone());
            why
        })?;
        let pods = self.pods.lister().select(hpa.namespace(), &parsed);
        let mut memory = self.memory();
        memory.entry(key.clone()).or_default().selector = Some(parsed);
        let selects = |memory: &Memory| {
            let has = |s: &Selector| pods.iter().any(|p| s.matches_optional(p.metadata.labels.as_ref()));
            memory.selector.as_ref().is_some_and(has)
        };
        let of_namespace = memory.iter().filter(|(k, _)| k.namespace == key.namespace);
        let selecting: Vec<&ObjectKey> = of_namespace.filter(|(_, m)| selects(m)).map(|(k, _)| k).collect();
        if selecting.len() > 1 {
            let shown: Vec<String> =
                selecting.iter().take(2).map(|k| format!("{}/{}", k.namespace, k.name)).collect();
            let why = format!(
                "pods by selector {selector} are controlled by more than one HPA (e.g. [{}])",
                shown.join(" ")
            );
            drop(memory);
            self.emit(hpa, "AmbiguousSelector", &why);
            draft.condition(ACTIVE, false, "AmbiguousSelector", why.clone());
            return Err(why);
        }
        Ok(pods)
    }

    async fn scale(&self, hpa: &HorizontalPodAutoscaler) -> Result<Scale, String> {
        let target = &hpa.spec.scale_target_ref;
        let version = target.api_version.as_deref().unwrap_or("");
        let known = match (version, target.kind.as_str()) {
            ("apps/v1", "Deployment") => Some("deployments"),
            ("apps/v1", "ReplicaSet") => Some("replicasets"),
            ("apps/v1", "StatefulSet") => Some("statefulsets"),
            _ => None,
        };
        let (namespace, name) = (hpa.namespace(), &target.name);
        let path = match known {
            Some(plural) => format!("/apis/apps/v1/namespaces/{namespace}/{plural}/{name}/scale"),
            None => {
                let discovery = Discovery::fetch(&self.cx.client).await.map_err(|e| e.to_string())?;
                let group = version.rsplit_once('/').map_or("", |(group, _)| group);
                let found = discovery
                    .of_kind(version, &target.kind)
                    .ok_or_else(|| format!("no matches for kind {:?} in group {group:?}", target.kind))?;
                format!("{}/scale", found.path(Some(namespace), Some(name)))
            }
        };
        let value = self.read(&path).await.map_err(|e| e.to_string())?;
        Ok(Scale { path, value })
    }

    async fn read(&self, path: &str) -> Result<Value> {
        let body = self.cx.client.call(Method::GET, path.to_owned(), None, Bytes::new()).await?;
        serde_json::from_slice(&body)
            .map_err(|e| knarr_client::Error::Protocol(format!("invalid Scale: {e}")))
    }

    async fn rescale(&self, mut scale: Scale, replicas: i32) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            scale.value["spec"]["replicas"] = replicas.into();
            let body = Bytes::from(scale.value.to_string());
            let path = scale.path.clone();
            match self.cx.client.call(Method::PUT, path, Some("application/json"), body).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => last = error.to_string(),
                Err(error) => return Err(error.to_string()),
            }
            scale.value = self.read(&scale.path).await.map_err(|e| e.to_string())?;
        }
        Err(last)
    }
}

/// Returns whether some metric can be evaluated without pods.
fn counts_without_pods(hpa: &HorizontalPodAutoscaler) -> bool {
    hpa.spec.metrics.iter().flatten().any(|m| matches!(m.type_.as_str(), "Object" | "External"))
}
