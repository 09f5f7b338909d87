//! StorageClass: how volumes are made.

use k8s_openapi::api::storage::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["sc"],
    ..Resource::stored(api::StorageClass::RESOURCE, "StorageClassList", "storageclass", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
