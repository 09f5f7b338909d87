//! ReplicationController: the predecessor of ReplicaSet.

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::apps::validation::{available, counts, runs_for_ever};
use crate::core::pod::default_template;
use crate::defaults::{child, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["rc"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    selectable: &["status.replicas"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::ReplicationController::RESOURCE,
        "ReplicationControllerList",
        "replicationcontroller",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Desired", "integer", "The desired number of pods."),
    Column::new("Current", "integer", "The current number of pods."),
    Column::new("Ready", "integer", "The number of ready pods."),
    AGE,
    Column::wide("Containers", "string", "The names of the containers in the template."),
    Column::wide("Images", "string", "The images of the containers in the template."),
    Column::wide("Selector", "string", "The label selector for the pods."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ReplicationController>().unwrap_or_default();
    let spec = o.spec.as_ref();
    let status = o.status.as_ref();
    let template = spec.and_then(|s| s.template.as_ref()).and_then(|t| t.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    vec![
        Value::from(object.name()),
        table::count(spec.and_then(|s| s.replicas)),
        table::count(status.map(|s| s.replicas)),
        table::count(status.and_then(|s| s.ready_replicas)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        names,
        images,
        Value::from(table::labels(spec.and_then(|s| s.selector.as_ref()))),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        if object.pointer("/spec/template").is_some_and(Value::is_object) {
            default_template(object);
        }
        let fields = prepare::object(object);
        let labels = fields.get("spec").and_then(|s| s.pointer("/template/metadata/labels")).cloned();
        if let Some(labels) = labels.filter(|l| l.as_object().is_some_and(|l| !l.is_empty())) {
            let is_empty = |v: Option<&Value>| v.and_then(Value::as_object).is_none_or(|m| m.is_empty());
            let spec = child(fields, "spec");
            if is_empty(spec.get("selector")) {
                spec.insert("selector".to_owned(), labels.clone());
            }
            let metadata = child(fields, "metadata");
            if is_empty(metadata.get("labels")) {
                metadata.insert("labels".to_owned(), labels);
            }
        }
        unset(child(fields, "spec"), "replicas", 1);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ReplicationController>().map(|o| validate_spec(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        let Ok(new) = new.typed::<api::ReplicationController>() else { return ErrorList::new() };
        match subresource {
            Some("status") => validate_status(&new),
            _ => validate_spec(&new),
        }
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(controller) = new.typed::<api::ReplicationController>() else { return Vec::new() };
        crate::apps::validation::warnings(
            new,
            old,
            controller.spec.as_ref().and_then(|s| s.template.as_ref()),
            true,
        )
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_spec(controller: &api::ReplicationController) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = controller.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let seconds = i64::from(spec.min_ready_seconds.unwrap_or(0));
    validate::nonnegative(&mut errors, &path.child("minReadySeconds"), seconds);
    let labels = spec.selector.clone().unwrap_or_default();
    if labels.is_empty() {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    match spec.replicas {
        None => errors.push(Error::required(&path.child("replicas"), "")),
        Some(n) => validate::nonnegative(&mut errors, &path.child("replicas"), i64::from(n)),
    }
    let Some(template) = &spec.template else {
        errors.push(Error::required(&path.child("template"), ""));
        return errors;
    };
    if !labels.is_empty() {
        let path = path.child("template").child("metadata").child("labels");
        let own = template.metadata.as_ref().and_then(|m| m.labels.as_ref());
        let selector = knarr_apimachinery::selector::Selector::from_labels(&labels);
        validate::template_is_selected(&mut errors, &path, &selector, own);
    }
    crate::core::pod::validation::template(&mut errors, &path.child("template"), template);
    runs_for_ever(&mut errors, template, "ReplicationController");
    errors
}

fn validate_status(controller: &api::ReplicationController) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = controller.status.clone().unwrap_or_default();
    let parts = [
        ("fullyLabeledReplicas", status.fully_labeled_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    ];
    counts(&mut errors, status.replicas, &[("replicas", Some(status.replicas))], &parts);
    available(&mut errors, status.available_replicas, status.ready_replicas);
    errors
}
