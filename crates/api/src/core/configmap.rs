//! ConfigMap: plain and binary configuration data.

use k8s_openapi::api::core::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["cm"],
    ..Resource::stored(api::ConfigMap::RESOURCE, "ConfigMapList", "configmap", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
