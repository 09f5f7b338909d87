//! HorizontalPodAutoscaler in `v1`, a view of `v2`.

use bytes::Bytes;
use k8s_openapi::api::autoscaling::v1 as api;
use knarr_apimachinery::field::ErrorList;
use serde_json::Value;

use super::conversion::{from_stored, to_stored};
use super::horizontalpodautoscaler::{self as v2, COLUMNS};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Resource, StoredAs};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    stored_as: Some(&StoredAs {
        resource: ("autoscaling", "v2", "horizontalpodautoscalers"),
        to_stored,
        from_stored,
        stored_field,
    }),
    short_names: v2::RESOURCE.short_names,
    categories: v2::RESOURCE.categories,
    subresources: v2::RESOURCE.subresources,
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::HorizontalPodAutoscaler::RESOURCE,
        "HorizontalPodAutoscalerList",
        "horizontalpodautoscaler",
        &Rules,
    )
};

fn stored_field(path: &str) -> Option<&'static str> {
    match path {
        "metadata.name" => Some("metadata.name"),
        "metadata.namespace" => Some("metadata.namespace"),
        _ => None,
    }
}

fn as_v2(object: &Object) -> Option<Object> {
    let value: Value = serde_json::from_slice(&object.json()).ok()?;
    Object::new(Bytes::from(to_stored(&value).to_string()), &[]).ok()
}

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    // An object that does not convert is shown as an empty one.
    as_v2(object).map_or_else(|| v2::cells(object, cx), |o| v2::cells(&o, cx))
}

/// Applies every rule of `v2` to the converted object.
struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let mut stored = to_stored(object);
        v2::Rules.default(&mut stored);
        *object = from_stored(&stored);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        let mut stored = to_stored(object);
        v2::Rules.prepare_for_create(&mut stored);
        *object = from_stored(&stored);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        let mut stored = to_stored(new);
        v2::Rules.prepare_for_update(&mut stored, &to_stored(old), subresource);
        *new = from_stored(&stored);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        as_v2(object).map(|o| v2::Rules.validate(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        match (as_v2(new), as_v2(old)) {
            (Some(new), Some(old)) => v2::Rules.validate_update(&new, &old, subresource),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
