//! Validation of updates of pods: which fields may change, through the pod itself and through each subresource.

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodSchedulingGate, PodSpec, PodStatus, Toleration,
};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use super::{container, metadata_and_spec, scheduling};
use crate::addresses;
use crate::diff;
use crate::validate;

const CHANGEABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` \
    (allow it to be set to 1 if it was previously negative)";

pub fn update(new: &Pod, old: &Pod) -> ErrorList {
    let mut errors = metadata_and_spec(new);
    let (new_spec, old_spec) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    let path = Path::new("spec");
    for (field, new, old) in [
        ("containers", &new_spec.containers, &old_spec.containers),
        ("initContainers", &inits(&new_spec), &inits(&old_spec)),
    ] {
        if !container_images(&mut errors, &path.child(field), new, old) {
            return errors;
        }
    }
    if !active_deadline(&mut errors, &path.child("activeDeadlineSeconds"), &new_spec, &old_spec) {
        return errors;
    }
    let (new_tolerations, old_tolerations) = (listed(&new_spec.tolerations), listed(&old_spec.tolerations));
    only_added_tolerations(&mut errors, &path.child("tolerations"), new_tolerations, old_tolerations);
    let (new_gates, old_gates) = (listed(&new_spec.scheduling_gates), listed(&old_spec.scheduling_gates));
    only_removed_gates(&mut errors, &path.child("schedulingGates"), new_gates, old_gates);
    let settled = with_changeable_fields_of(&new_spec, &old_spec);
    if !same_spec(&settled, &old_spec) {
        let text = diff::unified(&old_spec, &settled);
        let why = format!("pod updates may not change fields other than {CHANGEABLE}\n{text}");
        errors.push(Error::forbidden(&path, why));
    }
    errors
}

fn listed<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}

fn inits(spec: &PodSpec) -> Vec<Container> {
    spec.init_containers.clone().unwrap_or_default()
}

/// Compares two specs; missing and empty fields are equal.
pub(super) fn same_spec(a: &PodSpec, b: &PodSpec) -> bool {
    a == b || crate::prepare::same(Some(&validate::shown(a)), Some(&validate::shown(b)))
}

/// Validates the images; returns whether the lists have the same length, so that they can be compared.
fn container_images(errors: &mut ErrorList, path: &Path, new: &[Container], old: &[Container]) -> bool {
    if new.len() != old.len() {
        errors.push(Error::forbidden(path, "pod updates may not add or remove containers"));
        return false;
    }
    for (i, container) in new.iter().enumerate() {
        let path = path.index(i);
        validate::required(errors, &path.child("image"), container.image.as_deref().unwrap_or(""));
        container::image_is_trimmed(errors, &path, container.image.as_deref());
    }
    true
}

/// Validates a change of the deadline, which may be set or reduced; returns whether validation can continue.
fn active_deadline(errors: &mut ErrorList, path: &Path, new: &PodSpec, old: &PodSpec) -> bool {
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            let problem = names::inclusive_range_problem(0, i64::from(i32::MAX));
            errors.push(Error::invalid(path, new, problem));
            false
        }
        (Some(new), Some(old)) if old < new => {
            errors.push(Error::invalid(path, new, "must be less than or equal to previous value"));
            false
        }
        (None, Some(_)) => {
            let problem = "must not update from a positive integer to nil value";
            errors.push(Error::invalid(path, serde_json::Value::Null, problem));
            true
        }
        _ => true,
    }
}

fn only_added_tolerations(errors: &mut ErrorList, path: &Path, new: &[Toleration], old: &[Toleration]) {
    let kept = |old: &Toleration| {
        new.iter().any(|n| Toleration { toleration_seconds: n.toleration_seconds, ..old.clone() } == *n)
    };
    if old.iter().all(kept) {
        scheduling::tolerations(errors, path, new);
    } else {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(Error::forbidden(path, why));
    }
}

fn only_removed_gates(
    errors: &mut ErrorList,
    path: &Path,
    new: &[PodSchedulingGate],
    old: &[PodSchedulingGate],
) {
    for (i, gate) in new.iter().enumerate() {
        if !old.iter().any(|o| o.name == gate.name) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name);
            errors.push(Error::forbidden(&path.index(i).child("name"), why));
        }
    }
}

/// Returns the new spec with all mutable fields set to their old values.
fn with_changeable_fields_of(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut settled = new.clone();
    for (container, old) in settled.containers.iter_mut().zip(&old.containers) {
        container.image.clone_from(&old.image);
    }
    for (container, old) in
        settled.init_containers.iter_mut().flatten().zip(old.init_containers.iter().flatten())
    {
        container.image.clone_from(&old.image);
    }
    settled.active_deadline_seconds = old.active_deadline_seconds;
    settled.scheduling_gates.clone_from(&old.scheduling_gates);
    settled.tolerations.clone_from(&old.tolerations);
    if old.termination_grace_period_seconds.is_some_and(|s| s < 0)
        && settled.termination_grace_period_seconds == Some(1)
    {
        settled.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    if old.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        settle_gated(&mut settled, old);
    }
    settled
}

/// Restores the node selection, which may be narrowed while scheduling gates hold the pod back.
fn settle_gated(settled: &mut PodSpec, old: &PodSpec) {
    let kept = |(key, value): (&String, &String)| {
        settled.node_selector.as_ref().and_then(|n| n.get(key)).is_some_and(|v| v == value)
    };
    if old.node_selector.iter().flatten().all(kept) {
        settled.node_selector.clone_from(&old.node_selector);
    }
    let none = |spec: &PodSpec| spec.affinity.as_ref().is_none_or(|a| a.node_affinity.is_none());
    if none(old) && !none(settled) {
        if let Some(affinity) = &mut settled.affinity {
            affinity.node_affinity = None;
        }
        if old.affinity.is_none() && settled.affinity == Some(Default::default()) {
            settled.affinity = None;
        }
    }
}

pub fn ephemeral_containers_update(new: &Pod, old: &Pod) -> ErrorList {
    let mirror =
        old.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"));
    if mirror {
        let why = "static pods do not support ephemeral containers";
        return ErrorList(vec![Error::forbidden(&Path::default(), why)]);
    }
    let mut errors = metadata_and_spec(new);
    let of = |pod: &Pod| pod.spec.clone().unwrap_or_default().ephemeral_containers.unwrap_or_default();
    let path = Path::new("spec").child("ephemeralContainers");
    let new = of(new);
    for old in of(old) {
        match new.iter().find(|c| c.name == old.name) {
            None => {
                let why = format!("existing ephemeral containers {:?} may not be removed\n", old.name);
                errors.push(Error::forbidden(&path, why));
            }
            Some(new) if *new != old => {
                let text = diff::unified(&old, new);
                let why = format!("existing ephemeral containers {:?} may not be changed\n{text}", old.name);
                errors.push(Error::forbidden(&path, why));
            }
            Some(_) => {}
        }
    }
    errors
}

pub fn status_update(new: &Pod, old: &Pod) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status");
    let (no_spec, none) = (PodSpec::default(), PodStatus::default());
    let (status, before) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
    let spec = old.spec.as_ref().unwrap_or(&no_spec);
    for (i, condition) in status.conditions.iter().flatten().enumerate() {
        if !matches!(condition.type_.as_str(), "PodScheduled" | "Ready" | "Initialized") {
            let path = path.child("conditions").index(i).child("Type");
            validate::label_key(&mut errors, &path, &condition.type_);
        }
    }
    let nominated = status.nominated_node_name.as_deref().unwrap_or("");
    if !nominated.is_empty() && status.nominated_node_name != before.nominated_node_name {
        let path = path.child("nominatedNodeName");
        validate::dns_subdomain(&mut errors, &path, nominated);
        if spec.node_name.as_deref().is_some_and(|n| !n.is_empty()) {
            let why = "may not be set on pods that are already bound to a node";
            errors.push(Error::forbidden(&path, why));
        }
    }
    validate::immutable(&mut errors, &path.child("qosClass"), &status.qos_class, &before.qos_class);
    container_states(
        &mut errors,
        &path.child("containerStatuses"),
        listed(&status.container_statuses),
        listed(&before.container_statuses),
        spec,
    );
    for (i, ip) in status.pod_ips.iter().flatten().enumerate() {
        addresses::ip(&mut errors, &path.child("podIPs").index(i), &ip.ip);
    }
    for (i, ip) in status.host_ips.iter().flatten().enumerate() {
        addresses::ip(&mut errors, &path.child("hostIPs").index(i).child("ip"), &ip.ip);
    }
    errors
}

/// Refuses to restart a container that has ended for good.
fn container_states(
    errors: &mut ErrorList,
    path: &Path,
    new: &[ContainerStatus],
    old: &[ContainerStatus],
    spec: &PodSpec,
) {
    for (i, old) in old.iter().enumerate() {
        let Some(ended) = old.state.as_ref().and_then(|s| s.terminated.as_ref()) else { continue };
        let runs_again = |n: &&ContainerStatus| {
            n.name == old.name && n.state.as_ref().is_none_or(|s| s.terminated.is_none())
        };
        let allowed = || {
            spec.containers
                .iter()
                .find(|c| c.name == old.name)
                .is_some_and(|c| may_restart(c, spec, ended.exit_code))
        };
        if new.iter().find(runs_again).is_some() && !allowed() {
            let why = "may not be transitioned to non-terminated state";
            errors.push(Error::forbidden(&path.index(i).child("state"), why));
        }
    }
}

fn may_restart(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    let by_rule = container.restart_policy_rules.iter().flatten().any(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
            listed == (codes.operator == "In")
        })
    });
    let policy = container.restart_policy.as_deref().or(spec.restart_policy.as_deref());
    by_rule
        || match policy.unwrap_or("Always") {
            "Always" => true,
            "OnFailure" => exit_code != 0,
            _ => false,
        }
}
