//! Tests of schemas: pruning, defaults, validation and its messages.

use serde_json::{Value, json};

use super::*;
use crate::field::Path;

fn schema(props: Value) -> Schema {
    Schema::parse(&props)
}

fn errors(props: Value, value: Value) -> String {
    validate(&value, &schema(props), &Path::default()).to_string()
}

#[test]
fn values_are_refused_in_upstreams_words() {
    let string = |more: Value| {
        let mut props = json!({"type": "string"});
        props.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": props}}}})
    };
    let x = |value: Value| json!({"spec": {"x": value}});
    for (props, value, expected) in [
        (
            string(json!({})),
            x(json!(1)),
            r#"spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer""#,
        ),
        (
            string(json!({"enum": ["a", "b"]})),
            x(json!("c")),
            r#"spec.x: Unsupported value: "c": supported values: "a", "b""#,
        ),
        (string(json!({"maxLength": 2})), x(json!("abc")), "spec.x: Too long: may not be more than 2 bytes"),
        (
            string(json!({"minLength": 2})),
            x(json!("a")),
            r#"spec.x: Invalid value: "a": spec.x in body should be at least 2 chars long"#,
        ),
        (
            string(json!({"pattern": "^a+$"})),
            x(json!("b")),
            r#"spec.x: Invalid value: "b": spec.x in body should match '^a+$'"#,
        ),
        (
            string(json!({"format": "date-time"})),
            x(json!("b")),
            r#"spec.x: Invalid value: "b": spec.x in body must be of type date-time: "b""#,
        ),
        (string(json!({"format": "no-such"})), x(json!("b")), "[]"),
        (
            string(json!({})),
            x(Value::Null),
            r#"spec.x: Invalid value: "null": spec.x in body must be of type string: "null""#,
        ),
        (string(json!({"nullable": true})), x(Value::Null), "[]"),
        (json!({"type": "object", "required": ["spec"]}), json!({}), "spec: Required value"),
        (
            json!({"type": "object"}),
            json!("a"),
            r#"<nil>: Invalid value: "string":  in body must be of type object: "string""#,
        ),
        (
            json!({"properties": {"n": {"type": "integer", "maximum": 5}}}),
            json!({"n": 6}),
            "n: Invalid value: 6: n in body should be less than or equal to 5",
        ),
        (
            json!({"properties": {"n": {"type": "number", "minimum": 1.5, "exclusiveMinimum": true}}}),
            json!({"n": 1.5}),
            "n: Invalid value: 1.5: n in body should be greater than 1.5",
        ),
        (
            json!({"properties": {"n": {"type": "integer", "multipleOf": 2.0}}}),
            json!({"n": 3}),
            "n: Invalid value: 3: n in body should be a multiple of 2",
        ),
        (
            json!({"properties": {"n": {"type": "integer"}}}),
            json!({"n": 1.5}),
            r#"[n: Invalid value: "number": n in body must be of type integer: "number", <nil>: Invalid value: "": Checked value must be of type integer (default format) in n]"#,
        ),
        (json!({"properties": {"n": {"type": "integer"}}}), json!({"n": 2.0}), "[]"),
        (
            json!({"properties": {"l": {"type": "array", "maxItems": 1, "items": {"type": "string"}}}}),
            json!({"l": ["a", 1]}),
            r#"[l[1]: Invalid value: "integer": l[1] in body must be of type string: "integer", l: Too many: 2: must have at most 1 item]"#,
        ),
        (
            json!({"properties": {"l": {"type": "array", "minItems": 1}}}),
            json!({"l": []}),
            "l: Invalid value: 0: l in body should have at least 1 items",
        ),
        (
            json!({"properties": {"m": {"type": "object", "additionalProperties": {"type": "string"}}}}),
            json!({"m": {"k": 1}}),
            r#"m.k: Invalid value: "integer": m.k in body must be of type string: "integer""#,
        ),
        (
            json!({"properties": {"v": {"x-kubernetes-int-or-string": true}}}),
            json!({"v": true}),
            r#"v: Invalid value: "boolean": v in body must be of type integer,string: "boolean""#,
        ),
        (json!({"properties": {"v": {"x-kubernetes-int-or-string": true}}}), json!({"v": "50%"}), "[]"),
        (
            json!({"properties": {"v": {"type": "string", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]}}}),
            json!({"v": "ab"}),
            r#"<nil>: Invalid value: "": "v" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ),
        (
            json!({"properties": {"v": {"type": "string", "not": {"pattern": "a"}}}}),
            json!({"v": "ab"}),
            r#"<nil>: Invalid value: "": "v" must not validate the schema (not)"#,
        ),
    ] {
        assert_eq!(errors(props.clone(), value.clone()), expected, "{props} {value}");
    }
}

#[test]
fn what_was_wrong_before_may_stay() {
    let props = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1}, "b": {"type": "string"},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
            "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}}},
    }}}});
    let old = json!({"spec": {"a": "long", "b": "x", "l": [{"n": "p", "v": 9}, {"n": "q", "v": 1}]}});
    let update =
        |new: Value| validate_update(&new, Some(&old), &schema(props.clone()), &Path::default()).to_string();
    assert_eq!(
        update(json!({"spec": {"a": "long", "b": "y", "l": [{"n": "q", "v": 0}, {"n": "p", "v": 9}]}})),
        "[]"
    );
    assert_eq!(update(json!({"spec": {"a": "longer"}})), "spec.a: Too long: may not be more than 1 bytes");
    assert_eq!(
        update(json!({"spec": {"l": [{"n": "p", "v": 8}]}})),
        "spec.l[0].v: Invalid value: 8: spec.l[0].v in body should be less than or equal to 1"
    );
}

#[test]
fn unknown_fields_go_and_are_named() {
    let props = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object"}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"known": {"type": "object", "properties": {"x": {"type": "string"}}}}},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": true,
                "x-kubernetes-preserve-unknown-fields": true},
        }},
    }});
    let mut value = json!({
        "apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "foo": 1}, "other": 1,
        "spec": {
            "list": [{"a": "x", "b": 1}], "map": {"k": {"v": 1}}, "gone": {"a": 1},
            "free": {"anything": 1, "known": {"x": "a", "y": 1}},
            "embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "bar": 2}, "spec": {}},
        },
    });
    let unknown = coerce(&mut value, &schema(props), Coerced::default()).unwrap();
    assert_eq!(
        unknown,
        [
            "metadata.foo",
            "other",
            "spec.free.known.y",
            "spec.gone",
            "spec.list[0].b",
            "spec.map.k.v",
            "spec.embedded.metadata.bar"
        ]
    );
    assert_eq!(
        value["spec"],
        json!({"list": [{"a": "x"}], "map": {"k": {}}, "free": {"anything": 1, "known": {"x": "a"}},
            "embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}})
    );
    assert_eq!(value["metadata"], json!({"name": "n"}));
}

#[test]
fn metadata_of_a_wrong_type_is_refused_or_dropped() {
    let schema = schema(json!({"type": "object"}));
    let bad = json!({"metadata": {"name": "n", "labels": {"a": 1}}});
    let refused = coerce(&mut bad.clone(), &schema, Coerced::default()).unwrap_err();
    assert_eq!(
        refused,
        "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"
    );
    let mut stored = bad;
    let lenient = Coerced { drop_invalid_metadata: true, ..Coerced::default() };
    coerce(&mut stored, &schema, lenient).unwrap();
    assert_eq!(stored, json!({"metadata": {"name": "n"}}));
}

#[test]
fn defaults_are_set_everywhere() {
    let props = json!({"type": "object", "properties": {
        "spec": {"type": "object", "default": {}, "properties": {
            "a": {"type": "string", "default": "A"},
            "nullable": {"type": "string", "nullable": true, "default": "N"},
            "plain": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer", "default": 7}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "default": "M"}},
        }},
    }});
    let schema = schema(props);
    let defaulted = |mut value: Value| {
        prune_nulls(&mut value, Some(&schema));
        apply_defaults(&mut value, &schema);
        value
    };
    assert_eq!(defaulted(json!({})), json!({"spec": {"a": "A", "nullable": "N"}}));
    assert_eq!(
        defaulted(
            json!({"spec": {"a": null, "nullable": null, "plain": null, "list": [{}], "map": {"k": null}}})
        ),
        json!({"spec": {"a": "A", "nullable": null, "list": [{"b": 7}], "map": {"k": "M"}}})
    );
}

#[test]
fn sets_and_maps_have_no_element_twice() {
    let list = |more: Value| {
        let mut list = json!({"type": "array"});
        list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"properties": {"l": list}})
    };
    for (props, value, expected) in [
        (list(json!({"x-kubernetes-list-type": "set"})), json!([1, 2, 1, 1]), "l[2]: Duplicate value: 1"),
        (
            list(json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]})),
            json!([{"k": "a"}, {"k": "b"}, {"k": "a", "v": 1}]),
            r#"l[2]: Duplicate value: {"k":"a"}"#,
        ),
        (list(json!({"x-kubernetes-list-type": "atomic"})), json!([1, 1]), "[]"),
    ] {
        let found = validate_list_types(&json!({"l": value}), &schema(props), &Path::default());
        assert_eq!(found.to_string(), expected);
    }
}

#[test]
fn embedded_resources_are_checked() {
    let props = json!({"properties": {"e": {"type": "object", "x-kubernetes-embedded-resource": true}}});
    let found = validate_embedded(
        &json!({"e": {"kind": "", "metadata": {"labels": {"a": "-"}}}}),
        &schema(props),
        &Path::default(),
    );
    let text = found.to_string();
    assert!(
        text.starts_with(r#"[e.apiVersion: Required value, e.kind: Invalid value: "": must not be empty, e.metadata.labels: Invalid value: "-": "#),
        "{text}"
    );
}
