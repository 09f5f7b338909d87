//! ControllerRevision: a remembered state of a DaemonSet or StatefulSet.

use k8s_openapi::api::apps::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    ..Resource::stored(
        api::ControllerRevision::RESOURCE,
        "ControllerRevisionList",
        "controllerrevision",
        &Rules,
    )
};

struct Rules;

impl Strategy for Rules {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
