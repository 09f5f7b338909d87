//! DeviceClass: a category of devices that the administrator defines.

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::claims::{self, CONFIGURATIONS_MAX};
use super::configuration;
use super::lists::bounded;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::DeviceClass::RESOURCE, "DeviceClassList", "deviceclass", &Rules)
};

const COLUMNS: &[Column] = &[NAME, AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::DeviceClass>().unwrap_or_default();
    vec![Value::from(object.name()), table::age(o.metadata.creation_timestamp.as_ref(), cx)]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::DeviceClass>().map(|o| validate_own(&o, None)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let old = old.typed::<api::DeviceClass>().unwrap_or_default();
        new.typed::<api::DeviceClass>().map(|o| validate_own(&o, Some(&old))).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_own(class: &api::DeviceClass, old: Option<&api::DeviceClass>) -> ErrorList {
    let mut errors = ErrorList::new();
    let (path, spec) = (Path::new("spec"), class.spec.clone().unwrap_or_default());
    let selectors = spec.selectors.as_deref().unwrap_or_default();
    let before = old.and_then(|o| o.spec.as_ref());
    let stored = before.is_some_and(|b| b.selectors.as_deref().unwrap_or_default() == selectors);
    claims::validate_selectors(&mut errors, &path.child("selectors"), selectors, stored);
    let config = spec.config.as_deref().unwrap_or_default();
    bounded(&mut errors, &path.child("config"), config, CONFIGURATIONS_MAX, |errors, path, config| {
        configuration::validate(errors, path, config.opaque.as_ref());
    });
    if let Some(name) = spec.extended_resource_name.as_deref().filter(|n| !is_extended_resource(n)) {
        let problem = "a name must be a domain-prefixed path, such as 'example.com/my-prop'";
        errors.push(Error::invalid(&path.child("extendedResourceName"), name, problem));
    }
    errors
}

/// Returns whether the name has a domain that is not Kubernetes' own, and is short enough for quotas.
fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native
        && !name.starts_with("requests.")
        && knarr_apimachinery::names::label_key(&format!("requests.{name}")).is_empty()
}
