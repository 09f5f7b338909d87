//! PersistentVolume: a piece of storage in the cluster.

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::core::persistentvolumeclaim::validate_access_modes;
use crate::core::pod::default_network_volume;
use crate::defaults::{blank, child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["pv"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::PersistentVolume::RESOURCE, "PersistentVolumeList", "persistentvolume", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Capacity", "string", "How much it holds."),
    Column::new("Access Modes", "string", "How it may be mounted."),
    Column::new("Reclaim Policy", "string", "What happens to it when its claim goes."),
    Column::new("Status", "string", "Available, Bound, Released …"),
    Column::new("Claim", "string", "The claim it is bound to."),
    Column::new("StorageClass", "string", "Its class."),
    Column::new("VolumeAttributesClass", "string", "Its attributes' class."),
    Column::new("Reason", "string", "Why it is in this state."),
    AGE,
    Column::wide("VolumeMode", "string", "Filesystem or Block."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PersistentVolume>().unwrap_or_default();
    let spec = o.spec.clone().unwrap_or_default();
    let status = o.status.clone().unwrap_or_default();
    let capacity = spec.capacity.as_ref().and_then(|c| c.get("storage")).map_or("0", |q| &q.0);
    let claim = spec.claim_ref.as_ref().map_or(String::new(), |c| {
        format!("{}/{}", c.namespace.as_deref().unwrap_or(""), c.name.as_deref().unwrap_or(""))
    });
    let phase = match o.metadata.deletion_timestamp {
        Some(_) => "Terminating",
        None => status.phase.as_deref().unwrap_or(""),
    };
    vec![
        Value::from(object.name()),
        Value::from(capacity),
        Value::from(access_modes(spec.access_modes.as_deref().unwrap_or_default())),
        Value::from(spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("")),
        Value::from(phase),
        Value::from(claim),
        Value::from(class(&o.metadata, spec.storage_class_name.as_deref())),
        Value::from(spec.volume_attributes_class_name.as_deref().unwrap_or("<unset>")),
        Value::from(status.reason.as_deref().unwrap_or("")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(spec.volume_mode.as_deref().unwrap_or("<unset>")),
    ]
}

/// `RWO,ROX,RWX,RWOP`, those that are there.
pub(crate) fn access_modes(modes: &[String]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let found = SHORT.iter().filter(|(mode, _)| modes.iter().any(|m| m == mode));
    found.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// The storage class; an old annotation goes before the field.
pub(crate) fn class<'a>(metadata: &'a ObjectMeta, field: Option<&'a str>) -> &'a str {
    let annotation =
        metadata.annotations.as_ref().and_then(|a| a.get("volume.beta.kubernetes.io/storage-class"));
    annotation.map(String::as_str).or(field).unwrap_or("")
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        blank(child(fields, "status"), "phase", "Pending");
        let spec = child(fields, "spec");
        blank(spec, "persistentVolumeReclaimPolicy", "Retain");
        unset(spec, "volumeMode", "Filesystem");
        if let Some(host_path) = existing(spec, "hostPath") {
            unset(host_path, "type", "");
        }
        default_network_volume(spec);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::object(object).insert("status".to_owned(), json!({"phase": "Pending"}));
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PersistentVolume>().map(|o| validate_volume(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::PersistentVolume>(), old.typed::<api::PersistentVolume>())
        else {
            return ErrorList::new();
        };
        if subresource == Some("status") {
            return ErrorList::new();
        }
        let mut errors = validate_volume(&new);
        let (now, before) = (source(&new), source(&old));
        if now != before {
            let text = crate::diff::unified(&before, &now);
            let why = format!("spec.persistentvolumesource is immutable after creation\n{text}");
            errors.push(Error::forbidden(&Path::new("spec").child("persistentvolumesource"), why));
        }
        let mode = |volume: &api::PersistentVolume| volume.spec.as_ref().and_then(|s| s.volume_mode.clone());
        validate::immutable(&mut errors, &Path::new("volumeMode"), &mode(&new), &mode(&old));
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// Fields of the spec that are not the volume's source.
const NOT_SOURCES: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// Where the storage is: the one field of the spec that says so.
fn source(volume: &api::PersistentVolume) -> serde_json::Map<String, Value> {
    match volume.spec.as_ref().map(validate::shown) {
        Some(Value::Object(mut spec)) => {
            spec.retain(|field, _| !NOT_SOURCES.contains(&field.as_str()));
            spec
        }
        _ => serde_json::Map::new(),
    }
}

fn validate_volume(volume: &api::PersistentVolume) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = volume.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        errors.push(Error::required(&path.child("accessModes"), ""));
    }
    validate_access_modes(&mut errors, &path.child("accessModes"), modes);
    let capacity = spec.capacity.clone().unwrap_or_default();
    let at = path.child("capacity");
    if capacity.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    if capacity.len() != 1 || !capacity.contains_key("storage") {
        errors.push(validate::not_supported(&at, validate::shown(&capacity), &["storage"]));
    }
    for (name, amount) in &capacity {
        let amount = Quantity::try_from(amount).unwrap_or_default();
        if amount.signum() <= 0 {
            let problem = "must be greater than zero";
            errors.push(Error::invalid(&at.key(name), amount.to_string(), problem));
        }
    }
    let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("");
    if !policy.is_empty() {
        let policies = ["Delete", "Recycle", "Retain"];
        validate::supported_value(
            &mut errors,
            &path.child("persistentVolumeReclaimPolicy"),
            policy,
            &policies,
        );
    }
    let sources = source(volume);
    if sources.is_empty() {
        errors.push(Error::required(&path, "must specify a volume type"));
    }
    for name in sources.keys().skip(1) {
        errors.push(Error::forbidden(&path.child(name), "may not specify more than 1 volume type"));
    }
    if let Some(host_path) = &spec.host_path {
        let at = path.child("hostPath").child("path");
        if validate::required(&mut errors, &at, &host_path.path) {
            validate::no_backsteps(&mut errors, &at, &host_path.path);
        }
        if host_path.path == "/" && policy == "Recycle" {
            let why = "may not be 'recycle' for a hostPath volume whose path is '/'";
            errors.push(Error::forbidden(&path.child("persistentVolumeReclaimPolicy"), why));
        }
    }
    if let Some(class) = spec.storage_class_name.as_deref().filter(|c| !c.is_empty()) {
        validate::dns_subdomain(&mut errors, &path.child("storageClassName"), class);
    }
    if let Some(mode) = &spec.volume_mode {
        validate::supported_value(&mut errors, &path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    errors
}
