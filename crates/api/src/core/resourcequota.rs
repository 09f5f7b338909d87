//! ResourceQuota: how much a namespace may use.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["quota"],
    subresources: &[resource::STATUS],
    ..Resource::stored(api::ResourceQuota::RESOURCE, "ResourceQuotaList", "resourcequota", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
