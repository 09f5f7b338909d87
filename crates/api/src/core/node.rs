//! Node: a machine that runs pods.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource, Subresource};
use crate::strategy::Strategy;

const PROXY: Subresource = Subresource {
    name: "proxy",
    body: Some(("", "v1", "NodeProxyOptions")),
    verbs: &["create", "delete", "get", "patch", "update"],
};

pub const RESOURCE: Resource = Resource {
    short_names: &["no"],
    subresources: &[PROXY, resource::STATUS],
    selectable: &["spec.unschedulable"],
    ..Resource::stored(api::Node::RESOURCE, "NodeList", "node", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
