//! DaemonSet: a pod on every node.

use k8s_openapi::api::apps::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

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
    ..Resource::stored(api::DaemonSet::RESOURCE, "DaemonSetList", "daemonset", &Rules)
};

struct Rules;

impl Strategy for Rules {
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
