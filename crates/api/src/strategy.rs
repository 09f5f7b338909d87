//! What each resource contributes to the generic handlers: defaulting, preparation, validation, deletion rules.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_apimachinery::field::ErrorList;
use serde_json::Value;

use crate::object::Object;

/// The rules of one resource. Mutation works on JSON values; validation looks at typed views ([`Object::typed`]).
///
/// Order in a create: decode, `default`, metadata is filled in, `prepare_for_create`, admission, `default` is not
/// repeated, `validate`, store. In an update: decode or patch, `default`, metadata is carried over,
/// `prepare_for_update`, admission, `validate_update`, store. `subresource` is `None` for the resource itself.
///
/// Metadata (names, labels, owner references, finalizers, immutable uid …) is validated by the generic handlers with
/// [`Strategy::validate_name`].
pub trait Strategy: Sync {
    /// Sets what the user left out, as upstream's `SetDefaults_*` do. Also run on updates and patches.
    fn default(&self, _object: &mut Value) {}

    /// Clears what a creator may not set (status …) and sets what the server owns (generation 1 …).
    fn prepare_for_create(&self, _object: &mut Value) {}

    /// Carries over what this update may not touch: status on the resource itself, all but status on `status`;
    /// raises `metadata.generation` when the spec changed.
    fn prepare_for_update(&self, _new: &mut Value, _old: &Value, _subresource: Option<&str>) {}

    fn validate(&self, _object: &Object) -> ErrorList {
        ErrorList::new()
    }

    fn validate_update(&self, _new: &Object, _old: &Object, _subresource: Option<&str>) -> ErrorList {
        ErrorList::new()
    }

    /// What is wrong with a name of this resource, in upstream's words; empty when it is fine. `prefix` is set for a
    /// generateName, which may end in a dash.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String>;

    /// Warning headers for a create or update.
    fn warnings(&self, _new: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }

    /// PUT to a name that does not exist creates it (Lease, Endpoints, Event …).
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// A PUT or PATCH without a resourceVersion overwrites whatever is there.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// For resources that end gracefully (Pod): the grace period in seconds that this deletion gets, after which the
    /// kubelet removes the object. `None`: the object goes at once, or when its finalizers are gone.
    fn grace_period_seconds(&self, _object: &Object, _options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// A warning for deletions that state no propagation policy.
    fn deletion_warning(&self) -> Option<&'static str> {
        None
    }

    /// Changes the object when its deletion begins, such as by a finalizer that holds it; `now` is RFC 3339.
    fn prepare_for_delete(&self, _object: &mut Value, _now: &str) {}

    /// Without an explicit propagation policy, dependents are orphaned rather than deleted (legacy resources).
    fn orphans_by_default(&self) -> bool {
        false
    }
}
