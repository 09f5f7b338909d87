//! Compares the strategies with upstream 1.37 on valid and invalid objects: defaults, preparation, errors and table
//! cells. `upstream/facts.jsonl` has one case per line; the README of that folder describes how it was made.

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_api::resource::{CellContext, Resource};
use knarr_api::resource_ref::ResourceRef;
use knarr_api::resources;
use knarr_apimachinery::schema;
use serde_json::Value;

fn resource_of(object: &Value) -> &'static Resource {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap();
    let found = resources::all()
        .iter()
        .chain(resources::on_request())
        .find(|r| r.types.kind == kind && r.types.api_version() == version);
    found.unwrap_or_else(|| panic!("{version} {kind}"))
}

/// Decodes a value as the API server decodes a request: known fields, canonical values.
fn decoded(value: &Value) -> Value {
    let types = &resource_of(value).types;
    let kind = schema::for_kind(&types.gvk()).unwrap();
    schema::validate::decode(value.to_string().as_bytes(), kind).unwrap().value
}

fn held(value: &Value) -> Object {
    Object::new(Bytes::from(value.to_string()), &[]).unwrap()
}

/// Fields that differ in every run.
const OF_THE_MOMENT: &[&str] = &["creationTimestamp", "uid", "lastTransitionTime", "lastPhaseTransitionTime"];

/// Removes everything that JSON may omit: null, false, zero, and empty strings, lists and objects.
fn stripped(value: &Value) -> Value {
    let nothing = |v: &Value| match v {
        Value::Null | Value::Bool(false) => true,
        Value::String(s) => s.is_empty(),
        Value::Number(n) => n.as_i64() == Some(0),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::Bool(true) => false,
    };
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| (k.clone(), stripped(v)))
            .filter(|(k, v)| !nothing(v) && !OF_THE_MOMENT.contains(&k.as_str()))
            .collect(),
        Value::Array(list) => list.iter().map(stripped).collect(),
        other => other.clone(),
    }
}

/// Lists the differences of two values, by path.
fn differences(path: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                differences(&format!("{path}/{key}"), &ours[key], &theirs[key], out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{i}"), a, b, out);
            }
        }
        _ if ours == theirs => {}
        _ => out.push(format!("object {path}: ours {ours}, theirs {theirs}")),
    }
}

/// Returns the first line of each error, sorted: the rest is a diff of upstream's internal type.
fn first_lines(errors: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = errors.map(|e| e.lines().next().unwrap_or("").to_owned()).collect();
    lines.sort();
    lines
}

fn check(case: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let resource = resource_of(&case["obj"]);
    let served = ResourceRef::from(resource);
    let strategy = resource.strategy;
    let mut object = decoded(&case["obj"]);
    if let Some(cells) = case.get("cells") {
        let cx = CellContext { now: jiff::Timestamp::UNIX_EPOCH };
        served.default(&mut object, None);
        let got = Value::from((resource.cells)(&held(&object), &cx));
        let plain = |v: &Value| v.as_array().map(|a| a.iter().map(stripped).collect::<Vec<_>>());
        if plain(&got) != plain(cells) {
            wrong.push(format!("cells\n  ours   {got}\n  theirs {cells}"));
        }
        return wrong;
    }
    let sub = case.get("sub").and_then(Value::as_str);
    let old = case.get("old").map(|old| {
        let mut old = decoded(old);
        strategy.default(&mut old);
        old
    });
    served.default(&mut object, old.as_ref());
    let errors = match old {
        None => {
            knarr_api::prepare::metadata(&mut object).insert("uid".to_owned(), Value::from("u"));
            strategy.prepare_for_create(&mut object);
            strategy.validate(&held(&object))
        }
        Some(old) => {
            strategy.prepare_for_update(&mut object, &old, sub);
            strategy.validate_update(&held(&object), &held(&old), sub)
        }
    };
    schema::validate::fill(&mut object, schema::for_kind(&resource.types.gvk()).unwrap());
    let (ours, theirs) = (stripped(&object), stripped(&case["object"]));
    if ours != theirs {
        differences("", &ours, &theirs, &mut wrong);
    }
    if errors.is_empty() && case["errors"].as_array().unwrap().is_empty() && sub.is_none() {
        let before = case.get("old").map(|old| held(&decoded(old)));
        let mut ours = strategy.warnings(&held(&object), before.as_ref());
        let mut theirs: Vec<String> = serde_json::from_value(case["warnings"].clone()).unwrap_or_default();
        // Upstream adds this warning elsewhere, when it copies the annotation to the field.
        ours.retain(|w| !w.ends_with("use the \"appArmorProfile\" field instead") || theirs.contains(w));
        ours.sort();
        theirs.sort();
        if ours != theirs {
            wrong.push(format!("warnings\n  ours   {ours:?}\n  theirs {theirs:?}"));
        }
    }
    let theirs = case["errors"].as_array().unwrap().iter().map(|e| e.as_str().unwrap().to_owned());
    let (ours, theirs) = (first_lines(errors.0.iter().map(ToString::to_string)), first_lines(theirs));
    for missing in theirs.iter().filter(|e| !ours.contains(e)) {
        wrong.push(format!("missing   {missing}"));
    }
    for extra in ours.iter().filter(|e| !theirs.contains(e)) {
        wrong.push(format!("too much  {extra}"));
    }
    wrong
}

fn check_all(facts: &str) {
    let mut failures = 0;
    for line in facts.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let wrong = check(&case);
        if !wrong.is_empty() {
            failures += 1;
            println!("== {}", case["name"].as_str().unwrap());
            for w in wrong {
                println!("{w}");
            }
        }
    }
    assert_eq!(failures, 0, "{failures} of {} cases differ", facts.lines().count());
}

#[test]
fn answers_are_upstreams() {
    check_all(include_str!("upstream/facts.jsonl"));
}

#[test]
fn answers_about_the_cluster_are_upstreams() {
    check_all(include_str!("upstream/facts-cluster.jsonl"));
}
