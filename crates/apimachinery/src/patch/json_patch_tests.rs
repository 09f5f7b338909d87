//! Compares JSON patch with upstream's library, and checks its laws.

use serde_json::{Value, json};

use super::*;

const DOCUMENT: &str = r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#;

/// One operation on `DOCUMENT` and the result; `Ok("")` for an unchanged document.
const FACTS: &[(&str, Result<&str, &str>)] = &[
    (
        r#"[{"op":"add","path":"/a/n","value":5}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"n":5,"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"add","path":"/z/n","value":5}]"#,
        Err("add operation does not apply: doc is missing path: \"/z/n\": missing value"),
    ),
    (
        r#"[{"op":"add","path":"/a/c~1d/-","value":4}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3,4],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"add","path":"/a/c~1d/1","value":9}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,9,2,3],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"add","path":"/a/c~1d/4","value":9}]"#,
        Err(
            "error in add for path: '/a/c~1d/4': Unable to access invalid index: 4: invalid index referenced",
        ),
    ),
    (
        r#"[{"op":"add","path":"/a/c~1d/3","value":9}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3,9],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"add","path":"/a/c~1d/-1","value":9}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3,9],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"add","path":"/a/c~1d/x","value":9}]"#,
        Err(
            "error in add for path: '/a/c~1d/x': value was not a proper array index: 'x': strconv.Atoi: parsing \"x\": invalid syntax",
        ),
    ),
    (
        r#"[{"op":"add","path":"","value":9}]"#,
        Err("add operation does not apply: doc is missing path: \"\": missing value"),
    ),
    (
        r#"[{"op":"add","path":"/q"}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"x":1},{"y":2}],"q":null,"s":"t"}"#),
    ),
    (r#"[{"op":"add","value":1}]"#, Err("add operation failed to decode path: missing value")),
    (
        r#"[{"op":"remove","path":"/a/b"}]"#,
        Ok(r#"{"a":{"c/d":[1,2,3],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"remove","path":"/a/zz"}]"#,
        Err("error in remove for path: '/a/zz': Unable to remove nonexistent key: zz: missing value"),
    ),
    (
        r#"[{"op":"remove","path":"/l/7"}]"#,
        Err("error in remove for path: '/l/7': Unable to access invalid index: 7: invalid index referenced"),
    ),
    (
        r#"[{"op":"remove","path":"/l/-1"}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"x":1}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"remove","path":"/l/-"}]"#,
        Err("error in remove for path: '/l/-': strconv.Atoi: parsing \"-\": invalid syntax"),
    ),
    (
        r#"[{"op":"remove","path":"/q/w"}]"#,
        Err("remove operation does not apply: doc is missing path: \"/q/w\": missing value"),
    ),
    (
        r#"[{"op":"replace","path":"/a/b","value":2}]"#,
        Ok(r#"{"a":{"b":2,"c/d":[1,2,3],"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"replace","path":"/a/zz","value":2}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"zz":2,"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"replace","path":"/zz/b","value":2}]"#,
        Err("replace operation does not apply: doc is missing path: /zz/b: missing value"),
    ),
    (
        r#"[{"op":"replace","path":"/l/0","value":2}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[2,{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"replace","path":"/l/2","value":2}]"#,
        Err("replace operation does not apply: doc is missing key: /l/2: missing value"),
    ),
    (r#"[{"op":"replace","path":"","value":{"n":1}}]"#, Ok(r#"{"n":1}"#)),
    (r#"[{"op":"replace","path":"","value":[1]}]"#, Ok(r#"[1]"#)),
    (
        r#"[{"op":"move","from":"/a/b","path":"/a/e"}]"#,
        Ok(r#"{"a":{"c/d":[1,2,3],"e":1,"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"move","from":"/a/zz","path":"/a/e"}]"#,
        Err("error in move for path: 'zz': Unable to remove nonexistent key: zz: missing value"),
    ),
    (
        r#"[{"op":"move","from":"/l/0","path":"/l/1"}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"y":2},{"x":1}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"move","path":"/l/1"}]"#,
        Err("move operation failed to decode from: operation, missing from field: missing value"),
    ),
    (
        r#"[{"op":"move","from":"/a","path":"/a/e"}]"#,
        Err("move operation does not apply: doc is missing destination path: /a/e: missing value"),
    ),
    (
        r#"[{"op":"copy","from":"/a/b","path":"/a/e"}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"e":1,"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"copy","from":"/a/zz","path":"/a/e"}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"e":null,"~":null},"l":[{"x":1},{"y":2}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"copy","from":"/zz/z","path":"/a/e"}]"#,
        Err("copy operation does not apply: doc is missing from path: /zz/z: missing value"),
    ),
    (
        r#"[{"op":"copy","from":"/l/0","path":"/l/-"}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"x":1},{"y":2},{"x":1}],"s":"t"}"#),
    ),
    (
        r#"[{"op":"copy","from":"/l/9","path":"/l/-"}]"#,
        Err("error in copy for from: '/l/9': Unable to access invalid index: 9: invalid index referenced"),
    ),
    (
        r#"[{"op":"copy","from":"/l/0","path":"/l/9"}]"#,
        Err(
            "error while adding value during copy: Unable to access invalid index: 9: invalid index referenced",
        ),
    ),
    (r#"[{"op":"test","path":"/a/b","value":1}]"#, Ok("")),
    (r#"[{"op":"test","path":"/a/b","value":1.0}]"#, Err("testing value /a/b failed: test failed")),
    (r#"[{"op":"test","path":"/a/b","value":2}]"#, Err("testing value /a/b failed: test failed")),
    (r#"[{"op":"test","path":"/a/zz","value":2}]"#, Err("testing value /a/zz failed: test failed")),
    (r#"[{"op":"test","path":"/a/zz"}]"#, Ok("")),
    (r#"[{"op":"test","path":"/a/zz","value":null}]"#, Ok("")),
    (r#"[{"op":"test","path":"/a/~0","value":null}]"#, Ok("")),
    (r#"[{"op":"test","path":"/l","value":[{"x":1},{"y":2}]}]"#, Ok("")),
    (
        r#"[{"op":"test","path":"/q/r","value":1}]"#,
        Err("test operation does not apply: is missing path: /q/r: missing value"),
    ),
    (
        r#"[{"op":"test","path":"/l/5","value":1}]"#,
        Err("error in test for path: '/l/5': Unable to access invalid index: 5: invalid index referenced"),
    ),
    (r#"[{"op":"test","path":"/s","value":"t"}]"#, Ok("")),
    (
        r#"[{"op":"test","path":"/s/x","value":"t"}]"#,
        Err("test operation does not apply: is missing path: /s/x: missing value"),
    ),
    (r#"[{"op":"test","path":"","value":{}}]"#, Err("testing value  failed: test failed")),
    (r#"[{"op":"frob","path":"/a"}]"#, Err("Unexpected kind: frob")),
    (r#"[{"path":"/a"}]"#, Err("Unexpected kind: unknown")),
    (
        r#"[{"op":"add","path":"a/n","value":5}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"x":1},{"y":2}],"n":5,"s":"t"}"#),
    ),
    (
        r#"[{"op":"add","path":"/a/b/c","value":5}]"#,
        Err("add operation does not apply: doc is missing path: \"/a/b/c\": missing value"),
    ),
    (r#"[{"op":"add","path":5,"value":5}]"#, Err("add operation failed to decode path: missing value")),
    (
        r#"[{"op":"move","from":"/zz/b","path":"/a/e"}]"#,
        Err("move operation does not apply: doc is missing from path: /zz/b: missing value"),
    ),
    (
        r#"[{"op":"move","from":"/a/b","path":"/zz/e"}]"#,
        Err("move operation does not apply: doc is missing destination path: /zz/e: missing value"),
    ),
    (
        r#"[{"op":"add","path":"/l/01","value":5}]"#,
        Ok(r#"{"a":{"b":1,"c/d":[1,2,3],"~":null},"l":[{"x":1},5,{"y":2}],"s":"t"}"#),
    ),
    (r#"[{"op":5}]"#, Err("Unexpected kind: unknown")),
];

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn facts() {
    let document = parse(DOCUMENT);
    for (patch, expected) in FACTS {
        let got = apply(&document, &parse(patch)).map_err(|e| e.to_string());
        let expected =
            expected.map_err(str::to_owned).map(|t| parse(if t.is_empty() { DOCUMENT } else { t }));
        assert_eq!(got, expected, "{patch}");
    }
}

#[test]
fn refused_as_a_whole() {
    let code = |patch: Value| StatusError::from(apply(&json!({}), &patch).unwrap_err()).code();
    assert_eq!(code(json!({})), 400);
    assert_eq!(code(json!([5])), 400);
    assert_eq!(code(json!([{"op": "remove", "path": "/a"}])), 422);
    let many: Vec<Value> = (0..10_001).map(|_| json!({"op": "test", "path": "/a"})).collect();
    assert_eq!(code(Value::from(many)), 413);
    let error = apply(&json!({}), &json!({})).unwrap_err().to_string();
    let message = "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp";
    assert_eq!(error, format!("error decoding patch: {message}"));
}

#[test]
fn growth_is_bounded() {
    let start = json!({"a": {"x": "0123456789"}});
    let double: Vec<Value> =
        (0..40).map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/n{i}")})).collect();
    let error = apply(&start, &Value::from(double)).unwrap_err().to_string();
    assert!(error.contains("nested deeper") || error.contains("accumulated size"), "{error}");
    let wide: Vec<Value> = (0..40)
        .flat_map(|i| {
            [
                json!({"op": "add", "path": format!("/l{}", i + 1), "value": []}),
                json!({"op": "copy", "from": format!("/l{i}"), "path": format!("/l{}/-", i + 1)}),
                json!({"op": "copy", "from": format!("/l{i}"), "path": format!("/l{}/-", i + 1)}),
            ]
        })
        .collect();
    let error = apply(&json!({"l0": ["0123456789"]}), &Value::from(wide)).unwrap_err().to_string();
    assert!(error.contains("accumulated size"), "{error}");
}

/// A patch that removes every key of `from` and adds every key of `to` turns one into the other.
#[test]
fn add_and_remove_round_trip() {
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..500 {
        let mut object = || {
            let entry = |_| (format!("k/~{}", rng.u8(..6)), json!({"v": [rng.u8(..), null]}));
            Value::Object((0..5).map(entry).collect())
        };
        let (from, to) = (object(), object());
        let pointer = |key: &String| format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        let mut patch: Vec<Value> = Vec::new();
        for key in from.as_object().unwrap().keys() {
            patch.push(json!({"op": "remove", "path": pointer(key)}));
        }
        for (key, value) in to.as_object().unwrap() {
            patch.push(json!({"op": "add", "path": pointer(key), "value": value}));
        }
        patch.push(json!({"op": "test", "path": "", "value": to}));
        assert_eq!(apply(&from, &Value::from(patch)).unwrap(), to);
    }
}
