//! The descriptor of a served resource: names, verbs, subresources, columns and strategy.

use serde_json::Value;

use crate::header::Header;
use crate::kind::ResourceType;
use crate::object::Object;
use crate::strategy::Strategy;
use crate::table;
pub use crate::table::{CellContext, Column};

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
    /// Verbs of the main resource, as discovery lists them. A resource without the verbs of storage (`get`, `list` …)
    /// is not stored: with `create` alone it is a review.
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// Paths that field selectors may use besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
    pub strategy: &'static dyn Strategy,
    pub columns: &'static [Column],
    /// Returns the cells of one table row, as many as `columns`; the object is complete JSON.
    pub cells: fn(&Object, &CellContext) -> Vec<Value>,
    /// The deprecation warning for clients that use this version, if a better one exists.
    pub deprecated: Option<&'static str>,
    /// Set if objects of this resource are stored as another resource.
    pub stored_as: Option<&'static StoredAs>,
}

/// How a resource shares the storage of another one: `events.k8s.io` Events are stored as core Events.
pub struct StoredAs {
    /// Group, version and plural of the resource that owns the storage.
    pub resource: (&'static str, &'static str, &'static str),
    /// Converts this resource's form to the stored one. Both directions keep `metadata`, except for annotations in
    /// which one form carries what it has no fields for.
    pub to_stored: fn(&Value) -> Value,
    /// Converts the stored form to this resource's form.
    pub from_stored: fn(&Value) -> Value,
    /// Maps a field selector path of this resource to the field path of the stored form.
    pub stored_field: fn(&str) -> Option<&'static str>,
}

/// The verbs of an ordinary stored resource.
pub const STORED: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of a resource that can only be created: reviews and bindings.
pub const CREATE_ONLY: &[&str] = &["create"];
/// The verbs of a subresource that reads and changes a part of its parent.
pub const PART: &[&str] = &["get", "patch", "update"];
/// The `status` subresource, which most resources have.
pub const STATUS: Subresource = Subresource { name: "status", body: None, verbs: PART };
/// The `scale` subresource of the workloads that have replicas.
pub const SCALE: Subresource =
    Subresource { name: "scale", body: Some(("autoscaling", "v1", "Scale")), verbs: PART };

impl Resource {
    /// Returns a stored resource with upstream's default columns.
    pub const fn stored(
        types: ResourceType,
        list_kind: &'static str,
        singular: &'static str,
        strategy: &'static dyn Strategy,
    ) -> Self {
        Self {
            types,
            list_kind,
            singular,
            short_names: &[],
            categories: &[],
            verbs: STORED,
            subresources: &[],
            selectable: &[],
            strategy,
            columns: table::PLAIN_COLUMNS,
            cells: table::plain_cells,
            deprecated: None,
            stored_as: None,
        }
    }

    /// Returns the subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Returns whether objects of this resource are stored; reviews are only answered.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"watch")
    }

    /// Returns whether a field selector may use this path.
    pub fn selects(&self, path: &str) -> bool {
        match path {
            "metadata.name" => true,
            "metadata.namespace" => self.types.namespaced,
            _ => {
                let path = selector_path(self.types, path);
                path == "metadata.name" || self.selectable.contains(&path)
            }
        }
    }

    /// Returns the value that a field selector compares: missing strings are empty, missing booleans `false`,
    /// counts `0`.
    pub fn field<'h>(&self, header: &'h Header, path: &str) -> &'h str {
        if let Some(value) = header.field(selector_path(self.types, path)) {
            return value;
        }
        match path {
            "source" => header.field("reportingComponent").unwrap_or(""),
            "spec.hostNetwork" | "spec.unschedulable" => "false",
            "status.replicas" | "status.successful" => "0",
            _ => "",
        }
    }
}

/// Maps a selector path to its JSON path: the two differ for events' `source` and some old aliases.
fn selector_path(types: ResourceType, path: &str) -> &str {
    match (types.plural, path) {
        ("events", "source") => "source.component",
        ("pods", "spec.host") => "spec.nodeName",
        ("namespaces" | "persistentvolumes" | "persistentvolumeclaims", "name") => "metadata.name",
        _ => path,
    }
}

/// One subresource, as discovery lists it: `pods/status`.
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of its body if they differ from the parent's: `("autoscaling", "v1", "Scale")`.
    pub body: Option<(&'static str, &'static str, &'static str)>,
    pub verbs: &'static [&'static str],
}
