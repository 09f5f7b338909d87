//! ResourceClaim: a request for devices, and its allocation.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use super::{allocation, claims};
use crate::defaults::child;
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
    ..Resource::stored(api::ResourceClaim::RESOURCE, "ResourceClaimList", "resourceclaim", &Rules)
};

/// Returns why a claim that should belong to the pod does not.
pub fn foreign(pod: &Pod, claim: &api::ResourceClaim) -> Option<String> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let own = owners.any(|o| o.controller == Some(true) && o.uid == pod.uid());
    (!own).then(|| {
        format!(
            "ResourceClaim {}/{} was not created for Pod {}/{} (Pod is not owner)",
            claim.namespace(),
            claim.name(),
            pod.namespace(),
            pod.name()
        )
    })
}

const COLUMNS: &[Column] = &[NAME, Column::new("State", "string", "The state of the claim."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ResourceClaim>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(state(&o)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// Returns the STATE cell: `allocated,reserved` and the like.
fn state(claim: &api::ResourceClaim) -> String {
    let status = claim.status.clone().unwrap_or_default();
    let deleted = claim.metadata.deletion_timestamp.is_some();
    let mut states = Vec::new();
    states.extend(deleted.then_some("deleted"));
    match status.allocation {
        None => states.extend((!deleted).then_some("pending")),
        Some(_) => {
            states.push("allocated");
            states.extend(status.reserved_for.is_some_and(|r| !r.is_empty()).then_some("reserved"));
        }
    }
    states.join(",")
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        claims::default_spec(child(prepare::object(object), "spec"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
            drop_deallocated(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        if let Ok(o) = object.typed::<api::ResourceClaim>() {
            claims::validate_spec(&mut errors, &Path::new("spec"), &o.spec.clone().unwrap_or_default());
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let mut errors = ErrorList::new();
        if let (Ok(new), Ok(old)) = (new.typed::<api::ResourceClaim>(), old.typed::<api::ResourceClaim>()) {
            match subresource {
                Some("status") => errors = allocation::validate_update(&new, &old),
                _ if new.spec != old.spec => errors.push(validate::changed(&Path::new("spec"))),
                _ => {}
            }
        }
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// Removes the drivers' reports on devices if an update removes the allocation.
fn drop_deallocated(new: &mut Value, old: &Value) {
    let allocated = |v: &Value| v.pointer("/status/allocation").is_some_and(|a| !a.is_null());
    if allocated(old)
        && !allocated(new)
        && let Some(status) = new.get_mut("status").and_then(Value::as_object_mut)
    {
        status.remove("devices");
    }
}
