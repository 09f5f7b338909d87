//! LimitRange: bounds and defaults for resources in a namespace.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::defaults::{Fields, child, existing, items, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["limits"],
    ..Resource::stored(api::LimitRange::RESOURCE, "LimitRangeList", "limitrange", &Rules)
};

/// What one list of quantities names and another does not goes into the other.
fn inherit(item: &mut Fields, from: &str, to: &str) {
    let given = item.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
    if given.is_empty() {
        return;
    }
    let to = child(item, to);
    for (name, quantity) in given {
        unset(to, &name, quantity);
    }
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let Some(spec) = existing(prepare::object(object), "spec") else { return };
        for item in items(spec, "limits") {
            if text(item, "type") == "Container" {
                inherit(item, "max", "default");
                inherit(item, "default", "defaultRequest");
                inherit(item, "min", "defaultRequest");
            }
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
