//! StorageClass: how volumes are made.

use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::defaults::unset;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

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

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::StorageClass>().map(|o| validate_class(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::StorageClass>(), old.typed::<api::StorageClass>()) else {
            return ErrorList::new();
        };
        let mut errors = ErrorList::new();
        for (field, changed) in [
            ("parameters", new.parameters != old.parameters),
            ("provisioner", new.provisioner != old.provisioner),
            ("reclaimPolicy", new.reclaim_policy != old.reclaim_policy),
            ("volumeBindingMode", new.volume_binding_mode != old.volume_binding_mode),
        ] {
            if changed {
                errors.push(validate::changed(&Path::new(field)));
            }
        }
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 * 1024;

fn validate_class(class: &api::StorageClass) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("provisioner");
    if validate::required(&mut errors, &path, &class.provisioner) {
        validate::label_key(&mut errors, &path, &class.provisioner.to_lowercase());
    }
    let parameters = class.parameters.clone().unwrap_or_default();
    let path = Path::new("parameters");
    if parameters.len() > MAX_PARAMETERS {
        errors.push(Error::too_long(&path, MAX_PARAMETERS));
    } else {
        if parameters.contains_key("") {
            errors.push(Error::invalid(&path, "", "field can not be empty."));
        }
        if parameters.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>() > MAX_PARAMETER_BYTES {
            errors.push(Error::too_long(&path, MAX_PARAMETER_BYTES));
        }
    }
    if let Some(policy) = class.reclaim_policy.as_deref().filter(|p| !p.is_empty()) {
        validate::supported_value(&mut errors, &Path::new("reclaimPolicy"), policy, &["Delete", "Retain"]);
    }
    let path = Path::new("volumeBindingMode");
    match class.volume_binding_mode.as_deref() {
        None => errors.push(Error::required(&path, "")),
        Some(mode) => {
            let modes = ["Immediate", "WaitForFirstConsumer"];
            validate::supported_value(&mut errors, &path, mode, &modes);
        }
    }
    errors
}
