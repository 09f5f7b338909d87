//! The table of served resources: one [`Resource`] each, with its names, verbs, subresources, columns and strategy.

use serde_json::Value;

use crate::kind::ResourceType;
use crate::object::Object;
use crate::strategy::Strategy;

/// One served resource: everything the generic handlers need to know about it.
pub struct Resource {
    pub types: ResourceType,
    /// `PodList`.
    pub list_kind: &'static str,
    /// `pod`.
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    /// Such as `all`.
    pub categories: &'static [&'static str],
    /// Verbs of the main resource, as discovery lists them. Empty verbs of storage (`get`, `list` …) mean that the
    /// resource is not stored: `create` alone is a review.
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// Paths that field selectors may use besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
    pub strategy: &'static dyn Strategy,
    pub columns: &'static [Column],
    /// The cells of one table row, as many as `columns`; the object is complete JSON.
    pub cells: fn(&Object, &CellContext) -> Vec<Value>,
}

/// What cells need besides the object.
pub struct CellContext {
    pub now: jiff::Timestamp,
}

/// One subresource, as discovery shows it: `pods/status`.
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of its body where they differ from the parent's: `("autoscaling", "v1", "Scale")`.
    pub body: Option<(&'static str, &'static str, &'static str)>,
    pub verbs: &'static [&'static str],
}

/// A table column, as `kubectl get` shows it.
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `date`, `boolean`.
    pub type_: &'static str,
    /// `name` for the name column, otherwise empty.
    pub format: &'static str,
    /// 0: always shown; 1 and above: with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
}
