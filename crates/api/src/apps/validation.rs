//! Rules that the workloads share: selectors, templates, replica counts in status.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::selector::Selector;
use serde_json::Value;

use crate::core::pod::validation as pod;
use crate::object::Object;
use crate::validate;

/// Returns whether the JSON has `spec.selector`; the typed view always has one.
pub fn has_selector(object: &Object) -> bool {
    let value: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
    value.pointer("/spec/selector").is_some_and(|s| !s.is_null())
}

/// Requires a valid selector that is not empty. `kind` is upstream's word for the workload.
pub fn selector(errors: &mut ErrorList, object: &Object, selector: &LabelSelector, kind: &str) {
    let path = Path::new("spec").child("selector");
    if !has_selector(object) {
        errors.push(Error::required(&path, ""));
        return;
    }
    validate::label_selector(errors, &path, Some(selector));
    if validate::is_empty_selector(selector) {
        errors.push(validate::invalid_text(
            &path,
            &validate::selector_text(selector),
            &format!("empty selector is invalid for {kind}"),
        ));
    }
}

/// Requires that a workload's selector does not change.
pub fn selector_stays(errors: &mut ErrorList, object: &Object, new: &LabelSelector, old: &LabelSelector) {
    if new != old {
        let text = if has_selector(object) { validate::selector_text(new) } else { "null".to_owned() };
        let path = Path::new("spec").child("selector");
        errors.push(validate::invalid_text(&path, &text, validate::IMMUTABLE));
    }
}

/// Validates the template of a workload whose pods run forever.
pub fn template(
    errors: &mut ErrorList,
    object: &Object,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    kind: &str,
    bad_selector: &str,
) {
    let path = Path::new("spec").child("template");
    // A missing selector selects nothing.
    let selector = Some(selector).filter(|_| has_selector(object));
    match Selector::from_label_selector(selector) {
        Err(_) => {
            let path = Path::new("spec").child("selector");
            let selector = selector.cloned().unwrap_or_default();
            errors.push(validate::invalid_text(&path, &validate::selector_text(&selector), bad_selector));
            return;
        }
        Ok(selector) if selector.is_everything() => {}
        Ok(selector) => {
            let labels = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
            let path = path.child("metadata").child("labels");
            validate::template_is_selected(errors, &path, &selector, labels);
        }
    }
    pod::template(errors, &path, template);
    runs_for_ever(errors, template, kind);
}

/// Requires that pods always restart and have no deadline.
pub fn runs_for_ever(errors: &mut ErrorList, template: &PodTemplateSpec, kind: &str) {
    let path = Path::new("spec").child("template").child("spec");
    let Some(spec) = &template.spec else { return };
    let policy = spec.restart_policy.as_deref().unwrap_or("");
    validate::supported_value(errors, &path.child("restartPolicy"), policy, &["Always"]);
    if spec.active_deadline_seconds.is_some() {
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(Error::forbidden(&path.child("activeDeadlineSeconds"), why));
    }
}

/// Requires that no count is negative, and that the counts of the second list are at most `replicas`.
pub fn counts(
    errors: &mut ErrorList,
    replicas: i32,
    all: &[(&str, Option<i32>)],
    parts: &[(&str, Option<i32>)],
) {
    let path = Path::new("status");
    for (field, count) in all.iter().chain(parts) {
        validate::nonnegative(errors, &path.child(field), i64::from(count.unwrap_or(0)));
    }
    for (field, count) in parts {
        let count = count.unwrap_or(0);
        if count > replicas {
            let problem = "cannot be greater than status.replicas";
            errors.push(Error::invalid(&path.child(field), count, problem));
        }
    }
}

/// Requires that at most the ready pods are available.
pub fn available(errors: &mut ErrorList, available: Option<i32>, ready: Option<i32>) {
    let available = available.unwrap_or(0);
    if available > ready.unwrap_or(0) {
        let path = Path::new("status").child("availableReplicas");
        errors.push(Error::invalid(&path, available, "cannot be greater than readyReplicas"));
    }
}

/// Requires that the count of name collisions does not decrease.
pub fn collisions(errors: &mut ErrorList, new: Option<i32>, old: Option<i32>) {
    let path = Path::new("status").child("collisionCount");
    if let Some(new) = new {
        validate::nonnegative(errors, &path, i64::from(new));
    }
    if old.is_some_and(|old| new.unwrap_or(0) < old) {
        errors.push(Error::invalid(&path, new.unwrap_or(0), "cannot be decremented"));
    }
}

/// Returns warnings about `spec.template`.
pub fn template_warnings(template: &PodTemplateSpec) -> Vec<String> {
    crate::core::pod::template_warnings(&Path::new("spec").child("template"), template)
}

/// Returns warnings about a new or changed workload; `named` if its name becomes part of its pods' names.
pub fn warnings(
    new: &Object,
    old: Option<&Object>,
    template: Option<&PodTemplateSpec>,
    named: bool,
) -> Vec<String> {
    let generation = |o: &Object| o.metadata().ok().and_then(|m| m.generation);
    let mut warnings = Vec::new();
    match old {
        None if named => warnings.extend(crate::batch::name_warning(new.name())),
        Some(old) if generation(old) == generation(new) => return warnings,
        _ => {}
    }
    warnings.extend(template.map(template_warnings).unwrap_or_default());
    warnings
}
