//! Compares server-side apply with upstream's 1.37 libraries (`facts.json`), and checks its laws.

use serde_json::{Value, json};

use super::*;
use crate::schema;

fn facts() -> Vec<Value> {
    let facts: Value = serde_json::from_str(include_str!("facts.json")).unwrap();
    facts.as_array().unwrap().clone()
}

/// Removes empty members: upstream's types write some that the applied object lacks.
fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept =
                map.iter().filter(|(k, _)| *k != "managedFields").map(|(k, v)| (k.clone(), without_empty(v)));
            let empty = |v: &Value| match v {
                Value::Null => true,
                Value::Object(map) => map.is_empty(),
                Value::Array(list) => list.is_empty(),
                Value::String(text) => text.is_empty(),
                Value::Number(n) => n.as_i64() == Some(0),
                _ => false,
            };
            Value::Object(kept.filter(|(_, v)| !empty(v)).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_empty).collect()),
        other => other.clone(),
    }
}

fn run(fact: &Value) -> Result<Value, StatusError> {
    let text = |key: &str| fact[key].as_str().unwrap_or("");
    let kind = GroupVersionKind::from_api_version(text("apiVersion"), text("kind"));
    let reset = fact["reset"].as_array().map(|names| {
        let paths: Vec<[&str; 1]> = names.iter().map(|n| [n.as_str().unwrap()]).collect();
        FieldSet::of_names(&paths.iter().map(|p| p.as_slice()).collect::<Vec<_>>())
    });
    let by = Manager {
        name: text("manager"),
        subresource: text("subresource"),
        kind: &kind,
        schema: schema::for_kind(&kind),
        custom: None,
        reset: reset.as_ref(),
        now: text("now").parse().unwrap(),
    };
    let live = fact.get("live").filter(|live| live["metadata"]["uid"].is_string());
    if text("do") == "apply" {
        return apply(live, &fact["patch"], &by, fact["force"].as_bool().unwrap_or(false));
    }
    let mut new = fact["new"].clone();
    update(live, &mut new, &by);
    Ok(new)
}

/// Sorts the causes: upstream lists managers in no fixed order.
fn causes(details: &Value) -> Vec<String> {
    let mut causes: Vec<String> =
        details["causes"].as_array().unwrap().iter().map(Value::to_string).collect();
    causes.sort();
    causes
}

#[test]
fn upstream_facts() {
    let mut failures = Vec::new();
    for fact in facts() {
        let name = format!("{} {}", fact["scenario"], fact["step"]);
        let expected_error = fact["error"].as_str();
        // The API server decodes into the typed object; Go's map order decides which field its error names.
        if expected_error.is_some_and(|e| e.contains("failed to convert") || e.contains(".zot")) {
            continue;
        }
        match (run(&fact), expected_error) {
            (Ok(object), None) => {
                let expected = &fact["result"];
                let (got, wanted) =
                    (&object["metadata"]["managedFields"], &expected["metadata"]["managedFields"]);
                if got != wanted {
                    failures.push(format!("{name}: managedFields\n got {got}\nwant {wanted}"));
                }
                let (mut got, mut wanted) = (without_empty(&object), without_empty(expected));
                got["metadata"]["uid"] = json!("u1");
                wanted["metadata"]["uid"] = json!("u1");
                if got != wanted {
                    failures.push(format!("{name}: object\n got {got}\nwant {wanted}"));
                }
            }
            (Err(error), Some(expected)) => {
                if error.message() != expected {
                    failures.push(format!("{name}: error\n got {}\nwant {expected}", error.message()));
                }
                if let Some(code) = fact["code"].as_u64() {
                    assert_eq!(u64::from(error.code()), code, "{name}");
                    let details = serde_json::to_value(&error.0.details).unwrap();
                    if code == 409 {
                        assert_eq!(causes(&details), causes(&fact["details"]), "{name}");
                    }
                }
            }
            (got, wanted) => failures.push(format!("{name}: got {got:?}, want {wanted:?}")),
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn applying_twice_changes_nothing() {
    for fact in facts().iter().filter(|f| f["do"] == "apply" && f.get("error").is_none()) {
        let mut once = run(fact).unwrap();
        once["metadata"]["uid"] = json!("u1");
        let mut again = fact.clone();
        again["live"] = once.clone();
        again["now"] = json!("2025-01-01T00:00:00Z");
        let twice = run(&again).unwrap();
        assert_eq!(once, twice, "{} {}", fact["scenario"], fact["step"]);
    }
}

#[test]
fn an_update_that_changes_nothing_leaves_all_as_it_is() {
    for fact in facts().iter().filter(|f| f["do"] == "update") {
        let mut once = run(fact).unwrap();
        once["metadata"]["uid"] = json!("u1");
        let mut again = fact.clone();
        again["live"] = once.clone();
        again["new"] = once.clone();
        again["now"] = json!("2025-01-01T00:00:00Z");
        assert_eq!(once, run(&again).unwrap(), "{} {}", fact["scenario"], fact["step"]);
    }
}
