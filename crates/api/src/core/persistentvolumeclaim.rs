//! PersistentVolumeClaim: a wish for storage.

use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};

use crate::core::persistentvolume::{access_modes, class};
use crate::defaults::{Fields, blank, child, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

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
    Column::new("Status", "string", "Pending, Bound or Lost."),
    Column::new("Volume", "string", "The volume it is bound to."),
    Column::new("Capacity", "string", "How much that holds."),
    Column::new("Access Modes", "string", "How it may be mounted."),
    Column::new("StorageClass", "string", "Its class."),
    Column::new("VolumeAttributesClass", "string", "Its attributes' class."),
    AGE,
    Column::wide("VolumeMode", "string", "Filesystem or Block."),
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

/// A claim's spec, wherever it stands.
pub fn default_spec(spec: &mut Fields) {
    unset(spec, "volumeMode", "Filesystem");
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
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
