//! ValidatingAdmissionPolicyBinding: the resources that a ValidatingAdmissionPolicy applies to, and its actions.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::{matching, not_static, policies, static_warnings};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Resource};
use crate::strategy::Strategy;
use crate::table;
use crate::validate;

pub const RESOURCE: Resource = Resource {
    categories: &["api-extensions"],
    columns: policies::BINDING_COLUMNS,
    cells,
    ..Resource::stored(
        api::ValidatingAdmissionPolicyBinding::RESOURCE,
        "ValidatingAdmissionPolicyBindingList",
        "validatingadmissionpolicybinding",
        &Rules,
    )
};

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ValidatingAdmissionPolicyBinding>().unwrap_or_default();
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    let spec = &o.spec;
    let policy = spec.policy_name.as_str();
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
    let Ok(binding) = object.typed::<api::ValidatingAdmissionPolicyBinding>() else { return errors };
    let (path, spec) = (Path::new("spec"), &binding.spec);
    let (param, resources) = (spec.param_ref.as_ref(), spec.match_resources.as_ref());
    policies::validate_binding(&mut errors, &path, &spec.policy_name, param, resources);
    validate_actions(&mut errors, &path.child("validationActions"), &spec.validation_actions);
    errors
}

const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];

fn validate_actions(errors: &mut ErrorList, path: &Path, actions: &[String]) {
    let mut seen = BTreeSet::new();
    for (i, action) in actions.iter().enumerate() {
        validate::supported_value(errors, &path.index(i), action, &ACTIONS);
        if !seen.insert(action.as_str()) {
            errors.push(Error::duplicate(&path.index(i), action.as_str()));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let problem = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(Error::invalid(path, validate::shown(&actions), problem));
    }
    if actions.is_empty() {
        errors.push(Error::required(path, ""));
    }
}
