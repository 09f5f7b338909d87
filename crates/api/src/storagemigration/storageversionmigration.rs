//! StorageVersionMigration: rewrites all objects of a resource in the current storage version.

use k8s_openapi::api::storagemigration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::conditions;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::NAME;
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::StorageVersionMigration::RESOURCE,
        "StorageVersionMigrationList",
        "storageversionmigration",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    Column { format: "", ..NAME },
    Column::new("Resource", "string", "The resource that is migrated."),
    Column::new("Status", "string", "The status of the migration."),
];

const STATES: [&str; 3] = ["Running", "Succeeded", "Failed"];

fn cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StorageVersionMigration>().unwrap_or_default();
    let spec = o.spec.clone().unwrap_or_default();
    let resource = match (spec.resource.group.as_str(), spec.resource.resource) {
        ("", resource) => resource,
        (group, resource) => format!("{resource}.{group}"),
    };
    let conditions = o.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let mut state = conditions.filter(|c| c.status == "True").map(|c| c.type_.as_str());
    let state = state.rfind(|t| STATES.contains(t)).unwrap_or("Unknown");
    vec![Value::from(object.name()), Value::from(resource), Value::from(state)]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::StorageVersionMigration>().map(|o| validate_spec(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let kind = (new.typed::<api::StorageVersionMigration>(), old.typed::<api::StorageVersionMigration>());
        let (Ok(new), Ok(old)) = kind else { return ErrorList::new() };
        if subresource == Some("status") {
            return validate_status(&new, &old);
        }
        let mut errors = validate_spec(&new);
        if let Some(spec) = new.spec.as_ref().filter(|_| new.spec != old.spec) {
            // The message shows upstream's internal Go type.
            let text = format!(r#"{{"Resource":{}}}"#, validate::shown(&spec.resource));
            errors.push(validate::invalid_text(&Path::new("spec"), &text, validate::IMMUTABLE));
        }
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

fn validate_spec(migration: &api::StorageVersionMigration) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec").child("resource");
    let spec = migration.spec.clone().unwrap_or_default();
    let mut joined = |field: &str, value: &str, problems: names::Problems| {
        if !problems.is_empty() {
            errors.push(Error::invalid(&path.child(field), value, problems.join(",")));
        }
    };
    let (group, resource) = (spec.resource.group.as_str(), spec.resource.resource.as_str());
    if !resource.is_empty() {
        joined("resource", resource, names::dns1035_label(resource));
    }
    if !group.is_empty() {
        joined("group", group, names::dns1123_subdomain(group));
    }
    if resource.is_empty() {
        errors.push(Error::required(&path.child("resource"), "resource is required to be set"));
    }
    errors
}

fn validate_status(new: &api::StorageVersionMigration, old: &api::StorageVersionMigration) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status");
    let (now, before) = (new.status.clone().unwrap_or_default(), old.status.clone().unwrap_or_default());
    let (at, version) = (path.child("resourceVersion"), now.resource_version.as_deref().unwrap_or(""));
    if !version.is_empty() && (version.starts_with('0') || !version.bytes().all(|b| b.is_ascii_digit())) {
        let problem = format!("resource version is not well formed: {version}");
        errors.push(Error::invalid(&at, version, problem));
    }
    let listed = now.conditions.as_deref().unwrap_or_default();
    conditions::validate(&mut errors, &path.child("conditions"), listed);
    let old_version = before.resource_version.as_deref().unwrap_or("");
    if !old_version.is_empty() && old_version != version {
        errors.push(Error::invalid(&at, version, validate::IMMUTABLE));
    }
    let is = |status: &api::StorageVersionMigrationStatus, type_: &str| {
        status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == "True")
    };
    let problems = [
        (
            is(&now, "Succeeded") && is(&now, "Failed"),
            "Both success and failed conditions cannot be true at the same time",
        ),
        (
            is(&before, "Succeeded") && !is(&now, "Succeeded"),
            "Success condition cannot be set to false once it is true",
        ),
        (
            is(&before, "Failed") && !is(&now, "Failed"),
            "Failed condition cannot be set to false once it is true",
        ),
    ];
    for (_, problem) in problems.iter().filter(|(wrong, _)| *wrong) {
        errors.push(Error::invalid(&path.child("conditions"), validate::shown(&now.conditions), *problem));
    }
    errors
}
