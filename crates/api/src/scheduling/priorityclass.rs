//! PriorityClass: a name for a pod priority.

use k8s_openapi::api::scheduling::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["pc"],
    ..Resource::stored(api::PriorityClass::RESOURCE, "PriorityClassList", "priorityclass", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
