//! The table of served resources: one [`Resource`] each, with its names, verbs, subresources, columns and strategy.

use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::custom::CustomResource;
use crate::header::Header;
use crate::kind::ResourceType;
use crate::object::Object;
use crate::strategy::Strategy;
use crate::table;

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
    /// What clients are told that use this version, where there is something better.
    pub deprecated: Option<&'static str>,
    /// Set where objects of this resource are stored as another one.
    pub stored_as: Option<&'static StoredAs>,
}

/// A served resource: one of the table's, or one that a CustomResourceDefinition describes at run time.
///
/// It reads as the [`Resource`] itself; what cannot be static (strategy, columns) has a method of its own here, which is
/// the one to use.
#[derive(Clone)]
pub enum ResourceRef {
    BuiltIn(&'static Resource),
    Custom(Arc<CustomResource>),
}

impl Deref for ResourceRef {
    type Target = Resource;

    fn deref(&self) -> &Resource {
        match self {
            Self::BuiltIn(resource) => resource,
            Self::Custom(custom) => &custom.resource,
        }
    }
}

impl From<&'static Resource> for ResourceRef {
    fn from(resource: &'static Resource) -> Self {
        Self::BuiltIn(resource)
    }
}

impl ResourceRef {
    pub fn strategy(&self) -> &dyn Strategy {
        match self {
            Self::BuiltIn(resource) => resource.strategy,
            Self::Custom(custom) => &**custom,
        }
    }

    /// Sets what the user left out, and drops what may not be set here, given what is there already.
    pub fn default(&self, object: &mut Value, old: Option<&Value>) {
        self.strategy().default(object);
        // Who asked is warned elsewhere; what a webhook or policy adds is not kept either.
        crate::dropped::drop_fields(self.types, object);
        crate::core::pod::drop_gated(self.types, object, old);
    }

    /// What a CustomResourceDefinition says of it; `None` for built-in resources.
    pub fn custom(&self) -> Option<&Arc<CustomResource>> {
        match self {
            Self::BuiltIn(_) => None,
            Self::Custom(custom) => Some(custom),
        }
    }

    /// The columns of a table, as the Table kind lists them.
    pub fn column_definitions(&self) -> Value {
        match self {
            Self::BuiltIn(resource) => resource.columns.iter().map(Column::definition).collect(),
            Self::Custom(custom) => custom.columns.definitions(),
        }
    }

    /// The cells of one table row.
    pub fn row(&self, object: &Object, context: &CellContext) -> Vec<Value> {
        match self {
            Self::BuiltIn(resource) => (resource.cells)(object, context),
            Self::Custom(custom) => custom.columns.cells(object, context),
        }
    }
}

/// How a resource shares the storage of another one: `events.k8s.io` Events are core Events.
pub struct StoredAs {
    /// Group, version and plural of the resource that owns the storage.
    pub resource: (&'static str, &'static str, &'static str),
    /// From this resource's form to the stored one. Both directions keep `metadata`, save for annotations in which one
    /// form carries what it has no fields for.
    pub to_stored: fn(&Value) -> Value,
    /// From the stored form to this resource's.
    pub from_stored: fn(&Value) -> Value,
    /// The field path of the stored form that a field selector path of this resource means.
    pub stored_field: fn(&str) -> Option<&'static str>,
}

/// The verbs of an ordinary stored resource.
pub const STORED: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of a resource that is only ever posted: reviews and bindings.
pub const CREATE_ONLY: &[&str] = &["create"];
/// The verbs of a subresource that shows and changes a part of its parent.
pub const PART: &[&str] = &["get", "patch", "update"];
/// `status`, which most resources have.
pub const STATUS: Subresource = Subresource { name: "status", body: None, verbs: PART };
/// `scale` of the workloads that have replicas.
pub const SCALE: Subresource =
    Subresource { name: "scale", body: Some(("autoscaling", "v1", "Scale")), verbs: PART };

impl Resource {
    /// A stored resource with the columns that upstream shows where it has none of its own.
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

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether objects of this resource are kept, rather than answered and forgotten.
    pub fn is_stored(&self) -> bool {
        self.verbs.contains(&"watch")
    }

    /// Whether a field selector may use this path.
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

    /// What a field selector sees at this path: absent strings are empty, absent booleans `false`, counts `0`.
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

/// The JSON path behind a selector path: the two differ for events' `source` and some old aliases.
fn selector_path(types: ResourceType, path: &str) -> &str {
    match (types.plural, path) {
        ("events", "source") => "source.component",
        ("pods", "spec.host") => "spec.nodeName",
        ("namespaces" | "persistentvolumes" | "persistentvolumeclaims", "name") => "metadata.name",
        _ => path,
    }
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

impl Column {
    /// As the Table kind writes it.
    pub fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.type_, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }

    /// A column that is always shown.
    pub const fn new(name: &'static str, type_: &'static str, description: &'static str) -> Self {
        Self { name, type_, format: "", priority: 0, description }
    }

    /// A column of `-o wide`.
    pub const fn wide(name: &'static str, type_: &'static str, description: &'static str) -> Self {
        Self { name, type_, format: "", priority: 1, description }
    }
}
