//! OpenAPI v2: one document for all groups, converted from the v3 documents.

use serde_json::{Map, Value, json};

/// Merges the documents of all group versions into one.
pub fn document(v3: impl IntoIterator<Item = Value>) -> Value {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    for mut document in v3 {
        if let Value::Object(schemas) = document["components"]["schemas"].take() {
            for (name, body) in schemas {
                if !definitions.contains_key(&name) {
                    let body = definition(&name, body);
                    definitions.insert(name, body);
                }
            }
        }
        if let Value::Object(items) = document["paths"].take() {
            paths.extend(items.into_iter().map(|(path, item)| (path, path_item(item))));
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "1.37"},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {"BearerToken": {
            "description": "Bearer Token authentication",
            "type": "apiKey", "name": "authorization", "in": "header",
        }},
        "security": [{"BearerToken": []}],
    })
}

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";
const KIND: &str = "x-kubernetes-group-version-kind";

fn definition(name: &str, body: Value) -> Value {
    if body[PRESERVES] == true && body[KIND].is_array() {
        // v2 clients would refuse all fields that are not listed.
        return json!({"type": "object", KIND: body[KIND]});
    }
    let mut body = schema(body);
    if name == QUANTITY {
        body["type"] = "string".into();
    }
    body
}

/// Keywords that v2 does not have: alternatives and null; and defaults, which upstream omits.
const UNKNOWN: [&str; 5] = ["anyOf", "default", "not", "nullable", "oneOf"];
/// Keywords that describe the parts of an object or list.
const PARTS: [&str; 3] = ["additionalProperties", "items", "properties"];

fn is_true(map: &Map<String, Value>, field: &str) -> bool {
    map.get(field) == Some(&Value::Bool(true))
}

/// Converts a v3 schema to v2.
fn schema(value: Value) -> Value {
    let Value::Object(mut map) = value else { return value };
    if let Some(reference) = reference(&map) {
        let mut out = Map::new();
        out.insert("$ref".to_owned(), reference.into());
        let kept = |name: &String| name == "description" || name.starts_with("x-");
        out.extend(map.into_iter().filter(|(name, _)| kept(name)));
        return Value::Object(out);
    }
    if is_true(&map, "nullable") {
        // v2 clients would refuse null if a type is given.
        map.remove("type");
        PARTS.iter().for_each(|part| drop(map.remove(*part)));
    }
    if is_true(&map, PRESERVES) {
        PARTS.iter().for_each(|part| drop(map.remove(*part)));
        // v2 clients do not support objects with arbitrary fields.
        if map.get("type").is_some_and(|t| t == "object") {
            map.remove("type");
        }
        if is_true(&map, "x-kubernetes-embedded-resource") {
            map.remove("required");
        }
    }
    if map.get("type").is_some_and(|t| t == "array") && !map.contains_key("items") {
        map.remove("type");
    }
    if is_true(&map, "x-kubernetes-int-or-string") {
        map.remove("type");
    }
    if map.get("format").is_some_and(|f| f == "int-or-string") {
        map.insert("type".to_owned(), "string".into());
    }
    optional_where_nullable(&mut map);
    UNKNOWN.iter().for_each(|name| drop(map.remove(*name)));
    for part in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(part) {
            *inner = schema(inner.take());
        }
    }
    // The remaining `allOf` are validations of values, without a reference.
    map.remove("allOf");
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for property in properties.values_mut() {
            *property = schema(property.take());
        }
    }
    Value::Object(map)
}

/// Removes nullable fields from `required`: in v2 a required field may not be null.
fn optional_where_nullable(map: &mut Map<String, Value>) {
    let Some(Value::Array(required)) = map.get("required") else { return };
    let nullable = |name: &Value| {
        let property = name.as_str().and_then(|n| map.get("properties")?.get(n));
        property.is_some_and(|p| p["nullable"] == true)
    };
    let kept: Vec<Value> = required.iter().filter(|n| !nullable(n)).cloned().collect();
    if kept.is_empty() {
        map.remove("required");
    } else {
        map.insert("required".to_owned(), kept.into());
    }
}

/// Converts a `$ref`, alone or in `allOf`, to v2.
fn reference(map: &Map<String, Value>) -> Option<String> {
    let direct = map.get("$ref").or_else(|| match map.get("allOf")?.as_array()?.as_slice() {
        [only] => only.get("$ref"),
        _ => None,
    })?;
    let name = direct.as_str()?.strip_prefix("#/components/schemas/")?;
    Some(format!("#/definitions/{name}"))
}

fn path_item(item: Value) -> Value {
    let Value::Object(mut map) = item else { return item };
    for (name, part) in &mut map {
        *part = match name.as_str() {
            "parameters" => parameters(part.take()),
            _ => operation(part.take()),
        };
    }
    Value::Object(map)
}

fn parameters(list: Value) -> Value {
    let Value::Array(list) = list else { return Value::Array(Vec::new()) };
    list.into_iter().map(parameter).collect()
}

/// Converts a parameter; in v2, its schema is part of the parameter itself.
fn parameter(value: Value) -> Value {
    let Value::Object(mut map) = value else { return value };
    if let Some(Value::Object(schema)) = map.remove("schema") {
        map.extend(schema);
    }
    map.entry("type").or_insert_with(|| "string".into());
    Value::Object(map)
}

const ANY: &str = "*/*";
fn operation(value: Value) -> Value {
    let Value::Object(mut map) = value else { return value };
    let mut all: Vec<Value> = Vec::new();
    let mut consumes = vec![Value::from(ANY)];
    if let Some(Value::Object(mut body)) = map.remove("requestBody") {
        let content = body.remove("content").unwrap_or_default();
        let content = content.as_object().cloned().unwrap_or_default();
        consumes = content.keys().map(|k| Value::from(k.as_str())).collect();
        let of_body = content.values().next().map(|c| schema(c["schema"].clone()));
        let mut parameter = json!({"in": "body", "name": "body", "schema": of_body});
        if body.get("required") == Some(&Value::Bool(true)) {
            parameter["required"] = true.into();
        }
        all.push(parameter);
    }
    if let Value::Array(rest) = parameters(map.remove("parameters").unwrap_or_default()) {
        all.extend(rest);
    }
    if !all.is_empty() {
        map.insert("parameters".to_owned(), all.into());
    }
    let mut produces: Vec<Value> = Vec::new();
    if let Some(Value::Object(responses)) = map.get_mut("responses") {
        for response in responses.values_mut() {
            let Some(Value::Object(content)) = response.as_object_mut().and_then(|r| r.remove("content"))
            else {
                continue;
            };
            produces = content.keys().map(|k| Value::from(k.as_str())).collect();
            if let Some(one) = content.values().next() {
                response["schema"] = schema(one["schema"].clone());
            }
        }
    }
    if produces.is_empty() {
        produces.push(ANY.into());
    }
    map.insert("consumes".to_owned(), consumes.into());
    map.insert("produces".to_owned(), produces.into());
    map.insert("schemes".to_owned(), json!(["https"]));
    map.remove("deprecated");
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas() {
        for (v3, v2) in [
            (
                json!({"allOf": [{"$ref": "#/components/schemas/a.B"}], "default": {}, "description": "d"}),
                json!({"$ref": "#/definitions/a.B", "description": "d"}),
            ),
            (
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
                json!({"format": "int-or-string", "type": "string"}),
            ),
            (
                json!({"type": "object", "required": ["a", "b"], "properties": {
                    "a": {"type": "string", "nullable": true}, "b": {"type": "integer", "default": 3}}}),
                json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "integer"}}}),
            ),
            (
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"a": {"type": "string"}}}),
                json!({"x-kubernetes-preserve-unknown-fields": true}),
            ),
            (
                json!({"type": "array", "items": {"$ref": "#/components/schemas/x"}, "x-kubernetes-list-type": "set"}),
                json!({"type": "array", "items": {"$ref": "#/definitions/x"}, "x-kubernetes-list-type": "set"}),
            ),
        ] {
            assert_eq!(schema(v3), v2);
        }
    }

    #[test]
    fn a_custom_resource_that_takes_all_fields_names_none() {
        let kind = json!([{"group": "g", "kind": "K", "version": "v1"}]);
        let v3 = json!({"type": "object", PRESERVES: true, KIND: kind, "properties": {"kind": {"type": "string"}}});
        assert_eq!(definition("g.v1.K", v3), json!({"type": "object", KIND: kind}));
    }

    #[test]
    fn operations() {
        let content = |name: &str| json!({"schema": {"$ref": format!("#/components/schemas/{name}")}});
        let v3 = json!({
            "operationId": "x", "x-kubernetes-action": "post",
            "parameters": [{"name": "dryRun", "in": "query", "schema": {"type": "string", "uniqueItems": true}}],
            "requestBody": {"required": true, "content": {"*/*": content("A")}},
            "responses": {"200": {"description": "OK", "content": {"application/json": content("A")}},
                "401": {"description": "Unauthorized"}},
        });
        let reference = json!({"$ref": "#/definitions/A"});
        assert_eq!(
            operation(v3),
            json!({
                "operationId": "x", "x-kubernetes-action": "post",
                "parameters": [
                    {"in": "body", "name": "body", "required": true, "schema": reference},
                    {"name": "dryRun", "in": "query", "type": "string", "uniqueItems": true}],
                "consumes": ["*/*"], "produces": ["application/json"], "schemes": ["https"],
                "responses": {"200": {"description": "OK", "schema": reference},
                    "401": {"description": "Unauthorized"}},
            })
        );
    }
}
