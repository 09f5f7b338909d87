//! ResourceClaimTemplate: the template of a claim per pod.

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use super::claims;
use crate::defaults::child;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::ResourceClaimTemplate::RESOURCE,
        "ResourceClaimTemplateList",
        "resourceclaimtemplate",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[NAME, AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ResourceClaimTemplate>().unwrap_or_default();
    vec![Value::from(object.name()), table::age(o.metadata.creation_timestamp.as_ref(), cx)]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        claims::default_spec(child(child(prepare::object(object), "spec"), "spec"));
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ResourceClaimTemplate>().map(|o| validate_own(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let kind = (new.typed::<api::ResourceClaimTemplate>(), old.typed::<api::ResourceClaimTemplate>());
        let (Ok(new), Ok(old)) = kind else { return ErrorList::new() };
        let mut errors = validate_own(&new);
        validate::immutable(&mut errors, &Path::new("spec"), &new.spec, &old.spec);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_own(template: &api::ResourceClaimTemplate) -> ErrorList {
    let mut errors = ErrorList::new();
    let (path, spec) = (Path::new("spec"), template.spec.clone().unwrap_or_default());
    let (at, metadata) = (path.child("metadata"), spec.metadata.unwrap_or_default());
    validate::labels(&mut errors, &at.child("labels"), metadata.labels.as_ref());
    validate::annotations(&mut errors, &at.child("annotations"), metadata.annotations.as_ref());
    claims::validate_spec(&mut errors, &path.child("spec"), &spec.spec.unwrap_or_default());
    errors
}
