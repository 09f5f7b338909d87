//! Deployment: replica sets that follow each other.

use k8s_openapi::api::apps::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["deploy"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    ..Resource::stored(api::Deployment::RESOURCE, "DeploymentList", "deployment", &Rules)
};

struct Rules;

impl Strategy for Rules {
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
