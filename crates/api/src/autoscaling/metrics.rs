//! Validation of an autoscaler's references, metrics and scaling rules.

use k8s_openapi::api::autoscaling::v2 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use crate::core::pod::validation::container_resource_name;
use crate::validate;

const PERIOD_SECONDS_MAX: i32 = 1800;
const WINDOW_SECONDS_MAX: i32 = 3600;
const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// What a reference's API group must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The old object has the same reference: nothing is checked.
    Any,
    MayBeEmpty,
    Required,
}

pub fn reference(
    errors: &mut ErrorList,
    path: &Path,
    reference: &api::CrossVersionObjectReference,
    group: Group,
) {
    for (field, value) in [("kind", &reference.kind), ("name", &reference.name)] {
        validate::path_segment(errors, &path.child(field), value);
    }
    let version = reference.api_version.as_deref().unwrap_or("");
    if let Some(problem) = version_problem(version, group) {
        errors.push(Error::invalid(&path.child("apiVersion"), version, problem));
    }
}

fn version_problem(version: &str, group: Group) -> Option<String> {
    let of_core = match version.matches('/').count() {
        _ if group == Group::Any => return None,
        0 => true,
        1 => version.starts_with('/'),
        _ => return Some(format!("unexpected GroupVersion string: {version}")),
    };
    (of_core && group == Group::Required).then(|| "apiVersion must specify API group".to_owned())
}

pub fn metrics(
    errors: &mut ErrorList,
    path: &Path,
    spec: &api::HorizontalPodAutoscalerSpec,
    old: Option<&api::HorizontalPodAutoscalerSpec>,
) {
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    let was_invalid = old.into_iter().flat_map(|o| o.metrics.iter().flatten()).any(|m| {
        let object = m.object.as_ref().filter(|_| m.type_ == "Object");
        let version = object.map(|o| o.described_object.api_version.as_deref().unwrap_or(""));
        version.is_some_and(|v| version_problem(v, Group::MayBeEmpty).is_some())
    });
    let group = if was_invalid { Group::Any } else { Group::MayBeEmpty };
    for (i, metric) in metrics.iter().enumerate() {
        self::metric(errors, &path.index(i), metric, group);
    }
    let outside = metrics.iter().any(|m| matches!(m.type_.as_str(), "Object" | "External"));
    if spec.min_replicas == Some(0) && !outside {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(Error::forbidden(path, why));
    }
}

/// A metric source: its field, whether it is set, and its validation.
type Source<'a> = (&'a str, &'a str, bool, &'a dyn Fn(&mut ErrorList, &Path));

fn metric(errors: &mut ErrorList, path: &Path, metric: &api::MetricSpec, group: Group) {
    let kind = metric.type_.as_str();
    let type_path = path.child("type");
    if kind.is_empty() {
        errors.push(Error::required(&type_path, "must specify a metric source type"));
    }
    let known = TYPES.contains(&kind);
    validate::supported_value(errors, &type_path, kind, &TYPES);
    let object = |e: &mut ErrorList, p: &Path| object(e, p, metric.object.as_ref(), group);
    let external = |e: &mut ErrorList, p: &Path| external(e, p, metric.external.as_ref());
    let pods = |e: &mut ErrorList, p: &Path| pods(e, p, metric.pods.as_ref());
    let resource = |e: &mut ErrorList, p: &Path| {
        let Some(source) = &metric.resource else { return };
        resource_name(e, p, &source.name);
        resource_target(e, &p.child("target"), &source.target);
    };
    let container = |e: &mut ErrorList, p: &Path| container(e, p, metric.container_resource.as_ref());
    let sources: [Source<'_>; 5] = [
        ("Object", "object", metric.object.is_some(), &object),
        ("External", "external", metric.external.is_some(), &external),
        ("Pods", "pods", metric.pods.is_some(), &pods),
        ("Resource", "resource", metric.resource.is_some(), &resource),
        ("ContainerResource", "containerResource", metric.container_resource.is_some(), &container),
    ];
    let mut present = sources.iter().filter(|(_, _, set, _)| *set);
    if let Some((_, field, _, check)) = present.next() {
        check(errors, &path.child(field));
    }
    let several = present.next().is_some();
    let expected = sources.iter().find(|(name, ..)| *name == kind);
    match expected {
        Some((_, field, false, _)) => {
            let why = "must populate information for the given metric source";
            errors.push(Error::required(&path.child(field), why));
        }
        None if !known => validate::supported_value(errors, &type_path, kind, &TYPES),
        _ => {}
    }
    if several {
        for (_, field, ..) in sources.iter().filter(|(name, _, set, _)| *set && *name != kind) {
            errors.push(Error::forbidden(&path.child(field), "must populate the given metric source only"));
        }
    }
}

fn object(errors: &mut ErrorList, path: &Path, source: Option<&api::ObjectMetricSource>, group: Group) {
    let Some(source) = source else { return };
    reference(errors, &path.child("describedObject"), &source.described_object, group);
    identifier(errors, &path.child("metric"), &source.metric);
    let at = path.child("target");
    target(errors, &at, &source.target);
    if source.target.value.is_none() && source.target.average_value.is_none() {
        let why = "must set either a target value or averageValue";
        errors.push(Error::required(&at.child("averageValue"), why));
    }
}

fn external(errors: &mut ErrorList, path: &Path, source: Option<&api::ExternalMetricSource>) {
    let Some(source) = source else { return };
    identifier(errors, &path.child("metric"), &source.metric);
    let at = path.child("target");
    target(errors, &at, &source.target);
    match (&source.target.value, &source.target.average_value) {
        (None, None) => {
            let why = "must set either a target value for metric or a per-pod target";
            errors.push(Error::required(&at.child("averageValue"), why));
        }
        (Some(_), Some(_)) => {
            let why = "may not set both a target value for metric and a per-pod target";
            errors.push(Error::forbidden(&at.child("value"), why));
        }
        _ => {}
    }
}

fn pods(errors: &mut ErrorList, path: &Path, source: Option<&api::PodsMetricSource>) {
    let Some(source) = source else { return };
    identifier(errors, &path.child("metric"), &source.metric);
    let at = path.child("target");
    target(errors, &at, &source.target);
    if source.target.average_value.is_none() {
        let why = "must specify a positive target averageValue";
        errors.push(Error::required(&at.child("averageValue"), why));
    }
}

fn resource_name(errors: &mut ErrorList, path: &Path, name: &str) -> bool {
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), "must specify a resource name"));
    }
    !name.is_empty()
}

fn container(errors: &mut ErrorList, path: &Path, source: Option<&api::ContainerResourceMetricSource>) {
    let Some(source) = source else { return };
    if resource_name(errors, path, &source.name) {
        container_resource_name(errors, &path.child("name"), &source.name);
    }
    let at = path.child("container");
    if source.container.is_empty() {
        errors.push(Error::required(&at, "must specify a container"));
    } else {
        validate::dns_label(errors, &at, &source.container);
    }
    resource_target(errors, &path.child("target"), &source.target);
}

fn resource_target(errors: &mut ErrorList, path: &Path, target: &api::MetricTarget) {
    self::target(errors, path, target);
    match (target.average_utilization, &target.average_value) {
        (None, None) => {
            let why = "must set either a target raw value or a target utilization";
            errors.push(Error::required(&path.child("averageUtilization"), why));
        }
        (Some(_), Some(_)) => {
            let why = "may not set both a target raw value and a target utilization";
            errors.push(Error::forbidden(&path.child("averageValue"), why));
        }
        _ => {}
    }
}

fn target(errors: &mut ErrorList, path: &Path, target: &api::MetricTarget) {
    let at = path.child("type");
    if target.type_.is_empty() {
        errors.push(Error::required(&at, "must specify a metric target type"));
    }
    if !matches!(target.type_.as_str(), "Utilization" | "Value" | "AverageValue") {
        let problem = "must be either Utilization, Value, or AverageValue";
        errors.push(Error::invalid(&at, target.type_.as_str(), problem));
    }
    for (field, value) in [("value", &target.value), ("averageValue", &target.average_value)] {
        positive(errors, &path.child(field), value.as_ref());
    }
    if let Some(percent) = target.average_utilization.filter(|p| *p < 1) {
        let path = path.child("averageUtilization");
        errors.push(Error::invalid(&path, percent, "must be greater than 0"));
    }
}

fn positive(errors: &mut ErrorList, path: &Path, value: Option<&Wire>) {
    let Some(quantity) = value.and_then(|v| Quantity::try_from(v).ok()) else { return };
    if quantity.signum() <= 0 {
        errors.push(Error::invalid(path, quantity.to_string(), "must be positive"));
    }
}

fn identifier(errors: &mut ErrorList, path: &Path, identifier: &api::MetricIdentifier) {
    let path = path.child("name");
    if identifier.name.is_empty() {
        errors.push(Error::required(&path, "must specify a metric name"));
    } else {
        validate::problems(errors, &path, &identifier.name, names::path_segment_name(&identifier.name));
    }
}

pub fn rules(errors: &mut ErrorList, path: &Path, rules: Option<&api::HPAScalingRules>) {
    let Some(rules) = rules else { return };
    let at = path.child("stabilizationWindowSeconds");
    match rules.stabilization_window_seconds {
        Some(seconds @ ..0) => {
            errors.push(Error::invalid(&at, seconds, "must be greater than or equal to zero"));
        }
        Some(seconds) if seconds > WINDOW_SECONDS_MAX => {
            let problem = format!("must be less than or equal to {WINDOW_SECONDS_MAX}");
            errors.push(Error::invalid(&at, seconds, problem));
        }
        _ => {}
    }
    if let Some(policy) = rules.select_policy.as_deref() {
        let policies = ["Disabled", "Max", "Min"];
        validate::supported_value(errors, &path.child("selectPolicy"), policy, &policies);
    }
    let at = path.child("policies");
    let policies = rules.policies.as_deref().unwrap_or_default();
    if policies.is_empty() {
        errors.push(Error::required(&at, "must specify at least one Policy"));
    }
    for (i, policy) in policies.iter().enumerate() {
        let path = at.index(i);
        validate::supported_value(errors, &path.child("type"), &policy.type_, &["Percent", "Pods"]);
        validate::positive(errors, &path.child("value"), i64::from(policy.value));
        let at = path.child("periodSeconds");
        validate::positive(errors, &at, i64::from(policy.period_seconds));
        if policy.period_seconds > PERIOD_SECONDS_MAX {
            let problem = format!("must be less than or equal to {PERIOD_SECONDS_MAX}");
            errors.push(Error::invalid(&at, policy.period_seconds, problem));
        }
    }
    let tolerance = rules.tolerance.as_ref().and_then(|t| Quantity::try_from(t).ok());
    if let Some(tolerance) = tolerance.filter(|t| t.signum() < 0) {
        let path = path.child("tolerance");
        errors.push(Error::invalid(&path, tolerance.to_string(), validate::NEGATIVE));
    }
}
