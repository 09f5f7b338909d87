//! Compares strategic merge patch with upstream's 1.37 library (`facts.json`), and checks its laws.

use serde_json::{Value, json};

use super::*;
use crate::gvk::GroupVersionKind;
use crate::patch::merge_patch::prune_nulls;
use crate::schema;

fn schema_of(kind: &str) -> &'static Struct {
    let api_version = if kind == "Deployment" { "apps/v1" } else { "v1" };
    schema::for_kind(&GroupVersionKind::from_api_version(api_version, kind)).unwrap()
}

fn facts() -> Value {
    serde_json::from_str(include_str!("facts.json")).unwrap()
}

#[test]
fn upstream_facts() {
    let facts = facts();
    for case in facts["cases"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let mut document = facts["originals"][kind].clone();
        let patch = &case["patch"];
        match (apply(&mut document, patch.clone(), schema_of(kind)), case.get("error")) {
            (Ok(()), None) => {
                // Upstream keeps nulls in values that it copies as a whole; its decoder drops them later.
                let mut expected = case["result"].clone();
                prune_nulls(&mut expected);
                assert_eq!(document, expected, "{patch}");
            }
            (Err(error), Some(expected)) => assert_eq!(&Value::from(error.to_string()), expected, "{patch}"),
            (got, expected) => panic!("{patch}: {got:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn merging_an_object_into_itself_changes_nothing() {
    let facts = facts();
    for case in facts["cases"].as_array().unwrap().iter().filter(|c| c.get("error").is_none()) {
        let kind = case["kind"].as_str().unwrap();
        let mut expected = case["result"].clone();
        prune_nulls(&mut expected);
        let unique = |list: &Value| {
            let names: Vec<_> = list.as_array().into_iter().flatten().map(|c| &c["name"]).collect();
            (1..names.len()).all(|i| !names[..i].contains(&names[i]))
        };
        if !unique(&expected["spec"]["containers"]) {
            continue;
        }
        let mut document = expected.clone();
        apply(&mut document, expected.clone(), schema_of(kind)).unwrap();
        assert_eq!(document, expected);
    }
}

#[test]
fn status_codes() {
    let code = |patch: Value| {
        let mut document = json!({"metadata": {"finalizers": ["a"]}});
        StatusError::from(apply(&mut document, patch, schema_of("Pod")).unwrap_err()).code()
    };
    assert_eq!(code(json!([])), 400);
    assert_eq!(code(json!({"metadata": {"$deleteFromPrimitiveList": []}})), 400);
    assert_eq!(code(json!({"metadata": {"$patch": "x"}})), 500);
}

#[test]
fn unknown_fields_merge_as_plain_json() {
    let mut document = json!({"spec": {"odd": {"a": 1, "list": [1, 2]}}});
    let patch = json!({"spec": {"odd": {"a": null, "b": 2, "list": [3]}}});
    apply(&mut document, patch, schema_of("Pod")).unwrap();
    assert_eq!(document, json!({"spec": {"odd": {"b": 2, "list": [3]}}}));
}

#[test]
fn long_lists_take_linear_time() {
    let names =
        |from: usize| -> Vec<Value> { (from..from + 50_000).map(|i| json!(format!("f{i}"))).collect() };
    let mut document = json!({"metadata": {"finalizers": names(0)}});
    apply(&mut document, json!({"metadata": {"finalizers": names(25_000)}}), schema_of("Pod")).unwrap();
    assert_eq!(document["metadata"]["finalizers"].as_array().unwrap().len(), 75_000);
}
