//! Evaluates every metric of an autoscaler; the highest number of replicas wins.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscaler, MetricIdentifier,
    MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus,
    ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::quantity::{Format, Quantity};

use super::metrics::Source;
use super::replicas::{self, Proposal, Scene, Tolerances};
use crate::settings::AutoscalerSettings;

/// Why a metric could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reason of the event and the condition, such as `FailedGetResourceMetric`.
    pub reason: &'static str,
    /// The text in the condition and the event.
    pub inner: String,
    /// The text in the error of the whole evaluation.
    pub outer: String,
}

/// One metric that was evaluated.
pub struct Found {
    pub proposal: Proposal,
    /// The metric's description, such as `cpu resource utilization (percentage of request)`.
    pub name: String,
    pub status: MetricStatus,
}

/// The inputs to the evaluation of all metrics of an autoscaler.
pub struct Input<'a> {
    pub source: Source<'a>,
    pub hpa: &'a HorizontalPodAutoscaler,
    pub selector: &'a str,
    pub pods: &'a [Arc<Pod>],
    pub current: i32,
    pub observed: i32,
    pub settings: &'a AutoscalerSettings,
    pub now: Timestamp,
}

fn parsed(quantity: Option<&ApiQuantity>) -> Option<i64> {
    Quantity::parse(&quantity?.0).ok().map(|q| q.milli_value())
}

fn tolerances(hpa: &HorizontalPodAutoscaler, usual: f64) -> Tolerances {
    let behavior = hpa.spec.behavior.as_ref();
    let given = |q: Option<&ApiQuantity>| q.and_then(|q| Quantity::parse(&q.0).ok()).map(|q| q.as_f64());
    let up = given(behavior.and_then(|b| b.scale_up.as_ref()?.tolerance.as_ref()));
    let down = given(behavior.and_then(|b| b.scale_down.as_ref()?.tolerance.as_ref()));
    Tolerances { down: down.unwrap_or(usual), up: up.unwrap_or(usual) }
}

fn quantity(resource: &str, milli: i64) -> ApiQuantity {
    let format = if resource == "memory" { Format::BinarySI } else { Format::DecimalSI };
    Quantity::from_milli(milli, format).to_api()
}

fn status(type_: &str) -> MetricStatus {
    MetricStatus { type_: type_.to_owned(), ..MetricStatus::default() }
}

impl Input<'_> {
    fn scene(&self) -> Scene<'_> {
        Scene {
            pods: self.pods,
            current: self.current,
            observed: self.observed,
            tolerances: tolerances(self.hpa, self.settings.tolerance),
            settings: self.settings,
            now: self.now,
        }
    }

    /// Evaluates one metric of the spec.
    pub async fn metric(&self, spec: &MetricSpec) -> Result<Found, Failure> {
        match spec.type_.as_str() {
            "Resource" => self.resource(spec).await,
            "ContainerResource" => self.container_resource(spec).await,
            "Pods" => self.of_pods(spec).await,
            "Object" => self.object(spec).await,
            "External" => self.external(spec).await,
            other => {
                let why = format!("unknown metric source type {other:?}");
                Err(Failure { reason: "InvalidMetricSourceType", inner: why.clone(), outer: why })
            }
        }
    }

    async fn use_of(
        &self,
        resource: &str,
        container: &str,
        target: &MetricTarget,
    ) -> Result<(Proposal, MetricValueStatus, bool), String> {
        let fetched = async || {
            let found = self.source.resource(resource, container, self.selector).await;
            found.map_err(|e| format!("unable to get metrics for resource {resource}: {e}"))
        };
        if let Some(value) = parsed(target.average_value.as_ref()) {
            let usage = |e: String| format!("failed to get {resource} usage: {e}");
            let metrics = fetched().await.map_err(usage)?;
            let proposal = replicas::by_value(&self.scene(), metrics, resource, value).map_err(usage)?;
            let average_value = Some(quantity(resource, proposal.usage));
            return Ok((
                proposal,
                MetricValueStatus { average_value, ..MetricValueStatus::default() },
                false,
            ));
        }
        let Some(percent) = target.average_utilization else {
            let why = "invalid resource metric source: neither an average utilization target nor an average value \
                       (usage) target was set";
            return Err(why.to_owned());
        };
        let utilization = |e: String| format!("failed to get {resource} utilization: {e}");
        let metrics = fetched().await.map_err(utilization)?;
        let proposal = replicas::by_utilization(&self.scene(), metrics, resource, container, percent);
        let proposal = proposal.map_err(utilization)?;
        let current = MetricValueStatus {
            average_utilization: proposal.utilization,
            average_value: Some(quantity(resource, proposal.usage)),
            value: None,
        };
        Ok((proposal, current, true))
    }

    async fn resource(&self, spec: &MetricSpec) -> Result<Found, Failure> {
        let source = spec.resource.clone().unwrap_or_default();
        let resource = source.name.as_str();
        let (proposal, current, utilization) =
            self.use_of(resource, "", &source.target).await.map_err(|inner| Failure {
                reason: "FailedGetResourceMetric",
                outer: format!("failed to get {resource} resource metric value: {inner}"),
                inner,
            })?;
        let what = if utilization { "resource utilization (percentage of request)" } else { "resource" };
        let name = format!("{resource} {what}");
        let found = ResourceMetricStatus { current, name: source.name.clone() };
        Ok(Found { proposal, name, status: MetricStatus { resource: Some(found), ..status("Resource") } })
    }

    async fn container_resource(&self, spec: &MetricSpec) -> Result<Found, Failure> {
        let source = spec.container_resource.clone().unwrap_or_default();
        let (resource, container) = (source.name.as_str(), source.container.as_str());
        let (proposal, current, utilization) =
            self.use_of(resource, container, &source.target).await.map_err(|inner| Failure {
                reason: "FailedGetContainerResourceMetric",
                outer: format!("failed to get {container} container metric value: {inner}"),
                inner,
            })?;
        let what =
            if utilization { "container resource utilization (percentage of request)" } else { "resource" };
        let name = format!("{resource} {what}");
        let found = ContainerResourceMetricStatus {
            container: source.container.clone(),
            current,
            name: source.name.clone(),
        };
        let status = MetricStatus { container_resource: Some(found), ..status("ContainerResource") };
        Ok(Found { proposal, name, status })
    }

    async fn of_pods(&self, spec: &MetricSpec) -> Result<Found, Failure> {
        let source = spec.pods.clone().unwrap_or_default();
        let metric = &source.metric;
        let failed = |inner: String| Failure {
            reason: "FailedGetPodsMetric",
            outer: format!("failed to get pods metric value: {inner}"),
            inner,
        };
        let target = parsed(source.target.average_value.as_ref()).unwrap_or(0);
        let fetched = self.source.pods(metric, self.selector).await;
        let metrics = fetched.map_err(|e| failed(format!("unable to get metric {}: {e}", metric.name)))?;
        let proposal = replicas::by_value(&self.scene(), metrics, "", target).map_err(failed)?;
        let average_value = Some(quantity("", proposal.usage));
        let current = MetricValueStatus { average_value, ..MetricValueStatus::default() };
        let name = format!("pods metric {}", metric.name);
        let found = PodsMetricStatus { current, metric: metric.clone() };
        Ok(Found { proposal, name, status: MetricStatus { pods: Some(found), ..status("Pods") } })
    }

    async fn object(&self, spec: &MetricSpec) -> Result<Found, Failure> {
        let source = spec.object.clone().unwrap_or_default();
        let (metric, of) = (&source.metric, &source.described_object);
        let failed = |inner: String| Failure {
            reason: "FailedGetObjectMetric",
            outer: format!("failed to get object metric value: {inner}"),
            inner,
        };
        let value = parsed(source.target.value.as_ref()).filter(|_| source.target.type_ == "Value");
        let average = parsed(source.target.average_value.as_ref());
        if value.or(average).is_none() {
            let why =
                "invalid object metric source: neither a value target nor an average value target was set";
            return Err(failed(why.to_owned()));
        }
        let usage = self.source.object(metric, of).await.map_err(|e| {
            let (kind, namespace, name) = (&of.kind, self.source.namespace, &of.name);
            let why = format!("unable to get metric {} on {kind} {namespace}/{name}: {e}", metric.name);
            match value {
                Some(_) => failed(why),
                None => Failure {
                    outer: format!(
                        "failed to get object metric value: failed to get {} object metric: {why}",
                        metric.name
                    ),
                    ..failed(why)
                },
            }
        })?;
        let (proposal, current, name) = self.total_or_share(usage, value, average, metric).map_err(failed)?;
        let name = name.unwrap_or_else(|| format!("{} metric {}", of.kind, metric.name));
        let found = ObjectMetricStatus { current, described_object: of.clone(), metric: metric.clone() };
        Ok(Found { proposal, name, status: MetricStatus { object: Some(found), ..status("Object") } })
    }

    async fn external(&self, spec: &MetricSpec) -> Result<Found, Failure> {
        let source = spec.external.clone().unwrap_or_default();
        let metric = &source.metric;
        let name = &metric.name;
        let average = parsed(source.target.average_value.as_ref());
        let value = parsed(source.target.value.as_ref()).filter(|_| average.is_none());
        let failed = |inner: String| {
            let middle = match (average, value) {
                (Some(_), _) => format!("failed to get {name} external metric: {inner}"),
                (None, Some(_)) => format!("failed to get external metric {name}: {inner}"),
                (None, None) => inner.clone(),
            };
            let outer = format!("failed to get {name} external metric value: {middle}");
            Failure { reason: "FailedGetExternalMetric", inner, outer }
        };
        if value.or(average).is_none() {
            let why =
                "invalid external metric source: neither a value target nor an average value target was set";
            return Err(failed(why.to_owned()));
        }
        let usage = self.source.external(metric).await.map_err(|e| {
            let (namespace, selector) = (self.source.namespace, shown_selector(metric));
            failed(format!("unable to get external metric {namespace}/{name}/{selector}: {e}"))
        })?;
        let (proposal, current, _) = self.total_or_share(usage, value, average, metric).map_err(failed)?;
        let shown = format!("external metric {name}({})", shown_selector(metric));
        let found = ExternalMetricStatus { current, metric: metric.clone() };
        let status = MetricStatus { external: Some(found), ..status("External") };
        Ok(Found { proposal, name: shown, status })
    }

    /// Evaluates one value for all pods, against a total or a per-pod target.
    fn total_or_share(
        &self,
        usage: i64,
        value: Option<i64>,
        average: Option<i64>,
        metric: &MetricIdentifier,
    ) -> Result<(Proposal, MetricValueStatus, Option<String>), String> {
        if let Some(target) = value {
            let proposal = replicas::by_total(&self.scene(), usage, target)?;
            let value = Some(quantity("", proposal.usage));
            return Ok((proposal, MetricValueStatus { value, ..MetricValueStatus::default() }, None));
        }
        let proposal = replicas::by_share(&self.scene(), usage, average.unwrap_or(0));
        let average_value = Some(quantity("", proposal.usage));
        let name = format!("external metric {}({})", metric.name, shown_selector(metric));
        Ok((proposal, MetricValueStatus { average_value, ..MetricValueStatus::default() }, Some(name)))
    }
}

/// Prints the selector as Go prints a pointer to a label selector.
fn shown_selector(metric: &MetricIdentifier) -> String {
    let Some(selector) = &metric.selector else { return "nil".to_owned() };
    let labels = selector.match_labels.iter().flatten();
    let labels: Vec<String> = labels.map(|(k, v)| format!("{k}: {v},")).collect();
    let expressions = selector.match_expressions.iter().flatten().map(|e| {
        let values = e.values.clone().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}}", e.key, e.operator)
    });
    let expressions: Vec<String> = expressions.map(|e| format!("{e},")).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.join(""),
        expressions.join("")
    )
}
