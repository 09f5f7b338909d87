//! Rules and selectors of webhooks and policies, as they are written in objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::selector::Selector;
use serde_json::Value;

/// The requests that a rule matches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub operations: Vec<String>,
    pub groups: Vec<String>,
    pub versions: Vec<String>,
    pub resources: Vec<String>,
    /// The scope: `*`, `Namespaced` or `Cluster`.
    pub scope: String,
}

impl Rule {
    pub fn read(rule: &Value) -> Self {
        Self {
            operations: strings(&rule["operations"]),
            groups: strings(&rule["apiGroups"]),
            versions: strings(&rule["apiVersions"]),
            resources: strings(&rule["resources"]),
            scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
        }
    }
}

/// Parses a label selector; an absent selector selects everything.
pub fn selector(value: &Value) -> Result<Selector, String> {
    if value.is_null() {
        return Ok(Selector::everything());
    }
    let typed: LabelSelector = serde_json::from_value(value.clone()).map_err(|e| e.to_string())?;
    Selector::from_label_selector(Some(&typed)).map_err(|e| e.to_string())
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
