//! ResourceQuota: limits the usage of a namespace.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;
use serde_json::Value;

use crate::core::pod::validation::{is_standard_resource, quantity};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["quota"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ResourceQuota::RESOURCE, "ResourceQuotaList", "resourcequota", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Request", "string", "The used and hard amounts of requests and object counts."),
    Column::new("Limit", "string", "The used and hard amounts of limits."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ResourceQuota>().unwrap_or_default();
    let status = o.status.clone().unwrap_or_default();
    let used = status.used.unwrap_or_default();
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in status.hard.iter().flatten() {
        let line = format!("{resource}: {}/{}", used.get(resource).map_or("0", |q| &q.0), hard.0);
        if resource.starts_with("limits.") { limits.push(line) } else { requests.push(line) }
    }
    vec![
        Value::from(object.name()),
        Value::from(requests.join(", ")),
        Value::from(limits.join(", ")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ResourceQuota>().map(|o| validate_quota(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::ResourceQuota>(), old.typed::<api::ResourceQuota>())
        else {
            return ErrorList::new();
        };
        let mut errors = validate_quota(&new);
        let scopes = |quota: &api::ResourceQuota| -> BTreeSet<String> {
            quota.spec.iter().flat_map(|s| s.scopes.iter().flatten()).cloned().collect()
        };
        if subresource.is_none() && scopes(&new) != scopes(&old) {
            let shown = validate::shown(&new.spec.as_ref().and_then(|s| s.scopes.clone()));
            let path = Path::new("spec").child("scopes");
            errors.push(Error::invalid(&path, shown, validate::IMMUTABLE));
        }
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let quota = new.typed::<api::ResourceQuota>().unwrap_or_default();
        let hard = quota.spec.clone().and_then(|s| s.hard).unwrap_or_default();
        let amount = |name: &str| hard.get(name).and_then(|q| Quantity::try_from(q).ok());
        let mut warnings = Vec::new();
        for name in ["cpu", "memory", "storage", "ephemeral-storage"].iter().filter(|_| old.is_none()) {
            let (mut from, to) = (format!("requests.{name}"), format!("limits.{name}"));
            if !hard.contains_key(&from) && matches!(*name, "cpu" | "memory") {
                from = (*name).to_owned();
            }
            if let (Some(request), Some(limit)) = (amount(&from), amount(&to))
                && request > limit
            {
                warnings.push(format!("ResourceQuota {from} ({request}) should be less than {to} ({limit})"));
            }
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

fn validate_quota(quota: &api::ResourceQuota) -> ErrorList {
    let mut errors = ErrorList::new();
    let (spec, status) = (quota.spec.clone().unwrap_or_default(), quota.status.clone().unwrap_or_default());
    let spec_path = Path::new("spec");
    let status_path = Path::new("status");
    for (path, list) in [
        (spec_path.child("hard"), &spec.hard),
        (status_path.child("hard"), &status.hard),
        (status_path.child("used"), &status.used),
    ] {
        for (name, amount) in list.iter().flatten() {
            let path = path.key(name);
            quota_resource_name(&mut errors, &path, name);
            quantity(&mut errors, &path, name, amount);
        }
    }
    let path = spec_path.child("scopes");
    let scopes = spec.scopes.clone().unwrap_or_default();
    for _ in scopes.iter().filter(|s| !SCOPES.contains(&s.as_str())) {
        errors.push(Error::invalid(&path, scopes.clone(), "unsupported scope"));
    }
    for scope in &scopes {
        for _ in spec.hard.iter().flatten().filter(|(name, _)| !scope_covers(scope, name)) {
            errors.push(Error::invalid(&path, scopes.clone(), "unsupported scope applied to resource"));
        }
    }
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|p| scopes.iter().any(|s| s == p)) {
            errors.push(Error::invalid(&path, scopes.clone(), "conflicting scopes"));
        }
    }
    errors
}

/// Returns whether a quota of this scope can count the resource.
fn scope_covers(scope: &str, resource: &str) -> bool {
    let of_claims = matches!(resource, "persistentvolumeclaims" | "requests.storage");
    let of_pods = matches!(
        resource,
        "pods" | "cpu" | "memory" | "limits.cpu" | "limits.memory" | "requests.cpu" | "requests.memory"
    );
    let is_known = is_standard_resource(resource);
    match scope {
        "BestEffort" => !is_known || resource == "pods",
        "VolumeAttributesClass" => !is_known || of_claims,
        known if SCOPES.contains(&known) => !is_known || of_pods,
        _ => true,
    }
}

/// Requires a resource of a container, an object count, or a fully qualified name.
fn quota_resource_name(errors: &mut ErrorList, path: &Path, name: &str) {
    let found = names::label_key(name);
    if !found.is_empty() {
        validate::problems(errors, path, name, found);
    } else if !name.contains('/') && !is_standard_resource(name) {
        let problem = "must be a standard resource type or fully qualified";
        errors.push(Error::invalid(path, name, problem));
        errors.push(Error::invalid(path, name, "must be a standard resource for quota"));
    }
}
