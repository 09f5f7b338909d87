//! ReplicaSet: maintains a number of equal pods.

use k8s_openapi::api::apps::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use crate::apps::validation;
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
    short_names: &["rs"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    selectable: &["status.replicas"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ReplicaSet::RESOURCE, "ReplicaSetList", "replicaset", &Rules)
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
    let o = object.typed::<api::ReplicaSet>().unwrap_or_default();
    let spec = Some(&o.spec);
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
        Value::from(table::selector(spec.map(|s| &s.selector))),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_template(object);
        unset(child(prepare::object(object), "spec"), "replicas", 1);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ReplicaSet>().map(|o| validate_spec(object, &o)).unwrap_or_default()
    }

    fn validate_update(&self, object: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (object.typed::<api::ReplicaSet>(), old.typed::<api::ReplicaSet>()) else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => validate_status(&new, &old),
            _ => {
                let mut errors = validate_spec(object, &new);
                validation::selector_stays(&mut errors, object, &new.spec.selector, &old.spec.selector);
                errors
            }
        }
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(set) = new.typed::<api::ReplicaSet>() else { return Vec::new() };
        validation::warnings(new, old, set.spec.template.as_ref(), true)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_spec(object: &Object, set: &api::ReplicaSet) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &set.spec;
    let path = Path::new("spec");
    for (field, n) in [("replicas", spec.replicas), ("minReadySeconds", spec.min_ready_seconds)] {
        validate::nonnegative(&mut errors, &path.child(field), i64::from(n.unwrap_or(0)));
    }
    // Upstream's message says deployment here, too.
    validation::selector(&mut errors, object, &spec.selector, "deployment");
    let template = spec.template.clone().unwrap_or_default();
    let bad = "invalid label selector";
    validation::template(&mut errors, object, &spec.selector, &template, "ReplicaSet", bad);
    errors
}

fn validate_status(new: &api::ReplicaSet, _: &api::ReplicaSet) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = new.status.clone().unwrap_or_default();
    let all = [("replicas", Some(status.replicas)), ("terminatingReplicas", status.terminating_replicas)];
    let parts = [
        ("fullyLabeledReplicas", status.fully_labeled_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    ];
    validation::counts(&mut errors, status.replicas, &all, &parts);
    validation::available(&mut errors, status.available_replicas, status.ready_replicas);
    errors
}
