//! IPAddress: an allocated address and the object that it belongs to.

use k8s_openapi::api::networking::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::addresses;
use crate::kind::Kind;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["ip"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::IPAddress::RESOURCE, "IPAddressList", "ipaddress", &Rules)
};

const COLUMNS: &[Column] =
    &[NAME, Column::new("ParentRef", "string", "The object that the address is allocated to."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::IPAddress>().unwrap_or_default();
    let parent = &o.spec.parent_ref;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (group, namespace) = (text(&parent.group), text(&parent.namespace));
    let mut shown = parent.resource.to_lowercase();
    if !group.is_empty() {
        shown.push_str(&format!(".{}", group.to_lowercase()));
    }
    for part in [namespace, parent.name.clone()].iter().filter(|p| !p.is_empty()) {
        shown.push_str(&format!("/{part}"));
    }
    vec![
        Value::from(object.name()),
        Value::from(if has_parent(object) { shown.as_str() } else { "<none>" }),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// Returns whether the object has a parentRef; the typed view always has one.
fn has_parent(object: &Object) -> bool {
    let value: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
    value.pointer("/spec/parentRef").is_some_and(|p| !p.is_null())
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("parentRef");
        let Ok(address) = object.typed::<api::IPAddress>() else { return errors };
        if !has_parent(object) {
            errors.push(Error::required(&path, ""));
            return errors;
        }
        let parent = &address.spec.parent_ref;
        if let Some(group) = parent.group.as_deref().filter(|g| !g.is_empty()) {
            validate::dns_subdomain(&mut errors, &path.child("group"), group);
        }
        for (field, value) in [("resource", &parent.resource), ("name", &parent.name)] {
            validate::path_segment(&mut errors, &path.child(field), value);
        }
        if let Some(namespace) = parent.namespace.as_ref().filter(|n| !n.is_empty()) {
            validate::path_segment(&mut errors, &path.child("namespace"), namespace);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = self.validate(new);
        let (Ok(new), Ok(old)) = (new.typed::<api::IPAddress>(), old.typed::<api::IPAddress>()) else {
            return errors;
        };
        if new.spec.parent_ref != old.spec.parent_ref {
            errors.push(validate::changed(&Path::new("spec").child("parentRef")));
        }
        errors
    }

    /// Requires the address in canonical form.
    fn validate_name(&self, name: &str, _: bool) -> Vec<String> {
        let mut errors = ErrorList::new();
        addresses::canonical_ip(&mut errors, &Path::default(), name);
        errors.0.into_iter().map(|e| e.detail).collect()
    }
}
