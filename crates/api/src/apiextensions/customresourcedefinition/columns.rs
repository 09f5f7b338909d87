//! The columns that `kubectl get crd` shows.

use serde_json::Value;

use crate::apiextensions::definition::{Definition, ESTABLISHED};
use crate::object::Object;
use crate::resource::{CellContext, Column};
use crate::table::PLAIN_COLUMNS;

pub const COLUMNS: &[Column] = &[
    Column {
        name: "Name",
        type_: "string",
        format: "name",
        priority: 0,
        description: PLAIN_COLUMNS[0].description,
    },
    Column::new("Scope", "string", "Cluster/Namespaced"),
    Column::new("Versions", "string", "Served versions"),
    Column::new("Created At", "date", PLAIN_COLUMNS[1].description),
    Column::wide("Group", "string", "API group"),
    Column::wide("Kind", "string", "CustomResource kind"),
    Column::wide("ShortNames", "string", "Short names"),
    Column::wide("Established", "boolean", "Established status"),
];

pub fn cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let value: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
    let definition = Definition::parse(&value);
    let text = |pointer: &str| value.pointer(pointer).cloned().unwrap_or_else(|| "".into());
    let label = |v: &crate::apiextensions::definition::Version| {
        if v.storage { format!("{}(storage)", v.name) } else { v.name.clone() }
    };
    let mut versions: Vec<String> = definition.versions.iter().filter(|v| v.served).map(label).collect();
    versions.sort();
    vec![
        object.name().into(),
        text("/spec/scope"),
        versions.join(",").into(),
        text("/metadata/creationTimestamp"),
        definition.group.as_str().into(),
        definition.names.kind.as_str().into(),
        definition.names.short_names.join(",").into(),
        definition.is_true(ESTABLISHED).into(),
    ]
}
