//! Compares the codec with what Go's generated code reads and writes.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;
use crate::gvk::GroupVersionKind;
use crate::schema::validate::{self, base64, fill};
use crate::schema::{for_kind, kinds};

/// Lines of `{"gvk": [group, version, kind], "json": object, "pb": base64 of its message}`: random objects, encoded
/// by `k8s.io/api` 0.37.
const FACTS: &str = include_str!("testdata/messages.jsonl");

fn pod() -> &'static Struct {
    for_kind(&GroupVersionKind::new("", "v1", "Pod")).unwrap()
}

/// Adds the empty values that Go writes, and removes nulls.
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

/// Reports the first place where two values differ.
fn difference(path: &str, a: &Value, b: &Value, out: &mut String) {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            for key in keys {
                let at = |m: &serde_json::Map<String, Value>| m.get(key).cloned().unwrap_or(Value::Null);
                difference(&format!("{path}.{key}"), &at(x), &at(y), out);
            }
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            x.iter().zip(y).for_each(|(x, y)| difference(&format!("{path}[]"), x, y, out));
        }
        _ if a != b => {
            let cut = |v: &Value| v.to_string().chars().take(150).collect::<String>();
            let _ = writeln!(out, "  {path}: upstream {} here {}", cut(a), cut(b));
        }
        _ => {}
    }
}

fn compare(facts: &str) -> (usize, Vec<String>) {
    let mut failures = Vec::new();
    let mut count = 0;
    for line in facts.lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        let part = |i: usize| fact["gvk"][i].as_str().unwrap();
        let gvk = GroupVersionKind::new(part(0), part(1), part(2));
        let Some(schema) = for_kind(&gvk) else { continue };
        count += 1;
        let (text, message) = (fact["json"].as_str().unwrap(), fact["pb"].as_str().unwrap());
        let message = base64::decode(message.as_bytes()).unwrap();
        let object = validate::decode(text.as_bytes(), schema).unwrap().value;
        // If Go does not read back what it wrote, the decoder must match what Go reads.
        let back = fact["back"].as_str().unwrap_or(text);
        let back = validate::decode(back.as_bytes(), schema).unwrap().value;
        match decode(&message, schema) {
            Ok(decoded) => {
                let (want, got) = (comparable(&back, schema), comparable(&decoded, schema));
                let mut text = String::new();
                difference("", &want, &got, &mut text);
                if !text.is_empty() {
                    failures.push(format!("{gvk:?} decoded\n{text}"));
                }
                if encode(&decoded, schema).as_deref() != encode(&back, schema).as_deref() {
                    failures.push(format!("{gvk:?} does not go round"));
                }
            }
            Err(e) => failures.push(format!("{gvk:?} {e}")),
        }
        match encode(&object, schema) {
            Ok(bytes) if bytes == message => {}
            Ok(bytes) => {
                let mut text = String::new();
                let at = bytes.iter().zip(&message).take_while(|(a, b)| a == b).count();
                match decode(&bytes, schema) {
                    Ok(ours) => difference("", &back, &ours, &mut text),
                    Err(e) => text = e.to_string(),
                }
                failures.push(format!(
                    "{gvk:?} encoded {} of {} at {at}\n{text}\n upstream {:?}\n here {:?}",
                    bytes.len(),
                    message.len(),
                    &message[at.saturating_sub(12)..message.len().min(at + 12)],
                    &bytes[at.saturating_sub(12)..bytes.len().min(at + 12)],
                ));
            }
            Err(e) => failures.push(format!("{gvk:?} {e}")),
        }
    }
    (count, failures)
}

#[test]
fn agrees_with_upstream() {
    let (count, failures) = compare(FACTS);
    assert!(count > 200, "{count}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs a larger set of these lines, from the file that `PROTOBUF_MESSAGES` names.
#[test]
#[ignore = "needs a file of messages"]
fn agrees_with_upstream_at_length() {
    let path = std::env::var("PROTOBUF_MESSAGES").unwrap();
    let (count, failures) = compare(&std::fs::read_to_string(path).unwrap());
    let shown: Vec<String> = failures.iter().take(40).cloned().collect();
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), shown.join("\n"));
    println!("{count} objects");
}

fn enveloped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    wrap(api_version, kind, |out| {
        out.extend_from_slice(raw);
        Ok(())
    })
    .unwrap()
}

#[test]
fn an_envelope_opens() {
    let body = enveloped("apps/v1", "Deployment", b"xyz");
    let want = Unknown { api_version: "apps/v1".into(), kind: "Deployment".into(), raw: b"xyz" };
    assert_eq!(open(&body), Ok(want));
    for (body, error) in [
        (&b""[..], "empty data"),
        (b"k8s\0", "empty body"),
        (b"{}", "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"),
        (b"k8s\0\x0a", "unexpected EOF"),
        (b"k8s\0\x10\x01", "proto: wrong wireType = 0 for field Raw"),
    ] {
        assert_eq!(open(body).unwrap_err().to_string(), error);
    }
}

/// Checks the answer to a request body.
#[track_caller]
fn check(body: &[u8], want: &str) {
    let got = match decode_request(body, &GroupVersionKind::new("", "v1", "Pod")) {
        Ok(decoded) => format!("ok {}", decoded.value),
        Err(e) => format!("{} {} {}", e.code(), e.reason(), e.message()),
    };
    assert_eq!(got, want);
}

#[test]
fn request_bodies_have_upstreams_words() {
    let metadata = b"\x0a\x03\x0a\x01p";
    check(
        &enveloped("v1", "Pod", metadata),
        r#"ok {"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}"#,
    );
    check(&enveloped("", "", metadata), r#"ok {"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}"#);
    check(
        b"nonsense",
        "400 BadRequest the object provided is unrecognized (must be of type Pod): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (6e6f6e73656e7365)",
    );
    check(
        &enveloped("v1", "Pod", b"\x0a\x05"),
        r#"400 BadRequest Pod in version "v1" cannot be handled as a Pod: unexpected EOF"#,
    );
    check(
        &enveloped("v1", "Pod", b"\x10\x05"),
        r#"400 BadRequest Pod in version "v1" cannot be handled as a Pod: proto: wrong wireType = 0 for field Spec"#,
    );
    check(
        &enveloped("v1", "Service", b""),
        r#"400 BadRequest Service in version "v1" cannot be handled as a Pod: converting (v1.Service) to (core.Pod): unknown conversion"#,
    );
    check(
        &enveloped("meta.k8s.io/v1", "Table", b""),
        r#"400 BadRequest Table in version "v1" cannot be handled as a Pod: object Table does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message"#,
    );
}

#[test]
fn a_list_is_what_its_items_make() {
    let items =
        [json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}, "spec": {"nodeName": "n"}})];
    let meta = json!({"resourceVersion": "7"});
    let mut list = ListEncoder::new("v1", "PodList", &meta).unwrap();
    items.iter().for_each(|item| list.push(item).unwrap());
    let whole = json!({"apiVersion": "v1", "kind": "PodList", "metadata": meta, "items": items});
    assert_eq!(list.finish().unwrap(), encode_object(&whole).unwrap());
    assert!(ListEncoder::new("v1", "Pod", &meta).is_err());
    assert!(matches!(
        encode_object(&json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table"})),
        Err(EncodeError::NotMarshalable(_))
    ));
}

#[test]
fn a_frame_of_a_watch_is_a_watch_event() {
    let mut out = Vec::new();
    watch_frame("ADDED", b"{}", &mut out).unwrap();
    let length = u32::from_be_bytes(out[..4].try_into().unwrap()) as usize;
    assert_eq!(length, out.len() - 4);
    let schema = for_kind(&GroupVersionKind::new("", "v1", "WatchEvent")).unwrap();
    assert_eq!(decode(&out[4..], schema).unwrap(), json!({"type": "ADDED", "object": {}}));
}

/// Tests schemas nested as deep as permitted, and deeper.
#[test]
fn depth_is_bounded() {
    let schema =
        for_kind(&GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition")).unwrap();
    let props = crate::schema::for_definition(
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
    );
    let not = props.unwrap().field("not").unwrap().number;
    let nested = |levels: usize| {
        let mut message = Vec::new();
        for _ in 0..levels {
            let mut outer = Vec::new();
            wire::put_bytes(&mut outer, not, &message);
            message = outer;
        }
        // spec: 2, versions: 7, schema: 4, openAPIV3Schema: 1.
        for number in [1, 4, 7, 2] {
            let mut outer = Vec::new();
            wire::put_bytes(&mut outer, number, &message);
            message = outer;
        }
        decode(&message, schema)
    };
    let value = nested(100).unwrap();
    assert!(validate::decode(value.to_string().as_bytes(), schema).is_ok());
    assert_eq!(nested(200), Err(DecodeError::TooDeep));
}

#[test]
fn unknown_fields_are_passed_over_and_repeated_ones_merged() {
    let mut message = Vec::new();
    for raw in [&b"\x0a\x01a"[..], b"\x1a\x02ns"] {
        wire::put_bytes(&mut message, 1, raw);
    }
    wire::put_int(&mut message, 999, -1);
    assert_eq!(decode(&message, pod()).unwrap(), json!({"metadata": {"name": "a", "namespace": "ns"}}));
}

/// Mutated messages of every kind yield a value or an error; values can be encoded again.
#[test]
fn arbitrary_input_never_panics() {
    fastrand::seed(17);
    let messages: Vec<Vec<u8>> = FACTS
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap())
        .map(|fact| base64::decode(fact["pb"].as_str().unwrap().as_bytes()).unwrap())
        .collect();
    for _ in 0..20_000 {
        let mut message = messages[fastrand::usize(..messages.len())].clone();
        for _ in 0..fastrand::usize(0..4) {
            let at = fastrand::usize(..=message.len());
            match fastrand::u8(0..4) {
                0 => message.insert(at, fastrand::u8(..)),
                1 if at < message.len() => drop(message.remove(at)),
                2 if at < message.len() => message[at] = fastrand::u8(..),
                _ => message.truncate(at),
            }
        }
        let schema = kinds()[fastrand::usize(..kinds().len())].schema;
        if let Ok(value) = decode(&message, schema) {
            let bytes = encode(&value, schema).unwrap();
            assert_eq!(
                decode(&bytes, schema).map(|v| comparable(&v, schema)),
                Ok(comparable(&value, schema))
            );
        }
        let _ = open(&message);
    }
}
