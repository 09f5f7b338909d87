//! What each resource contributes to the generic handlers: defaulting, preparation, validation, deletion rules.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_apimachinery::field::ErrorList;
use serde_json::Value;

use crate::object::Object;

/// The rules of one resource. Mutation works on JSON values; validation reads typed views ([`Object::typed`]).
///
/// Order in a create: decode, `default`, fill in metadata, `prepare_for_create`, admission, `validate`, store
/// (`default` does not run again after admission). In an update: decode or patch, `default`, carry over metadata,
/// `prepare_for_update`, admission, `validate_update`, store. `subresource` is `None` for the resource itself.
///
/// The generic handlers validate metadata (names, labels, owner references, finalizers, immutable uid …); they
/// use
/// [`Strategy::validate_name`].
pub trait Strategy: Sync {
    /// Sets defaults, as upstream's `SetDefaults_*` do. Also runs on updates and patches.
    fn default(&self, _object: &mut Value) {}

    /// Clears what a creator may not set (status …) and sets what the server owns (generation 1 …).
    fn prepare_for_create(&self, _object: &mut Value) {}

    /// Restores what this update may not change: the status on the resource itself, all but the status on `status`.
    /// Increments `metadata.generation` if the spec changed.
    fn prepare_for_update(&self, _new: &mut Value, _old: &Value, _subresource: Option<&str>) {}

    fn validate(&self, _object: &Object) -> ErrorList {
        ErrorList::new()
    }

    fn validate_update(&self, _new: &Object, _old: &Object, _subresource: Option<&str>) -> ErrorList {
        ErrorList::new()
    }

    /// Returns the problems of a name of this resource, with upstream's texts; empty if the name is valid. `prefix` is
    /// set for a generateName, which may end in a dash.
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String>;

    /// Returns the `Warning` headers for a create or update.
    fn warnings(&self, _new: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }

    /// Returns whether a PUT to a name that does not exist creates the object (Lease, Endpoints, Event …).
    fn allow_create_on_update(&self) -> bool {
        false
    }

    /// Returns whether a PUT or PATCH without a resourceVersion overwrites the current object.
    fn allow_unconditional_update(&self) -> bool {
        true
    }

    /// Returns the grace period in seconds of this deletion, for resources that end gracefully (Pod): the kubelet
    /// removes the object after it. `None`: the object is removed at once, or when it has no finalizers left.
    fn grace_period_seconds(&self, _object: &Object, _options: &DeleteOptions) -> Option<i64> {
        None
    }

    /// Returns the warning for deletions that do not state a propagation policy.
    fn deletion_warning(&self) -> Option<&'static str> {
        None
    }

    /// Changes the object when its deletion begins, such as by adding a finalizer; `now` is RFC 3339.
    fn prepare_for_delete(&self, _object: &mut Value, _now: &str) {}

    /// Returns whether dependents are orphaned rather than deleted if the request has no propagation policy (legacy
    /// resources).
    fn orphans_by_default(&self) -> bool {
        false
    }
}
