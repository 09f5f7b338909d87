//! The scopes of a quota: which objects it counts.

use knarr_apimachinery::selector::{Operator, Requirement as Label};
use serde_json::Value;

/// One scope, with the requirement on its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub scope: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`.
    pub operator: String,
    pub values: Vec<String>,
}

impl Requirement {
    pub fn exists(scope: &str) -> Self {
        Self { scope: scope.to_owned(), operator: "Exists".into(), values: Vec::new() }
    }

    fn of(value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or("").to_owned();
        let values = value["values"].as_array().into_iter().flatten();
        Self {
            scope: text("scopeName"),
            operator: text("operator"),
            values: values.filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// Returns whether a class of this name, or no class, meets the requirement.
    pub fn holds(&self, class: Option<&str>) -> bool {
        let operator = match self.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return false,
        };
        Label::new(&self.scope, operator, self.values.clone()).is_ok_and(|r| r.holds(class))
    }
}

/// Returns the scopes in a quota's `spec`: its list of scopes and its scope selector.
pub fn requirements(spec: &Value) -> Vec<Requirement> {
    let named = spec["scopes"].as_array().into_iter().flatten();
    let selected = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let named = named.filter_map(Value::as_str).map(Requirement::exists);
    named.chain(selected.map(Requirement::of)).collect()
}

/// Formats the requirements as Go prints them in messages: `{PriorityClass In [high]}`.
pub fn shown(requirements: &[Requirement]) -> String {
    let one = |r: &Requirement| format!("{{{} {} [{}]}}", r.scope, r.operator, r.values.join(" "));
    format!("[{}]", requirements.iter().map(one).collect::<Vec<_>>().join(" "))
}
