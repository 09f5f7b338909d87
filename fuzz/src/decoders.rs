//! Targets for decoders that are called directly.

use std::str::from_utf8;

use jiff::Timestamp;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::patch::apply::{self, FieldSet, Manager};
use knarr_apimachinery::patch::{json_patch, merge_patch, strategic};
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::schema::{self, protobuf, validate};
use knarr_apimachinery::selector::{FieldSelector, Selector};
use serde_json::{Value, json};

use crate::Target;

fn target(name: &'static str, corpus: Vec<Vec<u8>>, run: impl Fn(&[u8]) + 'static) -> Target {
    Target { name, corpus, run: Box::new(run) }
}

fn texts(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|t| t.as_bytes().to_vec()).collect()
}

/// Builds a target for a decoder of text.
fn of_text(name: &'static str, corpus: &[&str], run: impl Fn(&str) + 'static) -> Target {
    target(name, texts(corpus), move |input| {
        if let Ok(text) = from_utf8(input) {
            run(text);
        }
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "env": [{"name": "E", "value": "v"}], "ports": [{"containerPort": 80}],
                 "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}},
                {"name": "d", "image": "j"}],
            "tolerations": [{"key": "k", "operator": "Exists"}], "activeDeadlineSeconds": 5,
        },
        "status": {"phase": "Running"},
    })
}

fn pod_kind() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "Pod")
}

fn json_body(input: &[u8]) {
    for strict in [false, true] {
        if let Ok(decoded) = validate::decode_request(input, &pod_kind(), strict) {
            let mut value = decoded.value;
            if let Some(schema) = schema::for_kind(&pod_kind()) {
                validate::fill(&mut value, schema);
            }
            let _ = protobuf::encode_object(&value);
        }
    }
    let _ = validate::decode_untyped(input);
}

fn protobuf_body(input: &[u8]) {
    if let Ok(decoded) = protobuf::decode_request(input, &pod_kind()) {
        let _ = protobuf::encode_object(&decoded.value);
    }
}

fn yaml(input: &[u8]) {
    if let Ok(text) = from_utf8(input) {
        let _ = serde_saphyr::from_str::<Value>(text);
    }
}

fn patches(input: &[u8]) {
    let Ok(patch) = serde_json::from_slice::<Value>(input) else { return };
    let document = pod();
    let _ = json_patch::apply(&document, &patch);
    let _ = merge_patch::apply(&mut document.clone(), patch.clone());
    if let Some(schema) = schema::for_kind(&pod_kind()) {
        let _ = strategic::apply(&mut document.clone(), patch, schema);
    }
}

/// Applies the input. If it is a list, it also provides the managed fields of the live object.
fn server_side_apply(input: &[u8]) {
    let Ok(applied) = serde_json::from_slice::<Value>(input) else { return };
    let kind = pod_kind();
    let manager = Manager {
        name: "m",
        subresource: "",
        kind: &kind,
        schema: schema::for_kind(&kind),
        custom: None,
        reset: None,
        now: Timestamp::UNIX_EPOCH,
    };
    let mut live = pod();
    live["metadata"]["managedFields"] = applied["metadata"]["managedFields"].clone();
    for force in [false, true] {
        let _ = apply::apply(Some(&live), &applied, &manager, force);
        let _ = apply::apply(None, &applied, &manager, force);
    }
    let mut new = applied;
    apply::update(Some(&live), &mut new, &manager);
}

fn managed_fields() -> Value {
    json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:containers": {
            "k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}},
            "v:1": {}, "i:0": {}}}, "f:metadata": {"f:labels": {"f:a": {}}}}}])
}

fn bodies() -> Vec<Vec<u8>> {
    let mut owned = pod();
    owned["metadata"]["managedFields"] = managed_fields();
    [pod(), owned, json!({"apiVersion": "v1", "kind": "Pod", "metadata": null, "spec": {"volumes": [{"name": "v", "secret": {}}]}})]
        .iter()
        .map(|v| v.to_string().into_bytes())
        .collect()
}

pub fn all() -> Vec<Target> {
    let patches_corpus = texts(&[
        r#"[{"op":"add","path":"/spec/containers/0/env/-","value":{"name":"x"}},{"op":"test","path":"/a~1b","value":1}]"#,
        r#"[{"op":"move","from":"/spec","path":"/status"},{"op":"copy","from":"/spec/containers","path":"/spec/x"}]"#,
        r#"{"spec":{"containers":[{"name":"c","image":null},{"$patch":"delete","name":"d"}],"tolerations":[{"$patch":"replace"}]}}"#,
        r#"{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"$retainKeys":["containers"]},"$patch":"merge"}"#,
        r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"labels":{"a":null}}}"#,
    ]);
    let proto = protobuf::encode_object(&pod()).unwrap_or_default();
    vec![
        target("json", bodies(), json_body),
        target("protobuf", vec![proto], protobuf_body),
        target(
            "yaml",
            texts(&[
                "a: &x [1, 2]\nb: *x\nc:\n  - d: |\n      text\n    e: 'f'\n",
                "? a\n: b\n---\nc: !!str 1\n",
            ]),
            yaml,
        ),
        target("patch", patches_corpus, patches),
        target("apply", bodies(), server_side_apply),
        of_text("field-set", &[&managed_fields()[0]["fieldsV1"].to_string()], |text| {
            if let Ok(value) = serde_json::from_str::<Value>(text) {
                let _ = FieldSet::from_value(&value);
            }
        }),
        of_text("label-selector", &["a=b,c!=d,e in (f,g),h notin (i),!j,k", "x/y==z"], |text| {
            if let Ok(selector) = Selector::parse(text) {
                let _ = selector.matches_with(|_| Some("b"));
                let _ = selector.to_string();
            }
        }),
        of_text("field-selector", &["metadata.name=a,spec.nodeName!=b\\,c", "a==b\\="], |text| {
            if let Ok(selector) = FieldSelector::parse(text) {
                let _ = selector.matches(|_| Some("b"));
            }
        }),
        of_text("quantity", &["100m", "1.5Gi", "1e3", "-0.000000001", "12345678901234567890E"], |text| {
            if let Ok(amount) = Quantity::parse(text) {
                let shown = amount.to_string();
                assert!(Quantity::parse(&shown).is_ok_and(|again| again == amount), "{text} became {shown}");
                let mut sum = amount.clone();
                sum.add(&amount);
                sum.sub(&amount.times(3));
                let _ = (amount.value(), amount.milli_value(), amount.as_f64());
            }
        }),
    ]
}
