//! Validation never accepts what it cannot decode: tests every resource and field with a value of the wrong type.

use std::collections::BTreeSet;

use bytes::Bytes;
use knarr_api::codec;
use knarr_api::object::Object;
use knarr_api::resource::Resource;
use knarr_api::resources;
use knarr_apimachinery::schema::{self, Type};
use serde_json::{Value, json};

/// Fields that accept any value: the spec of a StorageVersion is an object without fields.
const ANY: &[&str] = &["internal.apiserver.k8s.io/v1alpha1/storageversions spec"];

fn object(resource: &Resource, field: &str, value: Value) -> Object {
    let object = json!({
        "apiVersion": resource.types.api_version(), "kind": resource.types.kind, "metadata": {"name": "a"},
        field: value,
    });
    Object::new(Bytes::from(object.to_string()), resource.selectable).unwrap()
}

/// Returns each stored resource with each of its own fields that cannot hold a fractional number.
fn fields() -> impl Iterator<Item = (&'static Resource, &'static str)> {
    let all = resources::all().iter().chain(resources::on_request()).copied().filter(|r| r.is_stored());
    all.flat_map(|resource| {
        let schema = schema::for_kind(&resource.types.gvk()).expect("a kind of the table");
        let own = schema.fields.iter().filter(|f| !["apiVersion", "kind", "metadata"].contains(&f.name));
        let own = own.filter(|f| !matches!(f.ty, Type::Any | Type::Float64));
        own.map(move |field| (resource, field.name))
    })
}

fn named(resource: &Resource, field: &str) -> String {
    format!("{}/{} {field}", resource.types.api_version(), resource.types.plural)
}

#[test]
fn no_object_is_created_unread() {
    let mut passed = BTreeSet::new();
    for (resource, field) in fields() {
        let object = object(resource, field, json!(1.5));
        if resource.strategy.validate(&object).is_empty() && codec::readable(&resource.types, &object).is_ok()
        {
            passed.insert(named(resource, field));
        }
    }
    assert_eq!(passed.iter().map(String::as_str).collect::<Vec<_>>(), ANY);
}

#[test]
fn no_object_is_updated_unread() {
    let mut passed = BTreeSet::new();
    for (resource, field) in fields() {
        let (new, old) = (object(resource, field, json!(1.5)), object(resource, field, Value::Null));
        let silent = resource.strategy.validate_update(&new, &old, None).is_empty();
        if silent && codec::readable(&resource.types, &new).is_ok() {
            passed.insert(named(resource, field));
        }
    }
    assert_eq!(passed.iter().map(String::as_str).collect::<Vec<_>>(), ANY);
}

/// If fields are immutable, validation also notes an old object that does not decode.
#[test]
fn an_unread_old_object_is_noted() {
    for (group, plural) in [("", "services"), ("", "pods"), ("apps", "deployments"), ("batch", "jobs")] {
        let resource = resources::find(group, plural).unwrap();
        let (new, old) = (object(resource, "spec", json!({})), object(resource, "spec", json!(1.5)));
        resource.strategy.validate_update(&new, &old, None);
        assert!(old.unreadable().is_some(), "{plural}");
    }
}
