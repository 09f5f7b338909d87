//! MutatingAdmissionPolicy: CEL expressions that change a request during admission.

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_cel::Type;
use serde_json::Value;

use super::expressions::{Compiler, Offers};
use super::policies::{self, Policy};
use super::{matching, not_static, rules, static_warnings};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    categories: &["api-extensions"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::MutatingAdmissionPolicy::RESOURCE,
        "MutatingAdmissionPolicyList",
        "mutatingadmissionpolicy",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Mutations", "integer", "The number of mutations in the policy."),
    Column::new("ParamKind", "string", "The kind of the resources that parameterize the policy."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::MutatingAdmissionPolicy>().unwrap_or_default();
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    let spec = o.spec.clone().unwrap_or_default();
    let count = spec.mutations.iter().flatten().count();
    let kind = policies::param_kind_cell(spec.param_kind.as_ref());
    vec![Value::from(object.name()), Value::from(count), kind, age]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        policies::default_policy(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = object
            .typed::<api::MutatingAdmissionPolicy>()
            .map(|o| validate_own(&o, None))
            .unwrap_or_default();
        not_static(&mut errors, object.name());
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        match (new.typed::<api::MutatingAdmissionPolicy>(), old.typed::<api::MutatingAdmissionPolicy>()) {
            (Ok(new), Ok(old)) => validate_own(&new, Some(&old)),
            _ => ErrorList::new(),
        }
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

fn head(spec: &api::MutatingAdmissionPolicySpec) -> Policy<'_> {
    Policy {
        failure_policy: spec.failure_policy.as_deref(),
        param_kind: spec.param_kind.as_ref(),
        constraints: spec.match_constraints.as_ref(),
        conditions: spec.match_conditions.as_deref().unwrap_or_default(),
        variables: spec.variables.as_deref().unwrap_or_default(),
    }
}

fn validate_own(
    policy: &api::MutatingAdmissionPolicy,
    old: Option<&api::MutatingAdmissionPolicy>,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let (path, spec) = (Path::new("spec"), policy.spec.clone().unwrap_or_default());
    let before = old.map(|o| o.spec.clone().unwrap_or_default());
    let own = head(&spec);
    policies::validate_head(&mut errors, &path, &own);
    let constraints = path.child("matchConstraints");
    rules::only_mutable_operations(&mut errors, &constraints, spec.match_constraints.as_ref());
    policies::validate_conditions(&mut errors, &path, &own, before.as_ref().map(head).as_ref());
    let composition = policies::validate_variables(&mut errors, &path, &own, []);
    // As upstream does, only the old apply configurations count as stored, for both types of patch.
    let before = before.as_ref().and_then(|b| b.mutations.as_deref()).unwrap_or_default();
    let stored = before.iter().filter_map(|m| m.apply_configuration.as_ref()?.expression.as_deref());
    let compiler = Compiler::of(stored, Some(composition));
    let mutations = spec.mutations.as_deref().unwrap_or_default();
    if mutations.is_empty() {
        let problem = "mutations must contain at least one item";
        errors.push(Error::required(&path.child("mutations"), problem));
    }
    for (i, mutation) in mutations.iter().enumerate() {
        let path = path.child("mutations").index(i);
        validate_mutation(&mut errors, &path, mutation, &compiler, own.offers());
    }
    let policy = spec.reinvocation_policy.as_deref().unwrap_or("");
    validate::one_of(
        &mut errors,
        &path.child("reinvocationPolicy"),
        policy,
        &matching::REINVOCATION_POLICIES,
    );
    errors
}

const PATCHES: [(&str, &str); 2] = [("ApplyConfiguration", "applyConfiguration"), ("JSONPatch", "jsonPatch")];

/// Requires the patch of the given type, and refuses the other one.
fn validate_mutation(
    errors: &mut ErrorList,
    path: &Path,
    mutation: &api::Mutation,
    compiler: &Compiler<'_>,
    offers: Offers,
) {
    let type_ = mutation.patch_type.as_str();
    if !validate::required(errors, &path.child("patchType"), type_) {
        return;
    }
    let apply = mutation.apply_configuration.as_ref().map(|a| a.expression.as_deref().unwrap_or(""));
    let json = mutation.json_patch.as_ref().map(|p| p.expression.as_deref().unwrap_or(""));
    let (own, other, [(name, field), (_, other_field)]) = match type_ {
        "ApplyConfiguration" => (apply, json, PATCHES),
        "JSONPatch" => (json, apply, [PATCHES[1], PATCHES[0]]),
        _ => {
            let supported = PATCHES.map(|(name, _)| name);
            errors.push(validate::not_supported(&path.child("patchType"), type_, &supported));
            return;
        }
    };
    match own {
        None => {
            let problem = format!("must be specified when patchType is {name}");
            errors.push(Error::required(&path.child(field), problem));
        }
        Some(expression) => {
            let (at, source) = (path.child(field).child("expression"), expression.trim());
            if validate::required(errors, &at, source) {
                let offers = Offers { patches: true, ..offers };
                let wanted = match name {
                    "JSONPatch" => Type::list(Type::object("JSONPatch")),
                    _ => Type::object("Object"),
                };
                compiler.check(errors, &at, (source, source), offers, &[wanted]);
            }
        }
    }
    if other.is_some() {
        let problem = format!("must not be specified when patchType is {name}");
        errors.push(Error::invalid(&path.child(other_field), format!("{{{other_field}}}"), problem));
    }
}
