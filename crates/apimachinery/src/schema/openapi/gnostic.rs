//! OpenAPI v2 in the binary form of gnostic's `openapi.v2` messages, which kubectl and client-go request.
//!
//! Source of the field numbers: `OpenAPIv2.proto` of `github.com/google/gnostic-models`.

use serde_json::{Map, Value};

type Fields = Map<String, Value>;

/// Encodes a document as the message `Document`.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    let Value::Object(document) = document else { return out.0 };
    out.text(1, document.get("swagger"));
    out.object(2, document.get("info"), info);
    out.object(8, document.get("paths"), paths);
    out.object(9, document.get("definitions"), |out, all| named(out, 1, all, schema));
    for requirement in objects(document.get("security")) {
        out.message(12, |out| named_with(out, 1, requirement, |out, scopes| out.texts(1, Some(scopes))));
    }
    out.object(13, document.get("securityDefinitions"), |out, all| {
        named(out, 1, all, |out, definition| out.message(2, |out| api_key(out, definition)));
    });
    extensions(&mut out, 16, document);
    out.0
}

/// A message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u32, value: Option<&Value>) {
        for text in value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn flag(&mut self, field: u32, value: Option<&Value>) {
        if value.and_then(Value::as_bool) == Some(true) {
            self.key(field, 0);
            self.varint(1);
        }
    }

    fn integer(&mut self, field: u32, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_i64).filter(|n| *n != 0) {
            self.key(field, 0);
            self.varint(number.cast_unsigned());
        }
    }

    fn double(&mut self, field: u32, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_f64).filter(|n| *n != 0.0) {
            self.key(field, 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn object(&mut self, field: u32, value: Option<&Value>, fill: impl FnOnce(&mut Message, &Fields)) {
        if let Some(Value::Object(object)) = value {
            self.message(field, |out| fill(out, object));
        }
    }

    /// Adds an `Any`: the value as YAML; JSON is valid YAML.
    fn any(&mut self, field: u32, value: Option<&Value>) {
        if let Some(value) = value {
            self.message(field, |out| out.bytes(2, value.to_string().as_bytes()));
        }
    }
}

fn objects(value: Option<&Value>) -> impl Iterator<Item = &Fields> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

/// Adds a map as repeated messages of a name and a value.
fn named_with(out: &mut Message, field: u32, map: &Fields, fill: impl Fn(&mut Message, &Value)) {
    for (name, value) in map {
        out.message(field, |out| {
            out.bytes(1, name.as_bytes());
            out.message(2, |out| fill(out, value));
        });
    }
}

fn named(out: &mut Message, field: u32, map: &Fields, fill: impl Fn(&mut Message, &Fields)) {
    named_with(out, field, map, |out, value| {
        if let Value::Object(value) = value {
            fill(out, value);
        }
    });
}

/// Adds the extensions, `x-…`.
fn extensions(out: &mut Message, field: u32, map: &Fields) {
    for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
        out.message(field, |out| {
            out.bytes(1, name.as_bytes());
            out.any(2, Some(value));
        });
    }
}

fn info(out: &mut Message, info: &Fields) {
    out.text(1, info.get("title"));
    out.text(2, info.get("version"));
    out.text(3, info.get("description"));
}

fn api_key(out: &mut Message, definition: &Fields) {
    out.text(1, definition.get("type"));
    out.text(2, definition.get("name"));
    out.text(3, definition.get("in"));
    out.text(4, definition.get("description"));
}

fn paths(out: &mut Message, paths: &Fields) {
    extensions(out, 1, paths);
    let items = paths.iter().filter(|(path, _)| path.starts_with('/'));
    for (path, item) in items.filter_map(|(path, item)| Some((path, item.as_object()?))) {
        out.message(2, |out| {
            out.bytes(1, path.as_bytes());
            out.message(2, |out| path_item(out, item));
        });
    }
}

const METHODS: [(&str, u32); 7] =
    [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("options", 6), ("head", 7), ("patch", 8)];

fn path_item(out: &mut Message, item: &Fields) {
    for (method, field) in METHODS {
        out.object(field, item.get(method), operation);
    }
    parameters(out, 9, item);
    extensions(out, 10, item);
}

fn operation(out: &mut Message, operation: &Fields) {
    out.texts(1, operation.get("tags"));
    out.text(2, operation.get("summary"));
    out.text(3, operation.get("description"));
    out.text(5, operation.get("operationId"));
    out.texts(6, operation.get("produces"));
    out.texts(7, operation.get("consumes"));
    parameters(out, 8, operation);
    out.object(9, operation.get("responses"), |out, responses| {
        named(out, 1, responses, |out, answer| out.message(1, |out| response(out, answer)));
    });
    out.texts(10, operation.get("schemes"));
    out.flag(11, operation.get("deprecated"));
    extensions(out, 13, operation);
}

fn response(out: &mut Message, response: &Fields) {
    out.text(1, response.get("description"));
    out.object(2, response.get("schema"), |out, body| out.message(1, |out| schema(out, body)));
    extensions(out, 5, response);
}

/// Adds parameters: a `ParametersItem` contains a `Parameter`, which is a body parameter or one of a query, path or
/// header.
fn parameters(out: &mut Message, field: u32, parent: &Fields) {
    for parameter in objects(parent.get("parameters")) {
        out.message(field, |out| {
            if parameter.contains_key("$ref") {
                out.message(2, |out| out.text(1, parameter.get("$ref")));
                return;
            }
            out.message(1, |out| match parameter.get("in").and_then(Value::as_str) {
                Some("body") => out.message(1, |out| body_parameter(out, parameter)),
                place => out.message(2, |out| match place {
                    Some("header") => out.message(1, |out| plain_parameter(out, parameter, 0)),
                    Some("path") => out.message(4, |out| plain_parameter(out, parameter, 0)),
                    _ => out.message(3, |out| plain_parameter(out, parameter, 1)),
                }),
            });
        });
    }
}

fn body_parameter(out: &mut Message, parameter: &Fields) {
    out.text(1, parameter.get("description"));
    out.text(2, parameter.get("name"));
    out.text(3, parameter.get("in"));
    out.flag(4, parameter.get("required"));
    out.object(5, parameter.get("schema"), schema);
}

/// Writes a parameter that is not a body. Query parameters have one more field before `type`, which shifts the
/// numbers.
fn plain_parameter(out: &mut Message, parameter: &Fields, shift: u32) {
    out.flag(1, parameter.get("required"));
    out.text(2, parameter.get("in"));
    out.text(3, parameter.get("description"));
    out.text(4, parameter.get("name"));
    out.text(5 + shift, parameter.get("type"));
    out.text(6 + shift, parameter.get("format"));
    out.flag(19 + shift, parameter.get("uniqueItems"));
}

fn schema(out: &mut Message, schema_: &Fields) {
    let get = |name: &str| schema_.get(name);
    out.text(1, get("$ref"));
    out.text(2, get("format"));
    out.text(3, get("title"));
    out.text(4, get("description"));
    out.any(5, get("default"));
    out.double(6, get("multipleOf"));
    out.double(7, get("maximum"));
    out.flag(8, get("exclusiveMaximum"));
    out.double(9, get("minimum"));
    out.flag(10, get("exclusiveMinimum"));
    out.integer(11, get("maxLength"));
    out.integer(12, get("minLength"));
    out.text(13, get("pattern"));
    out.integer(14, get("maxItems"));
    out.integer(15, get("minItems"));
    out.flag(16, get("uniqueItems"));
    out.integer(17, get("maxProperties"));
    out.integer(18, get("minProperties"));
    out.texts(19, get("required"));
    for value in get("enum").and_then(Value::as_array).into_iter().flatten() {
        out.any(20, Some(value));
    }
    match get("additionalProperties") {
        Some(Value::Object(inner)) => out.message(21, |out| out.message(1, |out| schema(out, inner))),
        Some(allowed @ Value::Bool(_)) => out.message(21, |out| out.flag(2, Some(allowed))),
        _ => {}
    }
    if get("type").is_some() {
        out.message(22, |out| out.text(1, get("type")));
    }
    out.object(23, get("items"), |out, items| out.message(1, |out| schema(out, items)));
    objects(get("allOf")).for_each(|part| out.message(24, |out| schema(out, part)));
    out.object(25, get("properties"), |out, properties| named(out, 1, properties, schema));
    out.any(30, get("example"));
    extensions(out, 31, schema_);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the top-level fields of a message that are not integers: their numbers and bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = bytes[0];
                *bytes = &bytes[1..];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            match key & 7 {
                0 => out.push((key >> 3, vec![varint(&mut bytes) as u8])),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    out.push((key >> 3, bytes[..length].to_vec()));
                    bytes = &bytes[length..];
                }
                other => panic!("wire type {other}"),
            }
        }
        out
    }

    fn inner(bytes: &[u8], path: &[u64]) -> Vec<u8> {
        path.iter().fold(bytes.to_vec(), |bytes, number| {
            fields(&bytes)
                .into_iter()
                .find(|(n, _)| n == number)
                .unwrap_or_else(|| panic!("no field {number}"))
                .1
        })
    }

    #[test]
    fn a_document_in_its_messages() {
        let document = json!({
            "swagger": "2.0", "info": {"title": "Kubernetes", "version": "unversioned"},
            "paths": {"/p": {"get": {"operationId": "read", "parameters": [
                {"name": "limit", "in": "query", "type": "integer", "uniqueItems": true}],
                "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/A"}}}}}},
            "definitions": {"A": {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}},
                "x-kubernetes-group-version-kind": [{"group": "", "kind": "A", "version": "v1"}]}},
            "security": [{"BearerToken": []}],
        });
        let bytes = encode(&document);
        let text = |path: &[u64]| String::from_utf8(inner(&bytes, path)).unwrap();
        assert_eq!(text(&[1]), "2.0");
        assert_eq!(text(&[2, 1]), "Kubernetes");
        assert_eq!(text(&[8, 2, 1]), "/p");
        assert_eq!(text(&[8, 2, 2, 2, 5]), "read");
        assert_eq!(text(&[8, 2, 2, 2, 8, 1, 2, 3, 4]), "limit");
        assert_eq!(text(&[8, 2, 2, 2, 8, 1, 2, 3, 6]), "integer");
        assert_eq!(text(&[8, 2, 2, 2, 9, 1, 1]), "200");
        assert_eq!(text(&[8, 2, 2, 2, 9, 1, 2, 1, 2, 1, 1]), "#/definitions/A");
        assert_eq!(text(&[9, 1, 1]), "A");
        assert_eq!(text(&[9, 1, 2, 22, 1]), "object");
        assert_eq!(text(&[9, 1, 2, 25, 1, 2, 22, 1]), "string");
        assert_eq!(text(&[9, 1, 2, 31, 1]), "x-kubernetes-group-version-kind");
        assert_eq!(text(&[9, 1, 2, 31, 2, 2]), r#"[{"group":"","kind":"A","version":"v1"}]"#);
        assert_eq!(text(&[12, 1, 1]), "BearerToken");
    }
}
