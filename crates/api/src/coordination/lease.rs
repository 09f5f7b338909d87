//! Lease: the holder of a lock or a heartbeat, with its expiry.

use k8s_openapi::api::coordination::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::defaults::existing;
use crate::gates::COORDINATED_LEADER_ELECTION;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Lease::RESOURCE, "LeaseList", "lease", &Rules)
};

const COLUMNS: &[Column] =
    &[NAME, Column::new("Holder", "string", "The identity of the current holder."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Lease>().unwrap_or_default();
    let holder = o.spec.as_ref().and_then(|s| s.holder_identity.as_deref()).unwrap_or("");
    vec![
        Value::from(object.name()),
        Value::from(holder),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

/// Fields of coordinated leader election, a beta feature that is off by default. While it is off, they are removed
/// unless the old object has them.
const COORDINATED: &[&str] = &["strategy", "preferredHolder"];

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        self.prepare_for_update(object, &Value::Null, None);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        if COORDINATED_LEADER_ELECTION.is_on() {
            return;
        }
        let Some(spec) = existing(prepare::object(new), "spec") else { return };
        for field in COORDINATED {
            if old.pointer(&format!("/spec/{field}")).is_none_or(Value::is_null) {
                spec.remove(*field);
            }
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Lease>().map(|o| validate_lease(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        self.validate(new)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_lease(lease: &api::Lease) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = lease.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    if let Some(seconds) = spec.lease_duration_seconds.filter(|s| *s <= 0) {
        let path = path.child("leaseDurationSeconds");
        errors.push(Error::invalid(&path, seconds, "must be greater than 0"));
    }
    let transitions = i64::from(spec.lease_transitions.unwrap_or(0));
    validate::nonnegative(&mut errors, &path.child("leaseTransitions"), transitions);
    let strategy = spec.strategy.as_deref().unwrap_or("");
    if spec.preferred_holder.is_some_and(|h| !h.is_empty()) && strategy.is_empty() {
        let why = "may only be specified if `strategy` is defined";
        errors.push(Error::forbidden(&path.child("preferredHolder"), why));
    }
    errors
}
