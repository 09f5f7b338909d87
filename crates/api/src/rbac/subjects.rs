//! The subjects of a binding: cells, defaults and validation.

use k8s_openapi::api::rbac::v1::{RoleRef, Subject};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::defaults::{Fields, blank, child, items, text};
use crate::validate;

/// The API group of roles, users and groups.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Sets the default API groups of a binding's role and subjects.
pub fn default_binding(binding: &mut Fields) {
    blank(child(binding, "roleRef"), "apiGroup", GROUP);
    for subject in items(binding, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            blank(subject, "apiGroup", GROUP);
        }
    }
}

/// Returns users, groups and service accounts, each joined by commas.
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

/// Validates the role and the subjects of a binding; `roles` are the kinds that it may refer to.
pub fn validate_binding(role: &RoleRef, subjects: &[Subject], roles: &[&str]) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("roleRef");
    validate::supported_value(
        &mut errors,
        &path.child("apiGroup"),
        role.api_group.as_deref().unwrap_or(""),
        &[GROUP],
    );
    validate::supported_value(&mut errors, &path.child("kind"), &role.kind, roles);
    if validate::required(&mut errors, &path.child("name"), &role.name) {
        let found = names::path_segment_name(&role.name);
        validate::problems(&mut errors, &path.child("name"), &role.name, found);
    }
    let namespaced = roles.contains(&"Role");
    for (i, subject) in subjects.iter().enumerate() {
        validate_subject(&mut errors, &Path::new("subjects").index(i), subject, namespaced);
    }
    errors
}

fn validate_subject(errors: &mut ErrorList, path: &Path, subject: &Subject, namespaced: bool) {
    let named = validate::required(errors, &path.child("name"), &subject.name);
    let group = subject.api_group.as_deref().unwrap_or("");
    match subject.kind.as_str() {
        "ServiceAccount" => {
            if named {
                validate::dns_subdomain(errors, &path.child("name"), &subject.name);
            }
            validate::supported_value(errors, &path.child("apiGroup"), group, &[""]);
            if !namespaced && subject.namespace.as_deref().unwrap_or("").is_empty() {
                errors.push(Error::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => {
            validate::supported_value(errors, &path.child("apiGroup"), group, &[GROUP]);
        }
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(validate::not_supported(&path.child("kind"), other, &kinds));
        }
    }
}

/// Requires that a binding's role does not change.
pub fn role_stays(errors: &mut ErrorList, new: &RoleRef, old: &RoleRef) {
    if new != old {
        let text = format!(
            r#"{{"APIGroup":{},"Kind":{},"Name":{}}}"#,
            Value::from(new.api_group.as_deref().unwrap_or("")),
            Value::from(new.kind.as_str()),
            Value::from(new.name.as_str())
        );
        errors.push(validate::invalid_text(&Path::new("roleRef"), &text, validate::IMMUTABLE));
    }
}
