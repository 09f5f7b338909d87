//! DeviceTaintRule: a taint that an administrator sets on devices.

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::{identifiers, taints};
use crate::conditions;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::DeviceTaintRule::RESOURCE, "DeviceTaintRuleList", "devicetaintrule", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Key", "string", "The key of the taint."),
    Column::new("Value", "string", "The value of the taint."),
    Column::new("Effect", "string", "The effect of the taint."),
    Column::new("TimeAdded", "string", "The time since the taint was added."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::DeviceTaintRule>().unwrap_or_default();
    let taint = &o.spec.taint;
    let added = taint.time_added.as_ref().map_or(Value::from(""), |t| table::age(Some(t), cx));
    vec![
        Value::from(object.name()),
        Value::from(taint.key.as_str()),
        Value::from(taint.value.as_deref().unwrap_or("")),
        Value::from(taint.effect.as_str()),
        added,
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::DeviceTaintRule>().map(|o| validate_spec(&o.spec, None)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        match (new.typed::<api::DeviceTaintRule>(), old.typed::<api::DeviceTaintRule>()) {
            (Ok(new), Ok(_)) if subresource == Some("status") => validate_status(&new),
            (Ok(new), Ok(old)) => validate_spec(&new.spec, Some(&old.spec)),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const CONDITIONS_MAX: usize = 8;

fn validate_spec(spec: &api::DeviceTaintRuleSpec, old: Option<&api::DeviceTaintRuleSpec>) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    if let Some(selector) = &spec.device_selector {
        let path = path.child("deviceSelector");
        if let Some(driver) = &selector.driver {
            identifiers::driver(&mut errors, &path.child("driver"), driver);
        }
        if let Some(pool) = &selector.pool {
            identifiers::pool(&mut errors, &path.child("pool"), pool);
        }
        if let Some(device) = &selector.device {
            validate::dns_label(&mut errors, &path.child("device"), device);
        }
    }
    taints::validate_taint(&mut errors, &path.child("taint"), &spec.taint, old.map(|o| &o.taint));
    errors
}

fn validate_status(rule: &api::DeviceTaintRule) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status").child("conditions");
    let listed = rule.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions::validate(&mut errors, &path, listed);
    if listed.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(&path, listed.len(), CONDITIONS_MAX));
    }
    errors
}
