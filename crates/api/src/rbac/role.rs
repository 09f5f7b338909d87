//! Role: permissions in a namespace.

use k8s_openapi::api::rbac::v1 as api;
use knarr_apimachinery::field::ErrorList;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::rbac::rules::validate_rules;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource =
    Resource { ..Resource::stored(api::Role::RESOURCE, "RoleList", "role", &Rules) };

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object
            .typed::<api::Role>()
            .map(|o| validate_rules(o.rules.as_deref().unwrap_or_default(), true))
            .unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        self.validate(new)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}
