//! APIService: registers the server of a group and version: this server, or another one behind a Service.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::{Value, json};

use crate::defaults::{child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    categories: &["api-extensions"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::APIService::RESOURCE, "APIServiceList", "apiservice", &Rules)
};

/// The condition that reports whether the server of an APIService answers.
pub const AVAILABLE: &str = "Available";

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Service", "string", "The Service that serves the API group version."),
    Column::new("Available", "string", "Whether the API group version is available."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::APIService>().unwrap_or_default();
    let spec = o.spec.clone().unwrap_or_default();
    let service = spec.service.map_or("Local".to_owned(), |s| {
        format!("{}/{}", s.namespace.unwrap_or_default(), s.name.unwrap_or_default())
    });
    let condition =
        o.status.iter().flat_map(|s| s.conditions.iter().flatten()).find(|c| c.type_ == AVAILABLE);
    let available = match condition {
        None => "Unknown".to_owned(),
        Some(c) => match c.reason.as_deref().filter(|r| !r.is_empty() && c.status != "True") {
            Some(reason) => format!("{} ({reason})", c.status),
            None => c.status.clone(),
        },
    };
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    vec![Value::from(object.name()), Value::from(service), Value::from(available), age]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        if let Some(service) = existing(spec, "service") {
            unset(service, "port", 443);
        }
    }

    /// Marks versions that this server serves itself as available.
    fn prepare_for_create(&self, object: &mut Value) {
        let local = object.pointer("/spec/service").is_none_or(Value::is_null);
        let status = match local {
            true => json!({"conditions": [{
                "type": AVAILABLE, "status": "True", "reason": "Local",
                "message": "Local APIServices are always available",
                "lastTransitionTime": object.pointer("/metadata/creationTimestamp").cloned().unwrap_or(Value::Null),
            }]}),
            false => json!({}),
        };
        prepare::object(object).insert("status".to_owned(), status);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            const KEPT: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];
            KEPT.iter().for_each(|field| prepare::keep_metadata(new, old, field));
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::APIService>().map(|o| validate_own(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        let Ok(new) = new.typed::<api::APIService>() else { return ErrorList::new() };
        match subresource {
            Some("status") => validate_status(&new),
            _ => validate_own(&new),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

/// Requires a positive priority of at most `most`.
fn priority(errors: &mut ErrorList, path: &Path, value: i32, most: i32) {
    if !(1..=most).contains(&value) {
        errors.push(Error::invalid(path, value, format!("must be positive and less than {most}")));
    }
}

fn validate_own(service: &api::APIService) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = service.spec.clone().unwrap_or_default();
    let (group, version) = (spec.group.as_deref().unwrap_or(""), spec.version.as_deref().unwrap_or(""));
    let (name, wanted) = (service.metadata.name.as_deref().unwrap_or(""), format!("{version}.{group}"));
    if name != wanted && names::path_segment_name(name).is_empty() {
        let problem = format!("must be `spec.version+\".\"+spec.group`: {}", Value::from(wanted));
        errors.push(Error::invalid(&Path::new("metadata").child("name"), name, problem));
    }
    let path = Path::new("spec");
    if group.is_empty() && version != "v1" {
        let problem = "only v1 may have an empty group and it better be legacy kube";
        errors.push(Error::required(&path.child("group"), problem));
    }
    if !group.is_empty() {
        validate::dns_subdomain(&mut errors, &path.child("group"), group);
    }
    validate::problems(&mut errors, &path.child("version"), version, names::dns1035_label(version));
    priority(&mut errors, &path.child("groupPriorityMinimum"), spec.group_priority_minimum, 20_000);
    priority(&mut errors, &path.child("versionPriority"), spec.version_priority, 1000);
    let bundle = spec.ca_bundle.as_ref().map_or(0, |b| b.0.len());
    let insecure = spec.insecure_skip_tls_verify.unwrap_or(false);
    let Some(backend) = &spec.service else {
        if bundle > 0 {
            let problem = "local APIServices may not have a caBundle";
            errors.push(Error::invalid(&path.child("caBundle"), format!("{bundle} bytes"), problem));
        }
        if insecure {
            let problem = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(Error::invalid(&path.child("insecureSkipTLSVerify"), true, problem));
        }
        return errors;
    };
    validate_backend(&mut errors, &path.child("service"), backend);
    if insecure && bundle > 0 {
        let problem = "may not be true if caBundle is present";
        errors.push(Error::invalid(&path.child("insecureSkipTLSVerify"), true, problem));
    }
    errors
}

fn validate_backend(errors: &mut ErrorList, path: &Path, backend: &api::ServiceReference) {
    validate::required(errors, &path.child("namespace"), backend.namespace.as_deref().unwrap_or(""));
    validate::required(errors, &path.child("name"), backend.name.as_deref().unwrap_or(""));
    let port = backend.port.unwrap_or(0);
    let problems = names::port_number(i64::from(port));
    if !problems.is_empty() {
        let problem = format!("port is not valid: {}", problems.join(", "));
        errors.push(Error::invalid(&path.child("port"), port, problem));
    }
}

fn validate_status(service: &api::APIService) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status").child("conditions");
    let conditions = service.status.iter().flat_map(|s| s.conditions.iter().flatten());
    for (i, condition) in conditions.enumerate() {
        let path = path.index(i).child("status");
        validate::supported_value(&mut errors, &path, &condition.status, &["True", "False", "Unknown"]);
    }
    errors
}
