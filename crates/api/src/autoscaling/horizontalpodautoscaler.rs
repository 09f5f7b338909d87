//! HorizontalPodAutoscaler: scales a workload with its load.

use k8s_openapi::api::autoscaling::v2 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use super::metrics;
use crate::defaults::{Fields, child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["hpa"],
    categories: &["all"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::HorizontalPodAutoscaler::RESOURCE,
        "HorizontalPodAutoscalerList",
        "horizontalpodautoscaler",
        &Rules,
    )
};

pub const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Reference", "string", "The scaled resource."),
    Column::new("Targets", "string", "The current and target values of the metrics."),
    Column::new("MinPods", "string", "The lower limit for the number of pods."),
    Column::new("MaxPods", "string", "The upper limit for the number of pods."),
    Column::new("Replicas", "string", "The current number of pods."),
    AGE,
];

pub fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::HorizontalPodAutoscaler>().unwrap_or_default();
    let (spec, status) = (&o.spec, o.status.clone().unwrap_or_default());
    let target = &spec.scale_target_ref;
    let current = status.current_metrics.unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(format!("{}/{}", target.kind, target.name)),
        Value::from(targets(spec.metrics.as_deref().unwrap_or_default(), &current)),
        Value::from(spec.min_replicas.map_or("<unset>".to_owned(), |n| n.to_string())),
        Value::from(spec.max_replicas),
        table::count(status.current_replicas),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// Returns the TARGETS cell: `cpu: 30%/80%, 4/10 + 1 more...`.
fn targets(metrics: &[api::MetricSpec], current: &[api::MetricStatus]) -> String {
    const SHOWN: usize = 2;
    if metrics.is_empty() {
        return "<none>".to_owned();
    }
    let shown: Vec<String> =
        metrics.iter().enumerate().take(SHOWN).map(|(i, m)| metric(m, current.get(i))).collect();
    let more = metrics.len().saturating_sub(SHOWN);
    let text = shown.join(", ");
    if more > 0 { format!("{text} + {more} more...") } else { text }
}

fn metric(spec: &api::MetricSpec, status: Option<&api::MetricStatus>) -> String {
    let amount = |q: Option<&Quantity>| q.map_or("<nil>".to_owned(), |q| q.0.clone());
    let unknown = || "<unknown>".to_owned();
    // A total value, or an average per pod.
    let either =
        |target: &api::MetricTarget, now: Option<&api::MetricValueStatus>| match &target.average_value {
            Some(wanted) => {
                let now = now.and_then(|n| n.average_value.as_ref()).map_or_else(unknown, |q| q.0.clone());
                format!("{now}/{} (avg)", wanted.0)
            }
            None => {
                let now = now.map_or_else(unknown, |n| amount(n.value.as_ref()));
                format!("{now}/{}", amount(target.value.as_ref()))
            }
        };
    let resource = |name: &str, target: &api::MetricTarget, now: Option<&api::MetricValueStatus>| {
        if let Some(wanted) = &target.average_value {
            let now = now.map_or_else(unknown, |n| amount(n.average_value.as_ref()));
            return format!("{name}: {now}/{}", wanted.0);
        }
        let percent = |p: Option<i32>, none: &str| p.map_or(none.to_owned(), |p| format!("{p}%"));
        let now = percent(now.and_then(|n| n.average_utilization), "<unknown>");
        format!("{name}: {now}/{}", percent(target.average_utilization, "<auto>"))
    };
    match (spec.type_.as_str(), spec) {
        ("External", api::MetricSpec { external: Some(m), .. }) => {
            either(&m.target, status.and_then(|s| s.external.as_ref()).map(|s| &s.current))
        }
        ("Object", api::MetricSpec { object: Some(m), .. }) => {
            either(&m.target, status.and_then(|s| s.object.as_ref()).map(|s| &s.current))
        }
        ("Pods", api::MetricSpec { pods: Some(m), .. }) => {
            let now = status.and_then(|s| s.pods.as_ref());
            let now = now.map_or_else(unknown, |s| amount(s.current.average_value.as_ref()));
            format!("{now}/{}", amount(m.target.average_value.as_ref()))
        }
        ("Resource", api::MetricSpec { resource: Some(m), .. }) => {
            resource(&m.name, &m.target, status.and_then(|s| s.resource.as_ref()).map(|s| &s.current))
        }
        ("ContainerResource", api::MetricSpec { container_resource: Some(m), .. }) => resource(
            &m.name,
            &m.target,
            status.and_then(|s| s.container_resource.as_ref()).map(|s| &s.current),
        ),
        _ => "<unknown type>".to_owned(),
    }
}

pub(super) struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        drop_other_forms(object);
        let spec = child(prepare::object(object), "spec");
        unset(spec, "minReplicas", 1);
        if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("metrics".to_owned(), json!([cpu_utilization(DEFAULT_CPU_UTILIZATION)]));
        }
        if let Some(behavior) = existing(spec, "behavior") {
            default_rules(
                child(behavior, "scaleUp"),
                Some(0),
                json!([
                    {"type": "Pods", "value": 4, "periodSeconds": 15},
                    {"type": "Percent", "value": 100, "periodSeconds": 15},
                ]),
            );
            let policies = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
            default_rules(child(behavior, "scaleDown"), None, policies);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let hpa = object.typed::<api::HorizontalPodAutoscaler>();
        hpa.map(|hpa| validate_spec(&hpa, None)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) =
            (new.typed::<api::HorizontalPodAutoscaler>(), old.typed::<api::HorizontalPodAutoscaler>())
        else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => validate_status(&new),
            _ => validate_spec(&new, Some(&old)),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// The default target, in per cent of the requested CPU.
pub const DEFAULT_CPU_UTILIZATION: i64 = 80;

/// Returns the metric that `v1` supports: the utilization of the requested CPU.
pub fn cpu_utilization(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

fn default_rules(rules: &mut Fields, window: Option<i64>, policies: Value) {
    if let Some(window) = window {
        unset(rules, "stabilizationWindowSeconds", window);
    }
    unset(rules, "selectPolicy", "Max");
    unset(rules, "policies", policies);
}

/// Annotations in which `v1` carries what it has no fields for.
pub const OF_OTHER_FORMS: [&str; 6] = [
    "autoscaling.alpha.kubernetes.io/metrics",
    "autoscaling.alpha.kubernetes.io/behavior",
    "autoscaling.alpha.kubernetes.io/scale-down-tolerance",
    "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
    "autoscaling.alpha.kubernetes.io/current-metrics",
    "autoscaling.alpha.kubernetes.io/conditions",
];

/// Removes these annotations, which have no meaning in this form.
pub fn drop_other_forms(object: &mut Value) {
    if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !OF_OTHER_FORMS.contains(&key.as_str()));
    }
}

fn validate_spec(
    hpa: &api::HorizontalPodAutoscaler,
    old: Option<&api::HorizontalPodAutoscaler>,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &hpa.spec;
    let path = Path::new("spec");
    if let Some(least) = spec.min_replicas {
        validate::nonnegative(&mut errors, &path.child("minReplicas"), i64::from(least));
    }
    let at = path.child("maxReplicas");
    match spec.max_replicas {
        0 => errors.push(Error::required(&at, "")),
        most @ ..0 => errors.push(Error::invalid(&at, most, "must be greater than or equal to 1")),
        _ => {}
    }
    if spec.min_replicas.is_some_and(|least| spec.max_replicas < least) {
        let problem = "must be greater than or equal to `minReplicas`";
        errors.push(Error::invalid(&at, spec.max_replicas, problem));
    }
    let old = old.map(|o| &o.spec);
    let target = &spec.scale_target_ref;
    let known = old.is_some_and(|o| {
        o.scale_target_ref.api_version == target.api_version && o.scale_target_ref.kind == target.kind
    });
    let group = match (known, target.kind.as_str()) {
        (true, _) => metrics::Group::Any,
        (false, "ReplicationController") => metrics::Group::MayBeEmpty,
        (false, _) => metrics::Group::Required,
    };
    metrics::reference(&mut errors, &path.child("scaleTargetRef"), target, group);
    metrics::metrics(&mut errors, &path.child("metrics"), spec, old);
    if let Some(behavior) = &spec.behavior {
        let path = path.child("behavior");
        metrics::rules(&mut errors, &path.child("scaleUp"), behavior.scale_up.as_ref());
        metrics::rules(&mut errors, &path.child("scaleDown"), behavior.scale_down.as_ref());
    }
    errors
}

fn validate_status(hpa: &api::HorizontalPodAutoscaler) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = hpa.status.clone().unwrap_or_default();
    let path = Path::new("status");
    for (i, condition) in status.conditions.iter().flatten().enumerate() {
        let path = path.child("conditions").index(i).child("observedGeneration");
        validate::nonnegative(&mut errors, &path, condition.observed_generation.unwrap_or(0));
    }
    for (field, count) in [
        ("currentReplicas", status.current_replicas.unwrap_or(0)),
        ("desiredReplicas", status.desired_replicas),
    ] {
        validate::nonnegative(&mut errors, &path.child(field), i64::from(count));
    }
    errors
}
