//! ReplicaSet: keeps a number of equal pods.

use k8s_openapi::api::apps::v1 as api;
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
    Column::new("Desired", "integer", "How many pods there should be."),
    Column::new("Current", "integer", "How many pods there are."),
    Column::new("Ready", "integer", "How many pods are ready."),
    AGE,
    Column::wide("Containers", "string", "Names of the containers."),
    Column::wide("Images", "string", "Images of the containers."),
    Column::wide("Selector", "string", "Which pods belong to it."),
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

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
