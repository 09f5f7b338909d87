//! PodTemplate: a stored description of a pod.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource =
    Resource { ..Resource::stored(api::PodTemplate::RESOURCE, "PodTemplateList", "podtemplate", &Rules) };

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/template"]);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
