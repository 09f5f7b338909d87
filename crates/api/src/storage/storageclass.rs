//! StorageClass: how volumes are made.

use k8s_openapi::api::storage::v1 as api;
use serde_json::Value;

use crate::defaults::unset;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["sc"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::StorageClass::RESOURCE, "StorageClassList", "storageclass", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Provisioner", "string", "Who makes the volumes."),
    Column::new("ReclaimPolicy", "string", "What happens to a volume when its claim goes."),
    Column::new("VolumeBindingMode", "string", "When a claim is bound."),
    Column::new("AllowVolumeExpansion", "string", "Whether volumes may grow."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StorageClass>().unwrap_or_default();
    let annotations = o.metadata.annotations.as_ref();
    let default = annotations.and_then(|a| a.get(DEFAULT_CLASS)).is_some_and(|v| v == "true");
    let name = format!("{}{}", object.name(), if default { " (default)" } else { "" });
    vec![
        Value::from(name),
        Value::from(o.provisioner.as_str()),
        Value::from(o.reclaim_policy.as_deref().unwrap_or("Delete")),
        Value::from(o.volume_binding_mode.as_deref().unwrap_or("Immediate")),
        Value::from(o.allow_volume_expansion.unwrap_or(false)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// The annotation of the class that claims without a class get.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        unset(fields, "reclaimPolicy", "Delete");
        unset(fields, "volumeBindingMode", "Immediate");
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
