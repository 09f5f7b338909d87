//! RoleBinding: who has a role in a namespace.

use k8s_openapi::api::rbac::v1 as api;

use crate::kind::Kind;
use crate::naming;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource =
    Resource { ..Resource::stored(api::RoleBinding::RESOURCE, "RoleBindingList", "rolebinding", &Rules) };

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}
