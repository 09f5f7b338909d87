//! OpenAPI of custom resources: their schemas as definitions, and the operations on them.

use knarr_api::custom::CustomResource;
use knarr_apimachinery::schema::openapi::{self, Describe, Resource, Subresource};
use serde_json::{Map, Value, json};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";
/// A built-in kind; the descriptions of its kind, apiVersion and metadata fields are used for custom resources and
/// their lists.
const OBJECT: &str = "io.k8s.api.core.v1.ConfigMap";
const LIST: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList";

/// Returns whether documents of custom resources use the description of this built-in definition.
pub fn mentions(name: &str) -> bool {
    name.starts_with("io.k8s.apimachinery.pkg.apis.meta.v1.")
        || name.starts_with("io.k8s.api.autoscaling.v1.Scale")
        || name == OBJECT
}

/// Returns the name of a definition, such as `com.example.stable.v1.CronTab`.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').collect();
    parts.reverse();
    format!("{}.{version}.{kind}", parts.join("."))
}

/// Returns the document of a group version that contains only custom resources.
pub fn document(group: &str, version: &str, customs: &[&CustomResource], describe: Describe<'_>) -> Value {
    let subresources: Vec<Vec<Subresource<'_>>> = customs.iter().map(|c| subresources(c)).collect();
    let resources: Vec<Resource<'_>> = customs
        .iter()
        .zip(&subresources)
        .map(|(custom, subresources)| Resource {
            plural: custom.resource.types.plural,
            kind: custom.resource.types.kind,
            namespaced: custom.resource.types.namespaced,
            verbs: custom.resource.verbs,
            subresources,
        })
        .collect();
    let mut document = openapi::document(group, version, &resources, describe);
    let mut schemas = openapi::definitions(&[OBJECT_META, LIST_META, SCALE], describe);
    for custom in customs {
        let types = custom.resource.types;
        let name = definition_name(group, version, types.kind);
        let list_name = definition_name(group, version, custom.resource.list_kind);
        refer(&mut document["paths"], types.kind, &name, &list_name);
        schemas.insert(list_name, list(custom, &name, describe));
        schemas.insert(name, schema(custom, describe));
    }
    leave_out_media_types(&mut document["paths"]);
    if let Some(all) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        all.extend(schemas);
    }
    document
}

/// Removes protobuf and strategic merge patches, which custom resources do not support: clients check this before
/// they send one.
fn leave_out_media_types(part: &mut Value) {
    match part {
        Value::Object(map) => {
            if let Some(Value::Object(content)) = map.get_mut("content") {
                content.remove("application/strategic-merge-patch+json");
                content.retain(|media, _| !media.starts_with("application/vnd.kubernetes.protobuf"));
            }
            map.values_mut().for_each(leave_out_media_types);
        }
        Value::Array(list) => list.iter_mut().for_each(leave_out_media_types),
        _ => {}
    }
}

fn subresources(custom: &CustomResource) -> Vec<Subresource<'_>> {
    let types = custom.resource.types;
    let own = (types.group, types.version, types.kind);
    let sub = |s: &knarr_api::resource::Subresource| Subresource {
        name: s.name,
        kind: s.body.unwrap_or(own),
        verbs: s.verbs,
    };
    custom.resource.subresources.iter().map(sub).collect()
}

/// Makes the operations on the kind refer to its own definitions.
fn refer(paths: &mut Value, kind: &str, name: &str, list_name: &str) {
    for item in paths.as_object_mut().into_iter().flat_map(Map::values_mut) {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            if operation["x-kubernetes-group-version-kind"]["kind"] != kind {
                continue;
            }
            let action = operation["x-kubernetes-action"].as_str().unwrap_or("").to_owned();
            let target = match action.as_str() {
                "list" => list_name,
                "get" | "put" | "post" | "patch" => name,
                _ => continue,
            };
            let reference = Value::from(format!("#/components/schemas/{target}"));
            let mut bodies: Vec<&mut Value> = Vec::new();
            if let Some(operation) = operation.as_object_mut() {
                for (key, part) in operation.iter_mut() {
                    match key.as_str() {
                        "responses" => {
                            bodies.extend(part.as_object_mut().into_iter().flat_map(Map::values_mut))
                        }
                        "requestBody" if action != "patch" => bodies.push(part),
                        _ => {}
                    }
                }
            }
            for body in bodies {
                let content = body.get_mut("content").and_then(Value::as_object_mut);
                for media in content.into_iter().flat_map(Map::values_mut) {
                    media["schema"] = json!({ "$ref": reference });
                }
            }
        }
    }
}

fn gvk(custom: &CustomResource, kind: &str) -> Value {
    let types = custom.resource.types;
    json!([{"group": types.group, "kind": kind, "version": types.version}])
}

/// Adds the fields that every object has, with the descriptions of `model`.
fn type_meta(properties: &mut Map<String, Value>, model: &str, meta: &str, describe: Describe<'_>) {
    let model = describe(model).unwrap_or_default();
    let described = |name: &str, mut property: Value| {
        if let Some(text) = model.pointer(&format!("/properties/{name}/description")) {
            property["description"] = text.clone();
        }
        property
    };
    let reference = json!({"$ref": format!("#/components/schemas/{meta}")});
    for (name, property) in [
        ("apiVersion", json!({"type": "string"})),
        ("kind", json!({"type": "string"})),
        ("metadata", json!({"allOf": [reference]})),
    ] {
        properties.insert(name.into(), described(name, property));
    }
}

/// Returns the definition of the objects.
fn schema(custom: &CustomResource, describe: Describe<'_>) -> Value {
    let version = custom.definition.version(custom.resource.types.version);
    let own = version.and_then(|v| v.schema_json.clone()).filter(|_| !custom.preserve_unknown_fields);
    let mut schema = own.unwrap_or_else(|| json!({"type": "object"}));
    if custom.preserve_unknown_fields {
        schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    }
    embed(&mut schema, describe);
    if let Some(map) = schema.as_object_mut() {
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            type_meta(properties, OBJECT, OBJECT_META, describe);
        }
        map.insert("x-kubernetes-group-version-kind".into(), gvk(custom, custom.resource.types.kind));
    }
    schema
}

/// Adds metadata, and required apiVersion and kind, to resources embedded in the schema.
fn embed(schema: &mut Value, describe: Describe<'_>) {
    let Some(map) = schema.as_object_mut() else { return };
    let below = map.get_mut("properties").and_then(Value::as_object_mut);
    below.into_iter().flat_map(Map::values_mut).for_each(|s| embed(s, describe));
    for name in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(name) {
            embed(below, describe);
        }
    }
    if map.get("x-kubernetes-embedded-resource") != Some(&Value::Bool(true)) {
        return;
    }
    if let Some(properties) = map.entry("properties").or_insert_with(|| json!({})).as_object_mut() {
        type_meta(properties, OBJECT, OBJECT_META, describe);
    }
    if let Some(required) = map.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|r| r == name) {
                required.push(name.into());
            }
        }
    }
}

fn list(custom: &CustomResource, name: &str, describe: Describe<'_>) -> Value {
    let (kind, list_kind) = (custom.resource.types.kind, custom.resource.list_kind);
    let mut properties = Map::new();
    type_meta(&mut properties, LIST, LIST_META, describe);
    properties.insert(
        "items".into(),
        json!({"type": "array", "description": format!("The {kind} objects."),
            "items": {"$ref": format!("#/components/schemas/{name}")}}),
    );
    json!({
        "type": "object", "description": format!("{list_kind} is a list of {kind}"), "required": ["items"],
        "properties": properties, "x-kubernetes-group-version-kind": gvk(custom, list_kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::apiextensions::definition::Definition;
    use std::sync::Arc;

    #[test]
    fn schemas_are_published_with_what_goes_without_saying() {
        let definition = Arc::new(Definition::parse(&json!({
            "spec": {"group": "stable.example.com", "scope": "Namespaced", "versions": [{"name": "v1", "served": true,
                "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object",
                    "description": "A cron tab", "properties": {"spec": {"type": "object", "properties": {
                        "template": {"type": "object", "x-kubernetes-embedded-resource": true}}}}}}}]},
            "status": {"acceptedNames": {"plural": "crontabs", "kind": "CronTab", "listKind": "CronTabList"}},
        })));
        let custom = CustomResource::new(&definition, &definition.versions[0]).unwrap();
        let document = document("stable.example.com", "v1", &[&custom], &|name| {
            (name == OBJECT).then(|| json!({"properties": {"kind": {"description": "The kind."}}}))
        });
        let schemas = &document["components"]["schemas"];
        let own = &schemas["com.example.stable.v1.CronTab"];
        assert_eq!(own["description"], "A cron tab");
        assert_eq!(own["x-kubernetes-group-version-kind"][0]["kind"], "CronTab");
        let template = &own["properties"]["spec"]["properties"]["template"];
        assert!(template["properties"]["metadata"].is_object());
        assert_eq!(template["required"], json!(["kind", "apiVersion"]));
        assert_eq!(own["properties"]["kind"], json!({"type": "string", "description": "The kind."}));
        assert!(schemas[OBJECT_META]["properties"]["labels"].is_object());
        assert_eq!(
            schemas["com.example.stable.v1.CronTabList"]["properties"]["items"]["items"]["$ref"],
            "#/components/schemas/com.example.stable.v1.CronTab"
        );
        let object = &document["paths"]["/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}"];
        let reference = "#/components/schemas/com.example.stable.v1.CronTab";
        assert_eq!(
            object["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
            reference
        );
        assert!(object["patch"]["parameters"].to_string().contains("fieldValidation"));
        let patches = object["patch"]["requestBody"]["content"].as_object().unwrap();
        let patches: Vec<&str> = patches.keys().map(String::as_str).collect();
        let known =
            ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
        assert_eq!(patches, known, "no strategic merge patches");
        assert!(!object.to_string().contains("protobuf"));
    }
}
