//! Deployment: replica sets that follow each other.

use k8s_openapi::api::apps::v1 as api;
use knarr_apimachinery::selector::Selector;
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

pub const RESOURCE: Resource = Resource {
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Deployment::RESOURCE, "DeploymentList", "deployment", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Ready", "string", "Ready pods of those wanted."),
    Column::new("Up-to-date", "string", "Pods made from the newest template."),
    Column::new("Available", "string", "Pods that have been ready long enough."),
    AGE,
    Column::wide("Containers", "string", "Names of the containers."),
    Column::wide("Images", "string", "Images of the containers."),
    Column::wide("Selector", "string", "Which pods belong to it."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Deployment>().unwrap_or_default();
    let spec = Some(&o.spec);
    let status = o.status.clone().unwrap_or_default();
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    let selector = match Selector::from_label_selector(spec.map(|s| &s.selector)) {
        Ok(selector) => selector.to_string(),
        Err(_) => "<invalid>".to_owned(),
    };
    let (ready, wanted) = (status.ready_replicas.unwrap_or(0), spec.and_then(|s| s.replicas).unwrap_or(0));
    vec![
        Value::from(object.name()),
        Value::from(format!("{ready}/{wanted}")),
        table::count(status.updated_replicas),
        table::count(status.available_replicas),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        names,
        images,
        Value::from(selector),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_template(object);
        let spec = child(prepare::object(object), "spec");
        unset(spec, "replicas", 1);
        unset(spec, "revisionHistoryLimit", 10);
        unset(spec, "progressDeadlineSeconds", 600);
        let strategy = child(spec, "strategy");
        blank(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            unset(rolling, "maxUnavailable", "25%");
            unset(rolling, "maxSurge", "25%");
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata(new, old, "labels");
            prepare::keep_metadata(new, old, "generation");
        } else {
            // Annotations count too: the controller copies them to the replica sets.
            prepare::bump_generation(new, old, &["/spec", "/metadata/annotations"]);
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
