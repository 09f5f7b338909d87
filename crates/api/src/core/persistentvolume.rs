//! PersistentVolume: a piece of storage in the cluster.

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::core::pod::default_network_volume;
use crate::defaults::{blank, child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

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

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
