//! Workload: templates for an application's pod groups.

use std::collections::BTreeSet;

use k8s_openapi::api::scheduling::v1beta1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::groups::{Group, validate_group};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Workload::RESOURCE, "WorkloadList", "workload", &Rules)
};

const COLUMNS: &[Column] = &[NAME, AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Workload>().unwrap_or_default();
    vec![Value::from(object.name()), table::age(o.metadata.creation_timestamp.as_ref(), cx)]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Workload>().map(|o| validate_spec(&o.spec)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Workload>(), old.typed::<api::Workload>()) else {
            return ErrorList::new();
        };
        let mut errors = validate_spec(&new.spec);
        let path = Path::new("spec").child("podGroupTemplates");
        let (now, before) = (&new.spec.pod_group_templates, &old.spec.pod_group_templates);
        validate::immutable(&mut errors, &path, now, before);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

const TEMPLATES_MAX: usize = 8;

fn validate_spec(spec: &api::WorkloadSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    let templates = spec.pod_group_templates.as_deref().unwrap_or_default();
    let at = path.child("podGroupTemplates");
    if templates.is_empty() && spec.composite_pod_group_templates.as_ref().is_none_or(Vec::is_empty) {
        errors.push(Error::required(&at, ""));
    }
    if templates.len() > TEMPLATES_MAX {
        errors.push(Error::too_many(&at, templates.len(), TEMPLATES_MAX));
        return errors;
    }
    let mut seen = BTreeSet::new();
    for (i, template) in templates.iter().enumerate() {
        let path = at.index(i);
        if !seen.insert(&template.name) {
            errors.push(Error::duplicate(&path, serde_json::json!({"name": template.name})));
        }
        if validate::required(&mut errors, &path.child("name"), &template.name) {
            validate::dns_label(&mut errors, &path.child("name"), &template.name);
        }
        validate_group(&mut errors, &path, &Group::from(template));
    }
    let priority =
        |t: &api::PodGroupTemplate| (t.priority_class_name.clone().unwrap_or_default(), t.priority);
    let mut priorities = templates.iter().map(priority);
    if let Some(first) = priorities.next()
        && priorities.any(|p| p != first)
    {
        errors.push(Error::invalid(&path, Value::Null, "detected multiple priority configurations"));
    }
    errors
}
