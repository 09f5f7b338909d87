//! ConfigMap: plain and binary configuration data.

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["cm"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ConfigMap::RESOURCE, "ConfigMapList", "configmap", &Rules)
};

const COLUMNS: &[Column] = &[NAME, Column::new("Data", "string", "The number of data entries."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ConfigMap>().unwrap_or_default();
    let entries = o.data.as_ref().map_or(0, |d| d.len()) + o.binary_data.as_ref().map_or(0, |d| d.len());
    vec![
        Value::from(object.name()),
        Value::from(entries),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ConfigMap>().map(|o| validate_data(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::ConfigMap>(), old.typed::<api::ConfigMap>()) else {
            return ErrorList::new();
        };
        let mut errors = ErrorList::new();
        if old.immutable == Some(true) {
            for (field, changed) in [
                ("immutable", new.immutable != Some(true)),
                ("data", new.data != old.data),
                ("binaryData", new.binary_data != old.binary_data),
            ] {
                if changed {
                    let why = "field is immutable when `immutable` is set";
                    errors.push(Error::forbidden(&Path::new(field), why));
                }
            }
        }
        errors.extend(validate_data(&new));
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// The largest content of a ConfigMap or Secret, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;

fn validate_data(config: &api::ConfigMap) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut size = 0;
    for (key, value) in config.data.iter().flatten() {
        let path = Path::new("data").key(key);
        validate::problems(&mut errors, &path, key, names::config_map_key(key));
        if config.binary_data.as_ref().is_some_and(|b| b.contains_key(key)) {
            errors.push(Error::invalid(&path, key.as_str(), "duplicate of key present in binaryData"));
        }
        size += value.len();
    }
    for (key, value) in config.binary_data.iter().flatten() {
        let path = Path::new("binaryData").key(key);
        validate::problems(&mut errors, &path, key, names::config_map_key(key));
        size += value.0.len();
    }
    if size > MAX_BYTES {
        errors.push(Error::too_long(&Path::default().key(""), MAX_BYTES));
    }
    errors
}
