//! The table columns of a custom resource: its name, and its `additionalPrinterColumns`.

use jiff::Timestamp;
use knarr_apimachinery::jsonpath::JsonPath;
use serde_json::{Value, json};

use crate::apiextensions::definition::PrinterColumn;
use crate::object::Object;
use crate::resource::CellContext;
use crate::table;

/// The columns that `kubectl get` shows of a custom resource.
#[derive(Default)]
pub struct Columns {
    columns: Vec<(PrinterColumn, JsonPath)>,
}

impl Columns {
    /// Without printer columns, the age is shown. Drops the columns from the first invalid JSON path on.
    pub fn new(columns: &[PrinterColumn]) -> Self {
        let age = [PrinterColumn {
            name: "Age".to_owned(),
            ty: "date".to_owned(),
            description: table::PLAIN_COLUMNS[1].description.to_owned(),
            json_path: ".metadata.creationTimestamp".to_owned(),
            ..PrinterColumn::default()
        }];
        let columns = if columns.is_empty() { &age } else { columns };
        let read = |c: &PrinterColumn| Some((c.clone(), JsonPath::parse(&c.json_path).ok()?));
        Self { columns: columns.iter().map_while(read).collect() }
    }

    /// Returns the columns in the form of the Table kind.
    pub fn definitions(&self) -> Value {
        let name = table::PLAIN_COLUMNS[..1].iter().map(crate::resource::Column::definition);
        let own = self.columns.iter().map(|(c, _)| {
            let default = format!("Custom resource definition column (in JSONPath format): {}", c.json_path);
            let description = if c.description.is_empty() { &default } else { &c.description };
            json!({
                "name": c.name, "type": c.ty, "format": c.format, "description": description,
                "priority": c.priority,
            })
        });
        name.chain(own).collect()
    }

    /// Returns the cells of one row.
    pub fn cells(&self, object: &Object, context: &CellContext) -> Vec<Value> {
        let value: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
        let own = self.columns.iter().map(|(column, path)| match path.find(&value).first() {
            Some(found) => cell(&column.ty, found, context),
            None => Value::Null,
        });
        std::iter::once(Value::from(object.name())).chain(own).collect()
    }
}

fn cell(ty: &str, value: &Value, context: &CellContext) -> Value {
    match (ty, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(text)) => text.as_str().into(),
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
            (Some(int), _) => int.into(),
            (None, Some(float)) => (float as i64).into(),
            _ => Value::Null,
        },
        ("number", number @ Value::Number(_)) => number.clone(),
        ("boolean", flag @ Value::Bool(_)) => flag.clone(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(then) => table::since(Some(then), context.now).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}
