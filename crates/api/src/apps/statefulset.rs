//! StatefulSet: pods with names and volumes of their own.

use k8s_openapi::api::apps::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["sts"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::StatefulSet::RESOURCE, "StatefulSetList", "statefulset", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Ready", "string", "Ready pods of those wanted."),
    AGE,
    Column::wide("Containers", "string", "Names of the containers."),
    Column::wide("Images", "string", "Images of the containers."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StatefulSet>().unwrap_or_default();
    let spec = Some(&o.spec);
    let ready = o.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
    let wanted = spec.and_then(|s| s.replicas).unwrap_or(0);
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    vec![Value::from(object.name()), Value::from(format!("{ready}/{wanted}")), age, names, images]
}

struct Rules;

impl Strategy for Rules {
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
