//! Event: something that happened to an object.

use k8s_openapi::api::core::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["ev"],
    selectable: &[
        "involvedObject.apiVersion",
        "involvedObject.fieldPath",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.resourceVersion",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "source.component",
        "type",
    ],
    ..Resource::stored(api::Event::RESOURCE, "EventList", "event", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}
