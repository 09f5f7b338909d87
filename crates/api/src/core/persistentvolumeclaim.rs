//! PersistentVolumeClaim: a wish for storage.

use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::{self, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["pvc"],
    subresources: &[resource::STATUS],
    ..Resource::stored(
        api::PersistentVolumeClaim::RESOURCE,
        "PersistentVolumeClaimList",
        "persistentvolumeclaim",
        &Rules,
    )
};

struct Rules;

impl Strategy for Rules {
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
