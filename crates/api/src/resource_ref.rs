//! A resource as handlers hold it: of the table, or of a CustomResourceDefinition.

use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;

use crate::custom::CustomResource;
use crate::object::Object;
use crate::resource::Resource;
use crate::strategy::Strategy;
use crate::table::{CellContext, Column};

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
