//! Service: a stable address for a set of pods.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource, Subresource};
use crate::strategy::Strategy;

const PROXY: Subresource = Subresource {
    name: "proxy",
    body: Some(("", "v1", "ServiceProxyOptions")),
    verbs: &["create", "delete", "get", "patch", "update"],
};

pub const RESOURCE: Resource = Resource {
    short_names: &["svc"],
    categories: &["all"],
    subresources: &[PROXY, resource::STATUS],
    selectable: &["spec.clusterIP", "spec.type"],
    ..Resource::stored(api::Service::RESOURCE, "ServiceList", "service", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::label(name, prefix)
    }
}
