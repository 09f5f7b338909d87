//! `components.schemas`: every struct that the kinds of a document refer to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::resource::Describe;
use crate::schema::{Field, ListKind, Struct, Type, go_element, kinds};

/// Returns the schemas of `roots` and of all that they refer to, by definition name.
pub fn schemas(roots: &[&'static Struct], describe: Describe<'_>) -> Map<String, Value> {
    let mut found: BTreeMap<&'static str, Value> = BTreeMap::new();
    let mut waiting: Vec<&'static Struct> = roots.to_vec();
    while let Some(schema) = waiting.pop() {
        if found.contains_key(schema.name) {
            continue;
        }
        let body = match list_words(schema, describe) {
            Some(descriptions) => structure(schema, &|_| Some(descriptions.clone())),
            None => structure(schema, describe),
        };
        found.insert(schema.name, body);
        for field in schema.fields {
            reach(field.ty, field.go_name, &mut waiting, &mut found, describe);
        }
    }
    found.insert(PATCH, described(PATCH, json!({"type": "object"}), describe));
    found.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const JSON_SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Records the definitions that a type refers to.
fn reach(
    ty: Type,
    go: &'static str,
    waiting: &mut Vec<&'static Struct>,
    found: &mut BTreeMap<&'static str, Value>,
    describe: Describe<'_>,
) {
    match ty {
        Type::Struct(schema) => waiting.push(schema),
        Type::List(list) => reach(list.element, go_element(go), waiting, found, describe),
        Type::Map(map) => reach(map.value, go_element(go), waiting, found, describe),
        _ => {
            if let Some((name, body)) = leaf(ty, go) {
                if name.contains("JSONSchemaPropsOr") {
                    waiting.extend(crate::schema::for_definition(JSON_SCHEMA_PROPS));
                }
                found.entry(name).or_insert_with(|| described(name, body, describe));
            }
        }
    }
}

/// Returns the definition of a type that has one of its own and is not a struct.
fn leaf(ty: Type, go: &str) -> Option<(&'static str, Value)> {
    let json_types = json!({});
    Some(match (ty, go) {
        (Type::Quantity, _) => (
            "io.k8s.apimachinery.pkg.api.resource.Quantity",
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        ),
        (Type::IntOrString, _) => (
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        ),
        (Type::Time, _) => {
            ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", json!({"type": "string", "format": "date-time"}))
        }
        (Type::MicroTime, _) => (
            "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
            json!({"type": "string", "format": "date-time"}),
        ),
        (Type::Duration, _) => ("io.k8s.apimachinery.pkg.apis.meta.v1.Duration", json!({"type": "string"})),
        (Type::Any, "runtime.RawExtension") => {
            ("io.k8s.apimachinery.pkg.runtime.RawExtension", json!({"type": "object"}))
        }
        (Type::Any, "v1.FieldsV1") => {
            ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", json!({"type": "object"}))
        }
        (Type::Any, "v1.JSON") => {
            ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", json_types)
        }
        (Type::Any, "v1.JSONSchemaPropsOrArray") => {
            ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray", json_types)
        }
        (Type::Any, "v1.JSONSchemaPropsOrBool") => {
            ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool", json_types)
        }
        (Type::Any, "v1.JSONSchemaPropsOrStringArray") => (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
            json_types,
        ),
        _ => return None,
    })
}

fn structure(schema: &'static Struct, describe: Describe<'_>) -> Value {
    let mut body = json!({"type": "object"});
    let properties: Map<String, Value> =
        schema.fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    if !properties.is_empty() {
        body["properties"] = Value::Object(properties);
    }
    let required: Vec<&str> = schema.fields.iter().filter(|f| f.required).map(|f| f.name).collect();
    if !required.is_empty() {
        body["required"] = json!(required);
    }
    if schema.atomic {
        body["x-kubernetes-map-type"] = json!("atomic");
    }
    let gvks: Vec<Value> = kinds()
        .iter()
        .filter(|k| k.schema.name == schema.name)
        .map(|k| json!({"group": k.group, "version": k.version, "kind": k.kind}))
        .collect();
    if !gvks.is_empty() {
        body["x-kubernetes-group-version-kind"] = Value::Array(gvks);
    }
    described(schema.name, body, describe)
}

/// A list whose kind and version have descriptions, which are the same for all lists.
const MODEL: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList";

/// Returns the descriptions of a list kind; `None` for other structs.
fn list_words(schema: &'static Struct, describe: Describe<'_>) -> Option<Value> {
    let of = |name: &str| schema.fields.iter().find(|field| field.name == name);
    let kind = schema.name.rsplit('.').next().filter(|kind| kind.ends_with("List"))?;
    let (Some(items), Some(_)) = (of("items"), of("metadata")) else { return None };
    let Type::List(list) = items.ty else { return None };
    let Type::Struct(element) = list.element else { return None };
    let element = element.name.rsplit('.').next().unwrap_or_default();
    let mut descriptions = describe(MODEL).unwrap_or_else(|| json!({}));
    descriptions["description"] = format!("{kind} is a list of {element} objects.").into();
    descriptions["properties"]["metadata"] =
        json!({"description": "The version of the list, and how the next page of it is asked for."});
    descriptions["properties"]["items"] = json!({"description": format!("The {element} objects.")});
    Some(descriptions)
}

/// Adds the descriptions of `describe` to the schema.
fn described(name: &str, mut body: Value, describe: Describe<'_>) -> Value {
    let Some(texts) = describe(name) else { return body };
    if let Some(text) = texts.get("description") {
        body["description"] = text.clone();
    }
    if let Some(properties) = body.get_mut("properties").and_then(Value::as_object_mut) {
        for (field, property) in properties {
            if let Some(text) = texts.pointer(&format!("/properties/{}/description", pointer_part(field))) {
                property["description"] = text.clone();
            }
        }
    }
    body
}

/// Escapes a name for use in a JSON pointer.
fn pointer_part(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn property(field: &'static Field) -> Value {
    let mut body = type_schema(field.ty, field.go_name, true);
    if let Some(default) = field.default.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        body["default"] = default;
    }
    if !field.enumeration.is_empty() {
        let values = json!(field.enumeration);
        match body.get_mut("items") {
            Some(items) => items["enum"] = values,
            None => body["enum"] = values,
        }
    }
    if field.granular {
        body["x-kubernetes-map-type"] = json!("granular");
    }
    if !field.patch_strategy.is_empty() {
        body["x-kubernetes-patch-strategy"] = json!(field.patch_strategy);
    }
    if !field.patch_merge_key.is_empty() {
        body["x-kubernetes-patch-merge-key"] = json!(field.patch_merge_key);
    }
    body
}

/// Returns the schema of a type. A reference in a property is wrapped in `allOf`, so that it may have a description.
fn type_schema(ty: Type, go: &'static str, is_property: bool) -> Value {
    let reference = |name: &str| {
        let reference = json!({"$ref": format!("#/components/schemas/{name}")});
        if is_property { json!({ "allOf": [reference] }) } else { reference }
    };
    match ty {
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Float64 => json!({"type": "number", "format": "double"}),
        Type::String => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Struct(schema) => reference(schema.name),
        Type::List(list) => {
            let mut body =
                json!({"type": "array", "items": type_schema(list.element, go_element(go), false)});
            if is_property {
                list_kind(list.kind, &mut body);
            }
            body
        }
        Type::Map(map) => {
            let values = type_schema(map.value, go_element(go), false);
            let mut body = json!({"type": "object", "additionalProperties": values});
            if map.atomic {
                body["x-kubernetes-map-type"] = json!("atomic");
            }
            body
        }
        _ => leaf(ty, go).map_or_else(|| json!({}), |(name, _)| reference(name)),
    }
}

fn list_kind(kind: ListKind, body: &mut Value) {
    let name = match kind {
        ListKind::Atomic => "atomic",
        ListKind::Set => "set",
        ListKind::Map(keys) => {
            body["x-kubernetes-list-map-keys"] = json!(keys);
            "map"
        }
    };
    body["x-kubernetes-list-type"] = json!(name);
}
