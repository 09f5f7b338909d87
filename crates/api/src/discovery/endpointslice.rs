//! EndpointSlice: a part of the addresses behind a Service.

use k8s_openapi::api::discovery::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    ..Resource::stored(api::EndpointSlice::RESOURCE, "EndpointSliceList", "endpointslice", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        let parts = ["/addressType", "/endpoints", "/ports", "/metadata/labels"];
        prepare::bump_generation(new, old, &parts);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
