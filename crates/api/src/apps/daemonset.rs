//! DaemonSet: a pod on every node.

use k8s_openapi::api::apps::v1 as api;
use serde_json::Value;

use crate::core::pod::default_template;
use crate::defaults::{blank, child, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

/// The template's own counter, which rolling updates by old clients look at.
fn template_generation(spec: &Value) -> i64 {
    spec.get("templateGeneration").and_then(Value::as_i64).unwrap_or(0)
}

fn set_template_generation(object: &mut Value, generation: i64) {
    let spec = prepare::object(object).entry("spec").or_insert(Value::Null);
    prepare::object(spec).insert("templateGeneration".to_owned(), Value::from(generation));
}

pub const RESOURCE: Resource = Resource {
    short_names: &["ds"],
    categories: &["all"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::DaemonSet::RESOURCE, "DaemonSetList", "daemonset", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Desired", "integer", "Nodes that should run the pod."),
    Column::new("Current", "integer", "Nodes that run it."),
    Column::new("Ready", "integer", "Nodes where it is ready."),
    Column::new("Up-to-date", "integer", "Nodes with the newest template."),
    Column::new("Available", "integer", "Nodes where it has been ready long enough."),
    Column::new("Node Selector", "string", "Labels a node must have to run the pod."),
    AGE,
    Column::wide("Containers", "string", "Names of the containers."),
    Column::wide("Images", "string", "Images of the containers."),
    Column::wide("Selector", "string", "Which pods belong to it."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::DaemonSet>().unwrap_or_default();
    let spec = Some(&o.spec);
    let status = o.status.clone().unwrap_or_default();
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    vec![
        Value::from(object.name()),
        Value::from(status.desired_number_scheduled),
        Value::from(status.current_number_scheduled),
        Value::from(status.number_ready),
        table::count(status.updated_number_scheduled),
        table::count(status.number_available),
        Value::from(table::labels(template.and_then(|s| s.node_selector.as_ref()))),
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
        let spec = child(prepare::object(object), "spec");
        let strategy = child(spec, "updateStrategy");
        blank(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            unset(rolling, "maxUnavailable", 1);
            unset(rolling, "maxSurge", 0);
        }
        unset(spec, "revisionHistoryLimit", 10);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
        let generation = object.get("spec").map_or(0, template_generation).max(1);
        set_template_generation(object, generation);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if subresource != Some("status") {
            let before = old.get("spec").map_or(0, template_generation);
            let pointer = "/spec/template";
            let changed = !prepare::same(new.pointer(pointer), old.pointer(pointer));
            set_template_generation(new, if changed { before + 1 } else { before });
        }
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
