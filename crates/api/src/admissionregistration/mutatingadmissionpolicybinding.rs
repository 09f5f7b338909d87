//! MutatingAdmissionPolicyBinding: the resources that a MutatingAdmissionPolicy applies to.

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use super::{matching, not_static, policies, rules, static_warnings};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Resource};
use crate::strategy::Strategy;
use crate::table;

pub const RESOURCE: Resource = Resource {
    categories: &["api-extensions"],
    columns: policies::BINDING_COLUMNS,
    cells,
    ..Resource::stored(
        api::MutatingAdmissionPolicyBinding::RESOURCE,
        "MutatingAdmissionPolicyBindingList",
        "mutatingadmissionpolicybinding",
        &Rules,
    )
};

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::MutatingAdmissionPolicyBinding>().unwrap_or_default();
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    let spec = o.spec.clone().unwrap_or_default();
    let policy = spec.policy_name.as_deref().unwrap_or("");
    vec![Value::from(object.name()), Value::from(policy), matching::param_cell(spec.param_ref.as_ref()), age]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        policies::default_binding(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = validate_own(object);
        not_static(&mut errors, object.name());
        errors
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        validate_own(new)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        old.map(|_| static_warnings(new.name())).unwrap_or_default()
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

fn validate_own(object: &Object) -> ErrorList {
    let mut errors = ErrorList::new();
    let Ok(binding) = object.typed::<api::MutatingAdmissionPolicyBinding>() else { return errors };
    let (path, spec) = (Path::new("spec"), binding.spec.clone().unwrap_or_default());
    let (param, resources) = (spec.param_ref.as_ref(), spec.match_resources.as_ref());
    let policy = spec.policy_name.as_deref().unwrap_or("");
    policies::validate_binding(&mut errors, &path, policy, param, resources);
    rules::only_mutable_operations(&mut errors, &path.child("matchResources"), resources);
    errors
}
