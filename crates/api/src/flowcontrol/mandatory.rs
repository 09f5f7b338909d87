//! The mandatory objects of flow control, whose specs are fixed.

use serde_json::{Value, json};

/// Returns the spec of the mandatory FlowSchema of this name.
pub fn flow_schema(name: &str) -> Option<Value> {
    let everything = |groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|g| json!({"kind": "Group", "group": {"name": g}})).collect();
        json!([{
            "subjects": subjects,
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }])
    };
    match name {
        "exempt" => Some(json!({
            "priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1,
            "rules": everything(&["system:masters"]),
        })),
        "catch-all" => Some(json!({
            "priorityLevelConfiguration": {"name": "catch-all"}, "matchingPrecedence": 10_000,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": everything(&["system:unauthenticated", "system:authenticated"]),
        })),
        _ => None,
    }
}

/// Returns the spec of the mandatory PriorityLevelConfiguration of this name.
pub fn priority_level(name: &str) -> Option<Value> {
    match name {
        "exempt" => {
            Some(json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}))
        }
        "catch-all" => Some(json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}})),
        _ => None,
    }
}
