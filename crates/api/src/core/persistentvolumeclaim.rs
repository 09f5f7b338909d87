//! PersistentVolumeClaim: a request for storage.

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::core::access_modes::access_modes;
use crate::core::claim_spec::{default_spec, validate_claim_spec};
use crate::core::pod::warnings::claim_spec;
use crate::core::storage_class_name::{CLASS_ANNOTATION, class};
use crate::defaults::{Fields, blank, child};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["pvc"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::PersistentVolumeClaim::RESOURCE,
        "PersistentVolumeClaimList",
        "persistentvolumeclaim",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Status", "string", "The phase of the claim."),
    Column::new("Volume", "string", "The volume that the claim is bound to."),
    Column::new("Capacity", "string", "The capacity of the bound volume."),
    Column::new("Access Modes", "string", "The access modes of the bound volume."),
    Column::new("StorageClass", "string", "The StorageClass of the claim."),
    Column::new("VolumeAttributesClass", "string", "The VolumeAttributesClass of the claim."),
    AGE,
    Column::wide("VolumeMode", "string", "The volume mode: Filesystem or Block."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PersistentVolumeClaim>().unwrap_or_default();
    let spec = o.spec.clone().unwrap_or_default();
    let status = o.status.clone().unwrap_or_default();
    let phase = match o.metadata.deletion_timestamp {
        Some(_) => "Terminating",
        None => status.phase.as_deref().unwrap_or(""),
    };
    let volume = spec.volume_name.as_deref().unwrap_or("");
    let (mut capacity, mut modes) = (String::new(), String::new());
    if !volume.is_empty() {
        capacity = status.capacity.as_ref().and_then(|c| c.get("storage")).map_or("0", |q| &q.0).to_owned();
        modes = access_modes(status.access_modes.as_deref().unwrap_or_default());
    }
    vec![
        Value::from(object.name()),
        Value::from(phase),
        Value::from(volume),
        Value::from(capacity),
        Value::from(modes),
        Value::from(class(&o.metadata, spec.storage_class_name.as_deref())),
        Value::from(spec.volume_attributes_class_name.as_deref().unwrap_or("<unset>")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(spec.volume_mode.as_deref().unwrap_or("<unset>")),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        blank(child(fields, "status"), "phase", "Pending");
        default_spec(child(fields, "spec"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::object(object).insert("status".to_owned(), json!({"phase": "Pending"}));
        normalize_sources(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource.is_none() {
            normalize_sources(new);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PersistentVolumeClaim>().map(|o| validate_claim(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) =
            (new.typed::<api::PersistentVolumeClaim>(), old.typed::<api::PersistentVolumeClaim>())
        else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => validate_status(&new),
            _ => validate_claim_update(&new, &old),
        }
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        new.typed::<api::PersistentVolumeClaim>().map(|claim| claim_warnings(&claim)).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn storage_of(claim: &api::PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Quantity::try_from(requests.get("storage")?).ok()
}

fn validate_claim(claim: &api::PersistentVolumeClaim) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = claim.spec.clone().unwrap_or_default();
    validate_claim_spec(&mut errors, &Path::new("spec"), &spec);
    errors
}

/// Returns whether `dataSource` supports this source; `dataSourceRef` supports any kind.
fn is_old_source(source: &Value) -> bool {
    let text = |field: &str| source.get(field).and_then(Value::as_str).unwrap_or("");
    matches!(
        (text("apiGroup"), text("kind")),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

/// Copies one of the two fields to the other; clears a `dataSource` of a kind that it does not support.
fn normalize_sources(claim: &mut Value) {
    let spec = child(prepare::object(claim), "spec");
    let set = |spec: &Fields, field: &str| spec.get(field).is_some_and(|v| !v.is_null());
    if !set(spec, "dataSourceRef") && spec.get("dataSource").is_some_and(|s| !is_old_source(s)) {
        spec.remove("dataSource");
    }
    match (set(spec, "dataSource"), set(spec, "dataSourceRef")) {
        (true, false) => {
            let source = spec.get("dataSource").cloned().unwrap_or(Value::Null);
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (false, true) => {
            let reference = spec.get("dataSourceRef").cloned().unwrap_or(Value::Null);
            let namespaced = reference.get("namespace").is_some_and(|n| !n.is_null() && n != "");
            if !namespaced {
                let mut source = reference;
                prepare::object(&mut source).remove("namespace");
                spec.insert("dataSource".to_owned(), source);
            }
        }
        _ => {}
    }
}

/// Returns the claim's class, or an empty string.
pub fn class_of(claim: &api::PersistentVolumeClaim) -> &str {
    class(&claim.metadata, claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()))
}

fn claim_warnings(claim: &api::PersistentVolumeClaim) -> Vec<String> {
    let mut warnings = Vec::new();
    if claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CLASS_ANNOTATION)) {
        warnings.push(format!(
            "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
        ));
    }
    warnings.extend(claim_spec(&Path::new("spec"), &claim.spec.clone().unwrap_or_default()));
    warnings
}

/// Validates the status of a claim.
fn validate_status(new: &api::PersistentVolumeClaim) -> ErrorList {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let mut errors = ErrorList::new();
    let status = new.status.clone().unwrap_or_default();
    let path = Path::new("status");
    let negative = |errors: &mut ErrorList, path: &Path, amount: &ApiQuantity| {
        let amount = Quantity::try_from(amount).unwrap_or_default().value();
        if amount < 0 {
            errors.push(Error::invalid(path, amount, "must be a valid resource quantity"));
        }
    };
    for (name, amount) in status.capacity.iter().flatten() {
        negative(&mut errors, &path.child("capacity").key(name), amount);
    }
    let mut states = STATES;
    states.sort_unstable();
    let at = path.child("allocatedResourceStatuses");
    for (name, state) in status.allocated_resource_statuses.iter().flatten() {
        resource_key(&mut errors, &at, name);
        if !states.contains(&state.as_str()) {
            errors.push(validate::not_supported(&at, name.as_str(), &states));
        }
    }
    let at = path.child("allocatedResources");
    for (name, amount) in status.allocated_resources.iter().flatten() {
        if resource_key(&mut errors, &at, name) {
            negative(&mut errors, &at.key(name), amount);
        }
    }
    errors
}

/// Validates a resource of a claim: storage, or a resource outside of Kubernetes' own domains.
fn resource_key(errors: &mut ErrorList, path: &Path, name: &str) -> bool {
    let before = errors.0.len();
    validate::label_key(errors, path, name);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if errors.0.len() == before && native && name != "storage" {
        errors.push(validate::not_supported(path, name, &["storage"]));
    }
    errors.0.len() == before
}

/// Validates an update: a claim may only grow, be bound to a volume, and change its attributes class.
fn validate_claim_update(new: &api::PersistentVolumeClaim, old: &api::PersistentVolumeClaim) -> ErrorList {
    let mut errors = validate_claim(new);
    let mut settled = new.spec.clone().unwrap_or_default();
    let mut before = old.spec.clone().unwrap_or_default();
    if before.volume_name.as_deref().unwrap_or("").is_empty() {
        before.volume_name.clone_from(&settled.volume_name);
    }
    if before.storage_class_name.is_none() {
        // A default class may be set later.
        settled.storage_class_name = None;
    }
    if new.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound") {
        let size = before.resources.as_ref().and_then(|r| r.requests.as_ref()).and_then(|r| r.get("storage"));
        let requests = settled.resources.as_mut().and_then(|r| r.requests.as_mut());
        if let (Some(requests), Some(size)) = (requests, size) {
            requests.insert("storage".to_owned(), size.clone());
        }
        settled.volume_attributes_class_name.clone_from(&before.volume_attributes_class_name);
    }
    if settled != before {
        let text = crate::diff::unified(&before, &settled);
        let why = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{text}"
        );
        errors.push(Error::forbidden(&Path::new("spec"), why));
    }
    let capacity = old.status.as_ref().and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage"));
    let capacity = capacity.and_then(|c| Quantity::try_from(c).ok()).unwrap_or_default();
    let (size, was) = (storage_of(new).unwrap_or_default(), storage_of(old).unwrap_or_default());
    if size < was && size <= capacity {
        let path = Path::new("spec").child("resources").child("requests").child("storage");
        errors.push(Error::forbidden(&path, "field can not be less than status.capacity"));
    }
    let mode = |claim: &api::PersistentVolumeClaim| claim.spec.as_ref().and_then(|s| s.volume_mode.clone());
    validate::immutable(&mut errors, &Path::new("volumeMode"), &mode(new), &mode(old));
    let class = |claim: &api::PersistentVolumeClaim| {
        claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone())
    };
    let applied = old.status.as_ref().is_some_and(|s| s.current_volume_attributes_class_name.is_some());
    if applied && class(new) != class(old) {
        let what = match class(new).as_deref() {
            None => "nil",
            Some("") => "empty string",
            Some(_) => return errors,
        };
        let why =
            format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.push(Error::forbidden(&Path::new("spec").child("volumeAttributesClassName"), why));
    }
    errors
}
