//! Endpoints: the addresses behind a Service, in the older form.

use k8s_openapi::api::core::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["ep"],
    ..Resource::stored(api::Endpoints::RESOURCE, "EndpointsList", "endpoints", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
