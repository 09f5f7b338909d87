//! Binding: the node that a pod will run on; the older form of `pods/binding`.

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;
use crate::validate;

pub const RESOURCE: Resource = Resource {
    verbs: resource::CREATE_ONLY,
    ..Resource::stored(api::Binding::RESOURCE, "", "binding", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Binding>().map(|o| validate_binding(&o)).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

/// Requires that a binding names a node.
pub fn validate_binding(binding: &api::Binding) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("target");
    let kind = binding.target.kind.as_deref().unwrap_or("");
    if !matches!(kind, "" | "Node") {
        errors.push(validate::not_supported(&path.child("kind"), kind, &["Node", "<empty>"]));
    }
    let name = binding.target.name.as_deref().unwrap_or("");
    if validate::required(&mut errors, &path.child("name"), name) && matches!(kind, "" | "Node") {
        validate::dns_subdomain(&mut errors, &path.child("name"), name);
    }
    errors
}
