//! The table columns of a custom resource.

use serde_json::Value;

use crate::object::Object;
use crate::resource::CellContext;
use crate::table;

/// What `kubectl get` shows of a custom resource.
#[derive(Default)]
pub struct Columns {}

impl Columns {
    /// As the Table kind lists them.
    pub fn definitions(&self) -> Value {
        table::PLAIN_COLUMNS.iter().map(crate::resource::Column::definition).collect()
    }

    /// The cells of one row.
    pub fn cells(&self, object: &Object, context: &CellContext) -> Vec<Value> {
        table::plain_cells(object, context)
    }
}
