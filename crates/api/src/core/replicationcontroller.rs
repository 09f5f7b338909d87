//! ReplicationController: the older way to keep a number of pods.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::core::pod::default_template;
use crate::defaults::{child, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

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
    Column::new("Desired", "integer", "How many pods there should be."),
    Column::new("Current", "integer", "How many pods there are."),
    Column::new("Ready", "integer", "How many pods are ready."),
    AGE,
    Column::wide("Containers", "string", "Names of the containers."),
    Column::wide("Images", "string", "Images of the containers."),
    Column::wide("Selector", "string", "Which pods belong to it."),
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
        default_template(object);
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

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
