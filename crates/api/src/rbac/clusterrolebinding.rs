//! ClusterRoleBinding: grants a role in the whole cluster.

use k8s_openapi::api::rbac::v1 as api;
use knarr_apimachinery::field::ErrorList;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::rbac::subjects::{default_binding, role_stays, subject_cells, validate_binding};
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::ClusterRoleBinding::RESOURCE,
        "ClusterRoleBindingList",
        "clusterrolebinding",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Role", "string", "The referenced role."),
    AGE,
    Column::wide("Users", "string", "The users in the binding."),
    Column::wide("Groups", "string", "The groups in the binding."),
    Column::wide("ServiceAccounts", "string", "The service accounts in the binding."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ClusterRoleBinding>().unwrap_or_default();
    let [users, groups, accounts] = subject_cells(o.subjects.as_deref().unwrap_or_default());
    let role = format!("{}/{}", o.role_ref.kind, o.role_ref.name);
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    vec![Value::from(object.name()), Value::from(role), age, users, groups, accounts]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_binding(prepare::object(object));
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ClusterRoleBinding>().map(|o| validate_own(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) =
            (new.typed::<api::ClusterRoleBinding>(), old.typed::<api::ClusterRoleBinding>())
        else {
            return ErrorList::new();
        };
        let mut errors = validate_own(&new);
        role_stays(&mut errors, &new.role_ref, &old.role_ref);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

fn validate_own(binding: &api::ClusterRoleBinding) -> ErrorList {
    validate_binding(&binding.role_ref, binding.subjects.as_deref().unwrap_or_default(), &["ClusterRole"])
}
