//! PersistentVolume: a piece of storage in the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::core::access_modes::{access_modes, validate_access_modes};
use crate::core::pod::default_network_volume;
use crate::core::pod::validation::{host_path, node_selector};
use crate::core::pod::warnings::node_selector_term;
use crate::core::storage_class_name::{CLASS_ANNOTATION, class};
use crate::core::volume_sources::{self, Of};
use crate::defaults::{Fields, blank, child, existing, text, unset};
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
    Column::new("Capacity", "string", "The capacity of the volume."),
    Column::new("Access Modes", "string", "The access modes of the volume."),
    Column::new("Reclaim Policy", "string", "The reclaim policy of the volume."),
    Column::new("Status", "string", "The phase of the volume."),
    Column::new("Claim", "string", "The claim that the volume is bound to."),
    Column::new("StorageClass", "string", "The StorageClass of the volume."),
    Column::new("VolumeAttributesClass", "string", "The VolumeAttributesClass of the volume."),
    Column::new("Reason", "string", "The reason for the current phase."),
    AGE,
    Column::wide("VolumeMode", "string", "The volume mode: Filesystem or Block."),
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

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        blank(child(fields, "status"), "phase", "Pending");
        let spec = child(fields, "spec");
        blank(spec, "persistentVolumeReclaimPolicy", "Retain");
        unset(spec, "volumeMode", "Filesystem");
        default_source(spec);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        // The transition to the first phase happens at creation.
        let made = object.pointer("/metadata/creationTimestamp").cloned().unwrap_or_default();
        let status = json!({"phase": "Pending", "lastPhaseTransitionTime": made});
        prepare::object(object).insert("status".to_owned(), status);
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
        let (mut now, before) = (source(&new), source(&old));
        // A secret for expanding the volume may be added later.
        const EXPAND: &str = "controllerExpandSecretRef";
        if before.get("csi").is_some_and(|csi| csi.get(EXPAND).is_none())
            && let Some(csi) = existing(&mut now, "csi")
        {
            csi.remove(EXPAND);
        }
        if now != before {
            let text = crate::diff::unified(&before, &now);
            let why = format!("spec.persistentvolumesource is immutable after creation\n{text}");
            errors.push(Error::forbidden(&Path::new("spec").child("persistentvolumesource"), why));
        }
        let mode = |volume: &api::PersistentVolume| volume.spec.as_ref().and_then(|s| s.volume_mode.clone());
        validate::immutable(&mut errors, &Path::new("volumeMode"), &mode(&new), &mode(&old));
        let spec = |volume: &api::PersistentVolume| volume.spec.clone().unwrap_or_default();
        let (new, old) = (spec(&new), spec(&old));
        if let Some(before) = old.node_affinity.filter(|b| new.node_affinity.as_ref() != Some(b))
            && !only_newer_labels(&before, new.node_affinity.as_ref())
        {
            let text = new.node_affinity.as_ref().map_or("null".to_owned(), affinity_text);
            let problem = "field is immutable, except for updating from beta label to GA";
            errors.push(validate::invalid_text(&Path::new("nodeAffinity"), &text, problem));
        }
        if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
            let path = Path::new("spec").child("volumeAttributesClassName");
            errors.push(Error::forbidden(&path, "update from non-nil value to nil is forbidden"));
        }
        errors
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        new.typed::<api::PersistentVolume>().map(|volume| volume_warnings(&volume)).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// Sets the defaults of a volume's source.
pub fn default_source(spec: &mut Fields) {
    if let Some(host_path) = existing(spec, "hostPath") {
        unset(host_path, "type", "");
    }
    default_network_volume(spec);
}

/// Returns the volume's class, or an empty string.
pub fn class_of_volume(volume: &api::PersistentVolume) -> &str {
    class(&volume.metadata, volume.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()))
}

fn volume_warnings(volume: &api::PersistentVolume) -> Vec<String> {
    let spec = volume.spec.clone().unwrap_or_default();
    let mut warnings = Vec::new();
    for (key, message) in [
        (CLASS_ANNOTATION, r#"deprecated since v1.8; use "storageClassName" attribute instead"#),
        (
            "volume.beta.kubernetes.io/mount-options",
            r#"deprecated since v1.31; use "mountOptions" attribute instead"#,
        ),
    ] {
        if volume.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(key)) {
            warnings.push(format!("{}: {message}", Path::new("metadata").child("annotations").key(key)));
        }
    }
    if spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. \
             Instead, the recommended approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    let terms = spec.node_affinity.iter().flat_map(|a| &a.required).flat_map(|r| &r.node_selector_terms);
    let path = Path::new("spec").child("nodeAffinity").child("required").child("nodeSelectorTerms");
    for (i, term) in terms.enumerate() {
        warnings.extend(node_selector_term(term, false, &path.index(i)));
    }
    for (field, set, message) in [
        ("cephfs", spec.cephfs.is_some(), "deprecated in v1.28, non-functional in v1.31+"),
        (
            "photonPersistentDisk",
            spec.photon_persistent_disk.is_some(),
            "deprecated in v1.11, non-functional in v1.16+",
        ),
        ("scaleIO", spec.scale_io.is_some(), "deprecated in v1.16, non-functional in v1.22+"),
        ("storageOS", spec.storageos.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", spec.glusterfs.is_some(), "deprecated in v1.25, non-functional in v1.26+"),
        ("rbd", spec.rbd.is_some(), "deprecated in v1.28, non-functional in v1.31+"),
        ("flocker", spec.flocker.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
        ("quobyte", spec.quobyte.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
    ] {
        if set {
            warnings.push(format!("spec.{field}: {message}"));
        }
    }
    warnings
}

/// Deprecated node labels and the labels that replace them.
const RENAMED_LABELS: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
];

/// Returns whether only label names changed, from deprecated to current ones.
fn only_newer_labels(old: &api::VolumeNodeAffinity, new: Option<&api::VolumeNodeAffinity>) -> bool {
    let mut renamed = old.clone();
    let terms = |a: &api::VolumeNodeAffinity| {
        a.required.iter().flat_map(|r| r.node_selector_terms.clone()).collect::<Vec<_>>()
    };
    let wanted = new.map(terms).unwrap_or_default();
    let own = renamed.required.iter_mut().flat_map(|r| r.node_selector_terms.iter_mut());
    for (own, wanted) in own.zip(&wanted) {
        let own = own.match_expressions.iter_mut().flatten();
        for (own, wanted) in own.zip(wanted.match_expressions.iter().flatten()) {
            if RENAMED_LABELS.contains(&(own.key.as_str(), wanted.key.as_str())) {
                own.key.clone_from(&wanted.key);
            }
        }
    }
    new == Some(&renamed)
}

/// Returns node affinity in upstream's internal Go type, as the message shows it.
fn affinity_text(affinity: &api::VolumeNodeAffinity) -> String {
    let list = |requirements: Option<&Vec<api::NodeSelectorRequirement>>| {
        let one = |r: &api::NodeSelectorRequirement| {
            let (key, operator) = (Value::from(r.key.as_str()), Value::from(r.operator.as_str()));
            format!(r#"{{"Key":{key},"Operator":{operator},"Values":{}}}"#, validate::shown(&r.values))
        };
        requirements.map_or("null".to_owned(), |list| {
            format!("[{}]", list.iter().map(one).collect::<Vec<_>>().join(","))
        })
    };
    let term = |t: &api::NodeSelectorTerm| {
        let (expressions, fields) = (list(t.match_expressions.as_ref()), list(t.match_fields.as_ref()));
        format!(r#"{{"MatchExpressions":{expressions},"MatchFields":{fields}}}"#)
    };
    let required = affinity.required.as_ref().map_or("null".to_owned(), |required| {
        let terms: Vec<String> = required.node_selector_terms.iter().map(term).collect();
        format!(r#"{{"NodeSelectorTerms":[{}]}}"#, terms.join(","))
    });
    format!(r#"{{"Required":{required}}}"#)
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

/// Returns the volume source: the field of the spec that says where the storage is.
fn source(volume: &api::PersistentVolume) -> Fields {
    volume.spec.as_ref().map(source_of).unwrap_or_default()
}

fn source_of(spec: &api::PersistentVolumeSpec) -> Fields {
    match validate::shown(spec) {
        Value::Object(mut spec) => {
            spec.retain(|field, _| !NOT_SOURCES.contains(&field.as_str()));
            spec
        }
        _ => Fields::new(),
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
    validate_capacity(&mut errors, &path.child("capacity"), &spec.capacity.clone().unwrap_or_default());
    let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("");
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        let policies = ["Delete", "Recycle", "Retain"];
        validate::supported_value(&mut errors, &policy_path, policy, &policies);
    }
    if let Some(affinity) = &spec.node_affinity {
        let path = path.child("nodeAffinity").child("required");
        match &affinity.required {
            Some(selector) => node_selector(&mut errors, &path, selector),
            None => errors.push(Error::required(&path, "must specify required node constraints")),
        }
    }
    validate_source(&mut errors, &path, &spec, volume.name());
    let root = spec.host_path.as_ref().is_some_and(|h| is_root(&h.path));
    if root && policy == "Recycle" {
        errors.push(Error::forbidden(&policy_path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    if let Some(class) = spec.storage_class_name.as_deref().filter(|c| !c.is_empty()) {
        validate::dns_subdomain(&mut errors, &path.child("storageClassName"), class);
    }
    if let Some(mode) = &spec.volume_mode {
        validate::supported_value(&mut errors, &path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    if let Some(class) = spec.volume_attributes_class_name.as_deref() {
        let at = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.push(Error::required(&at, "an empty string is disallowed"));
        } else {
            validate::dns_subdomain(&mut errors, &at, class);
        }
        if spec.csi.is_none() {
            let why = "has to be specified when using volumeAttributesClassName";
            errors.push(Error::required(&path.child("csi"), why));
        }
    }
    errors
}

/// Returns whether the path is the root directory, in any spelling.
fn is_root(path: &str) -> bool {
    let mut depth = 0usize;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        depth = if part == ".." { depth.saturating_sub(1) } else { depth + 1 };
    }
    path.starts_with('/') && depth == 0
}

fn validate_capacity(errors: &mut ErrorList, path: &Path, capacity: &BTreeMap<String, ApiQuantity>) {
    if capacity.is_empty() {
        errors.push(Error::required(path, ""));
    }
    if capacity.len() != 1 || !capacity.contains_key("storage") {
        let given = if capacity.is_empty() { Value::Null } else { validate::shown(&capacity) };
        errors.push(validate::not_supported(path, given, &["storage"]));
    }
    for (name, amount) in capacity {
        let amount = Quantity::try_from(amount).unwrap_or_default();
        let path = path.key(name);
        if amount.value() < 0 {
            errors.push(Error::invalid(&path, amount.value(), "must be a valid resource quantity"));
        }
        if amount.signum() <= 0 {
            errors.push(Error::invalid(&path, amount.to_string(), "must be greater than zero"));
        }
    }
}

/// The sources in upstream's order.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Requires exactly one valid source.
fn validate_source(errors: &mut ErrorList, path: &Path, spec: &api::PersistentVolumeSpec, name: &str) {
    let sources = source_of(spec);
    let mut found = 0;
    for field in SOURCES {
        let Some(source) = sources.get(*field).and_then(Value::as_object) else { continue };
        found += 1;
        // Upstream's paths spell some fields in more than one way.
        let (at, forbidden) = match *field {
            "gcePersistentDisk" => ("persistentDisk", *field),
            "cephfs" => (*field, "cephFS"),
            _ => (*field, *field),
        };
        if found > 1 && *field != "flexVolume" {
            let why = "may not specify more than 1 volume type";
            errors.push(Error::forbidden(&path.child(forbidden), why));
            continue;
        }
        let at = path.child(at);
        if *field == "hostPath" {
            host_path(errors, &at, text(source, "path"), source.get("type").and_then(Value::as_str));
        } else {
            volume_sources::source(errors, &at, field, source, Of::PersistentVolume(name));
        }
        if *field == "local" && spec.node_affinity.is_none() {
            let why = "Local volume requires node affinity";
            errors.push(Error::required(&path.child("nodeAffinity"), why));
        }
    }
    if found == 0 {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

/// Validates the spec of an inline volume, which a VolumeAttachment contains in place of a reference.
pub fn inline_spec(errors: &mut ErrorList, path: &Path, spec: &api::PersistentVolumeSpec) {
    const WHY: &str = "may not be specified in the context of inline volumes";
    let not_here = |errors: &mut ErrorList, field: &str, set: bool| {
        if set {
            errors.push(Error::forbidden(&path.child(field), WHY));
        }
    };
    not_here(errors, "claimRef", spec.claim_ref.is_some());
    not_here(errors, "capacity", spec.capacity.as_ref().is_some_and(|c| !c.is_empty()));
    if spec.csi.is_none() {
        let why = "has to be specified in the context of inline volumes";
        errors.push(Error::required(&path.child("csi"), why));
    }
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        errors.push(Error::required(&path.child("accessModes"), ""));
    }
    validate_access_modes(errors, &path.child("accessModes"), modes);
    let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("");
    if !matches!(policy, "" | "Retain") {
        let why = "may only be Retain in the context of inline volumes";
        errors.push(Error::forbidden(&path.child("persistentVolumeReclaimPolicy"), why));
    }
    not_here(errors, "nodeAffinity", spec.node_affinity.is_some());
    validate_source(errors, path, spec, "");
    not_here(errors, "storageClassName", spec.storage_class_name.as_ref().is_some_and(|c| !c.is_empty()));
    if spec.volume_mode.as_deref().is_some_and(|m| m != "Filesystem") {
        let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errors.push(Error::forbidden(&path.child("volumeMode"), why));
    }
}
