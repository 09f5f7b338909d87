//! ReplicaSet: keeps a number of equal pods.

use k8s_openapi::api::apps::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["rs"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    selectable: &["status.replicas"],
    ..Resource::stored(api::ReplicaSet::RESOURCE, "ReplicaSetList", "replicaset", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
