//! Who a binding names: its cells, defaults and validation.

use k8s_openapi::api::rbac::v1::Subject;
use serde_json::Value;

use crate::defaults::{Fields, blank, child, items, text};

/// The API group of roles, users and groups.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The API groups that a binding's role and subjects belong to.
pub fn default_binding(binding: &mut Fields) {
    blank(child(binding, "roleRef"), "apiGroup", GROUP);
    for subject in items(binding, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            blank(subject, "apiGroup", GROUP);
        }
    }
}

/// Users, groups and service accounts, each joined by commas.
pub fn subject_cells(subjects: &[Subject]) -> [Value; 3] {
    let of_kind = |kind: &str| {
        let names = subjects.iter().filter(|s| s.kind == kind).map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", s.namespace.as_deref().unwrap_or(""), s.name),
            _ => s.name.clone(),
        });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    [of_kind("User"), of_kind("Group"), of_kind("ServiceAccount")]
}
