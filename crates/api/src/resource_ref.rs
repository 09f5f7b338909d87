//! A reference to a served resource: a built-in one, or one that a CustomResourceDefinition defines.

use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;

use crate::custom::CustomResource;
use crate::object::Object;
use crate::resource::Resource;
use crate::strategy::Strategy;
use crate::table::{CellContext, Column};

/// A served resource: a built-in one from the table, or a custom one from a CustomResourceDefinition.
///
/// It dereferences to [`Resource`]. The strategy and the columns of custom resources cannot be static: use the
/// methods of this type for them.
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

    /// Sets defaults, and removes fields that may not be set here, unless the old object allows them.
    pub fn default(&self, object: &mut Value, old: Option<&Value>) {
        self.strategy().default(object);
        // Another place warns the client. Fields that a webhook or policy adds are removed, too.
        crate::dropped::drop_fields(self.types, object);
        crate::core::pod::drop_gated(self.types, object, old);
    }

    /// Returns the custom resource; `None` for built-in resources.
    pub fn custom(&self) -> Option<&Arc<CustomResource>> {
        match self {
            Self::BuiltIn(_) => None,
            Self::Custom(custom) => Some(custom),
        }
    }

    /// Returns the columns of a table, in the form of the Table kind.
    pub fn column_definitions(&self) -> Value {
        match self {
            Self::BuiltIn(resource) => resource.columns.iter().map(Column::definition).collect(),
            Self::Custom(custom) => custom.columns.definitions(),
        }
    }

    /// Returns the cells of one table row.
    pub fn row(&self, object: &Object, context: &CellContext) -> Vec<Value> {
        match self {
            Self::BuiltIn(resource) => (resource.cells)(object, context),
            Self::Custom(custom) => custom.columns.cells(object, context),
        }
    }
}
