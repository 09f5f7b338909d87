//! VolumeAttributesClass: properties of a volume that may change while it is in use.

use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::parameters;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["vac"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::VolumeAttributesClass::RESOURCE,
        "VolumeAttributesClassList",
        "volumeattributesclass",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[NAME, Column::new("DriverName", "string", "The CSI driver of the class."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::VolumeAttributesClass>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(o.driver_name.as_str()),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        if let Ok(class) = object.typed::<api::VolumeAttributesClass>() {
            parameters::driver(&mut errors, &Path::new("driverName"), &class.driver_name);
            let path = Path::new("parameters");
            parameters::parameters(&mut errors, &path, class.parameters.as_ref(), true);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = ErrorList::new();
        if let (Ok(new), Ok(old)) =
            (new.typed::<api::VolumeAttributesClass>(), old.typed::<api::VolumeAttributesClass>())
        {
            for (field, changed) in [
                ("driverName", new.driver_name != old.driver_name),
                ("parameters", new.parameters != old.parameters),
            ] {
                if changed {
                    let why = format!("updates to {field} are forbidden.");
                    errors.push(Error::forbidden(&Path::new(field), why));
                }
            }
        }
        errors.extend(self.validate(new));
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
