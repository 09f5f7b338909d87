//! Lease: who holds what until when.

use k8s_openapi::api::coordination::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource =
    Resource { ..Resource::stored(api::Lease::RESOURCE, "LeaseList", "lease", &Rules) };

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
