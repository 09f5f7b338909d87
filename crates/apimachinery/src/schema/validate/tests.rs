//! Compares the decoder with upstream's typed decoder (`k8s.io/apimachinery` 0.37 with the client-go scheme).

use serde_json::Value;

use super::*;
use crate::gvk::GroupVersionKind;
use crate::schema::{for_kind, kinds};

/// Lines of `{"gvk": [group, version, kind], "in": body, "err"?: message, "out"?: object}`.
const FACTS: &str = include_str!("testdata/decode.jsonl");

/// Adds the empty values that Go writes, and removes nulls, which mean the same as a missing field.
fn comparable(value: &Value, schema: &'static Struct) -> Value {
    fn without_nulls(value: &mut Value) {
        if let Value::Object(map) = value {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(without_nulls);
        } else if let Value::Array(items) = value {
            items.iter_mut().for_each(without_nulls);
        }
    }
    let mut value = value.clone();
    fill(&mut value, schema);
    without_nulls(&mut value);
    value
}

#[test]
fn agrees_with_upstream() {
    let mut failures = Vec::new();
    for line in FACTS.lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        let part = |i: usize| fact["gvk"][i].as_str().unwrap();
        let schema = for_kind(&GroupVersionKind::new(part(0), part(1), part(2))).unwrap();
        let input = fact["in"].as_str().unwrap();
        let (error, output) = match decode(input.as_bytes(), schema) {
            Ok(decoded) if decoded.strict_errors.is_empty() => (None, Some(decoded.value)),
            Ok(decoded) => (Some(strict_message(&decoded.strict_errors)), Some(decoded.value)),
            Err(e) => (Some(e.to_string()), None),
        };
        if error.as_deref() != fact["err"].as_str() {
            failures.push(format!("{input}\n  upstream {}\n  here     {error:?}", fact["err"]));
        }
        if let (Some(ours), Some(theirs)) = (output, fact["out"].as_str()) {
            let theirs: Value = serde_json::from_str(theirs).unwrap();
            let ours = if ours.is_null() { Value::Object(serde_json::Map::new()) } else { ours };
            let (ours, theirs) = (comparable(&ours, schema), comparable(&theirs, schema));
            if ours != theirs {
                failures.push(format!("{input}\n  upstream {theirs}\n  here     {ours}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn many_strict_errors_are_capped() {
    let fields: Vec<String> = (0..500).map(|i| format!("\"x{i}\":1")).collect();
    let schema = for_kind(&GroupVersionKind::new("", "v1", "Pod")).unwrap();
    let decoded = decode(format!("{{{}}}", fields.join(",")).as_bytes(), schema).unwrap();
    assert_eq!(decoded.strict_errors.len(), 100);
}

#[test]
fn untyped_notes_duplicates_only() {
    let decoded = decode_untyped(br#"{"a":{"b":1,"b":2},"c":[{"d":1,"d":null}]}"#).unwrap();
    assert_eq!(decoded.value, serde_json::json!({"a": {"b": 2}, "c": [{"d": null}]}));
    assert_eq!(decoded.strict_errors, [r#"duplicate field "a.b""#, r#"duplicate field "c[0].d""#]);
}

#[test]
fn schemas_of_custom_resources_decode() {
    let schema =
        for_kind(&GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition")).unwrap();
    let decode = |properties: &str| {
        let body = format!(
            r#"{{"spec":{{"versions":[{{"name":"v1","schema":{{"openAPIV3Schema":{properties}}}}}]}}}}"#
        );
        super::decode(body.as_bytes(), schema)
    };
    let good = decode(
        r#"{"type":"object","properties":{"a":{"additionalProperties":{"type":"string","bogus":1},"default":null,
        "items":{"type":"integer","maximum":5.0},"x-kubernetes-preserve-unknown-fields":true}},"additionalProperties":false}"#,
    )
    .unwrap();
    assert_eq!(good.strict_errors, Vec::<String>::new());
    let a = &good.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"];
    assert_eq!(a["additionalProperties"], serde_json::json!({"type": "string"}));
    assert_eq!(a["items"], serde_json::json!({"type": "integer", "maximum": 5}));
    assert_eq!(
        decode(r#"{"additionalProperties":5}"#).unwrap_err().to_string(),
        "boolean or JSON schema expected"
    );
}

/// A decoded object decodes to itself, so that stored objects read back the same.
#[test]
fn decoding_is_idempotent() {
    for line in FACTS.lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        let part = |i: usize| fact["gvk"][i].as_str().unwrap();
        let schema = for_kind(&GroupVersionKind::new(part(0), part(1), part(2))).unwrap();
        let Ok(first) = decode(fact["in"].as_str().unwrap().as_bytes(), schema) else { continue };
        let bytes = serde_json::to_vec(&first.value).unwrap();
        let second = decode(&bytes, schema).unwrap();
        assert_eq!(second.value, first.value);
        assert!(second.strict_errors.is_empty());
        let mut pruned = first.value.clone();
        prune(&mut pruned, schema);
        assert_eq!(pruned, first.value);
    }
}

/// Mutated bodies of every kind yield a value or an error.
#[test]
fn arbitrary_input_never_panics() {
    fastrand::seed(42);
    let bodies: Vec<Value> = FACTS.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let alphabet = br#"{}[]",:0-e\untrl5 a"#;
    for _ in 0..20_000 {
        let mut body = bodies[fastrand::usize(..bodies.len())]["in"].as_str().unwrap().as_bytes().to_vec();
        for _ in 0..fastrand::usize(0..3) {
            let at = fastrand::usize(..=body.len());
            match fastrand::u8(0..3) {
                0 => body.insert(at, alphabet[fastrand::usize(..alphabet.len())]),
                1 if at < body.len() => drop(body.remove(at)),
                _ => body.truncate(at),
            }
        }
        let schema = kinds()[fastrand::usize(..kinds().len())].schema;
        let _ = decode(&body, schema);
        let _ = interpret(&body);
        let _ = decode_untyped(&body);
    }
}
