//! What pod groups and the group templates of a Workload have in common.

use k8s_openapi::api::scheduling::v1beta1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::validate;

const PRIORITY_MAX: i32 = 1_000_000_000;

/// A pod group or a template of one.
pub struct Group<'a> {
    pub policy: &'a api::PodGroupSchedulingPolicy,
    pub disruption: Option<&'a api::DisruptionMode>,
    pub priority_class: &'a str,
    pub priority: Option<i32>,
}

impl<'a> From<&'a api::PodGroupTemplate> for Group<'a> {
    fn from(template: &'a api::PodGroupTemplate) -> Self {
        Self {
            policy: &template.scheduling_policy,
            disruption: template.disruption_mode.as_ref(),
            priority_class: template.priority_class_name.as_deref().unwrap_or(""),
            priority: template.priority,
        }
    }
}

impl<'a> From<&'a api::PodGroupSpec> for Group<'a> {
    fn from(spec: &'a api::PodGroupSpec) -> Self {
        Self {
            policy: &spec.scheduling_policy,
            disruption: spec.disruption_mode.as_ref(),
            priority_class: spec.priority_class_name.as_deref().unwrap_or(""),
            priority: spec.priority,
        }
    }
}

pub fn validate_group(errors: &mut ErrorList, path: &Path, group: &Group<'_>) {
    let (at, policy) = (path.child("schedulingPolicy"), group.policy);
    validate::union(errors, &at, &[("basic", policy.basic.is_some()), ("gang", policy.gang.is_some())]);
    if let Some(gang) = &policy.gang {
        let at = at.child("gang").child("minCount");
        match gang.min_count {
            0 => errors.push(Error::required(&at, "")),
            1.. => {}
            count => errors.push(Error::invalid(&at, count, "must be greater than or equal to 1")),
        }
    }
    if let Some(mode) = group.disruption {
        let members = [("single", mode.single.is_some()), ("all", mode.all.is_some())];
        validate::union(errors, &path.child("disruptionMode"), &members);
    }
    if !group.priority_class.is_empty() {
        validate::dns_subdomain(errors, &path.child("priorityClassName"), group.priority_class);
    }
    if let Some(priority) = group.priority.filter(|p| *p > PRIORITY_MAX) {
        let problem = format!("must be less than or equal to {PRIORITY_MAX}");
        errors.push(Error::invalid(&path.child("priority"), Value::from(priority), problem));
    }
}
