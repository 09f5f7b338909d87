//! Type checking of a validating policy's expressions against the kinds that it matches: `status.typeChecking`.

use std::collections::BTreeSet;
use std::sync::Arc;

use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::{self, Struct, Type};
use knarr_cel::schema::{DeclType, declared_type};
use knarr_cel::{Declarations, checked};
use serde_json::{Map, Value, json};

use super::expressions::{Composition, Offers, typed};
use crate::resources;

/// The number of kinds of one rule after which no more kinds are checked.
const MOST_KINDS: usize = 10;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Returns the `expressionWarnings` for a policy's `spec`; `definitions` are all CustomResourceDefinitions.
pub fn warnings(spec: &Value, definitions: &[Value]) -> Vec<Value> {
    let kinds: Vec<(GroupVersionKind, Arc<DeclType>)> = kinds(spec, definitions)
        .into_iter()
        .filter_map(|kind| declared(&kind, definitions).map(|decl| (kind, decl)))
        .collect();
    let mut found = Vec::new();
    for (index, validation) in items(&spec["validations"]).enumerate() {
        for field in ["expression", "messageExpression"] {
            let source = validation[field].as_str().unwrap_or("");
            if source.is_empty() && field == "messageExpression" {
                continue;
            }
            let problems: Vec<String> = kinds
                .iter()
                .filter_map(|(kind, decl)| problem(spec, definitions, kind, decl, source))
                .collect();
            if !problems.is_empty() {
                let place = format!("spec.validations[{index}].{field}");
                found.push(json!({"fieldRef": place, "warning": problems.join("\n")}));
            }
        }
    }
    found
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or("")
}

/// Returns the error of an expression for objects of one kind.
fn problem(
    spec: &Value,
    definitions: &[Value],
    kind: &GroupVersionKind,
    decl: &Arc<DeclType>,
    source: &str,
) -> Option<String> {
    let decls = declarations(spec, definitions, decl);
    let error = checked(source, &decls, &[]).err()?;
    Some(format!("{}/{}, Kind={}: {}\n", kind.group, kind.version, kind.kind, error.detail()))
}

/// Returns the declarations for a policy's expressions, its variables included, for objects of one type.
fn declarations(spec: &Value, definitions: &[Value], object: &Arc<DeclType>) -> Declarations {
    let param_kind = &spec["paramKind"];
    let params = param_kind.is_object().then(|| {
        let kind =
            GroupVersionKind::from_api_version(text(param_kind, "apiVersion"), text(param_kind, "kind"));
        declared(&kind, definitions)
    });
    let offers = Offers { params: params.is_some(), authorizer: true, patches: false };
    let decls = typed(offers, Some(object), params.flatten().as_ref()).stored();
    let mut composition = Composition::default();
    for variable in items(&spec["variables"]) {
        let within = composition.declare(decls.clone());
        let compiled = checked(text(variable, "expression"), &within, &[]).ok();
        composition.add(text(variable, "name"), compiled.as_ref().map(|c| c.output_type()));
    }
    composition.declare(decls)
}

/// Returns the kinds that the policy's rules name in full, without wildcards, in their order.
fn kinds(spec: &Value, definitions: &[Value]) -> Vec<GroupVersionKind> {
    let mut found = BTreeSet::new();
    for rule in items(&spec["matchConstraints"]["resourceRules"]) {
        let texts = |field: &str| {
            let mut list: Vec<&str> = items(&rule[field]).filter_map(Value::as_str).collect();
            list.sort_unstable();
            list
        };
        let (groups, versions) = (texts("apiGroups"), texts("apiVersions"));
        if groups.iter().chain(&versions).any(|t| t.contains('*')) {
            continue;
        }
        let mut count = 0;
        for (group, version) in groups.iter().flat_map(|g| versions.iter().map(move |v| (*g, *v))) {
            for plural in texts("resources").into_iter().filter(|r| !r.contains(['*', '/'])) {
                let Some(kind) = kind_of(group, version, plural, definitions) else { continue };
                found.insert((group.to_owned(), version.to_owned(), kind));
                count += 1;
                if count == MOST_KINDS {
                    return listed(found);
                }
            }
        }
    }
    listed(found)
}

fn listed(found: BTreeSet<(String, String, String)>) -> Vec<GroupVersionKind> {
    found.iter().map(|(group, version, kind)| GroupVersionKind::new(group, version, kind)).collect()
}

fn kind_of(group: &str, version: &str, plural: &str, definitions: &[Value]) -> Option<String> {
    let built_in = resources::all().iter().find(|r| {
        let types = &r.types;
        (types.group, types.version, types.plural) == (group, version, plural)
    });
    if let Some(resource) = built_in {
        return Some(resource.types.kind.to_owned());
    }
    let names = |d: &&Value| text(&d["spec"]["names"], "plural") == plural;
    let of_group = |d: &&Value| text(&d["spec"], "group") == group;
    let definition = definitions.iter().filter(of_group).find(names)?;
    let served = |v: &&Value| text(v, "name") == version && v["served"] == true;
    items(&definition["spec"]["versions"]).find(served)?;
    Some(text(&definition["spec"]["names"], "kind").to_owned())
}

/// Returns the type of a kind's objects, if its schema is known.
fn declared(kind: &GroupVersionKind, definitions: &[Value]) -> Option<Arc<DeclType>> {
    let schema = match schema::for_kind(kind) {
        Some(built_in) => structure(built_in, &mut Vec::new()),
        None => custom(kind, definitions)?,
    };
    declared_type(&schema, true).map(|decl| Arc::new(decl.named(&format!("{}Type", kind.kind))))
}

/// Returns the schema of a custom resource, with the fields that all objects have.
fn custom(kind: &GroupVersionKind, definitions: &[Value]) -> Option<Value> {
    let fits = |d: &&Value| {
        text(&d["spec"], "group") == kind.group && text(&d["spec"]["names"], "kind") == kind.kind
    };
    let versions = &definitions.iter().find(fits)?["spec"]["versions"];
    let version = items(versions).find(|v| text(v, "name") == kind.version && v["served"] == true)?;
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    if !schema.is_object() {
        return None;
    }
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = json!({"type": "string"});
    }
    if let Some(metadata) = schema::for_definition(OBJECT_META) {
        schema["properties"]["metadata"] = structure(metadata, &mut Vec::new());
    }
    Some(schema)
}

/// Converts a struct of the API to an OpenAPI schema. `around` are the enclosing structs; a struct that contains
/// itself (a schema of schemas) is left untyped.
fn structure(of: &'static Struct, around: &mut Vec<&'static str>) -> Value {
    if around.contains(&of.name) {
        return json!({"type": "object"});
    }
    around.push(of.name);
    let properties: Map<String, Value> =
        of.fields.iter().map(|f| (f.name.to_owned(), any(f.ty, around))).collect();
    around.pop();
    json!({"type": "object", "properties": properties})
}

fn any(of: Type, around: &mut Vec<&'static str>) -> Value {
    match of {
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 | Type::Int64 => json!({"type": "integer"}),
        Type::Float64 => json!({"type": "number"}),
        Type::String | Type::Quantity | Type::Duration => json!({"type": "string"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::IntOrString => json!({"x-kubernetes-int-or-string": true}),
        Type::Time | Type::MicroTime => json!({"type": "string", "format": "date-time"}),
        Type::Any => json!({"type": "object"}),
        Type::Struct(s) => structure(s, around),
        Type::List(list) => json!({"type": "array", "items": any(list.element, around)}),
        Type::Map(map) => json!({"type": "object", "additionalProperties": any(map.value, around)}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(group: &str, version: &str, resource: &str) -> Value {
        json!({"resourceRules": [{"apiGroups": [group], "apiVersions": [version], "operations": ["*"],
            "resources": [resource]}]})
    }

    #[test]
    fn wrong_fields_are_found() {
        let spec = json!({"matchConstraints": rules("apps", "v1", "deployments"),
        "variables": [{"name": "n", "expression": "object.spec.replicas"}], "validations": [
            {"expression": "variables.n > 1 && object.metadata.namespace != 'x'",
                "messageExpression": "object.spec.nope"},
            {"expression": "object.spec.replicas > 'a'"},
        ]});
        let found = warnings(&spec, &[]);
        let places: Vec<_> = found.iter().map(|w| w["fieldRef"].as_str().unwrap()).collect();
        assert_eq!(places, ["spec.validations[0].messageExpression", "spec.validations[1].expression"]);
        let expected = "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'nope'\n \
                        | object.spec.nope\n | ...........^\n";
        assert_eq!(found[0]["warning"], expected);
    }

    #[test]
    fn custom_kinds_and_wildcards() {
        let definition = json!({"spec": {"group": "example.com", "names": {"plural": "lamps", "kind": "Lamp"},
            "versions": [{"name": "v1", "served": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {"on": {"type": "boolean"}}}}}}}]}});
        let definitions = [definition];
        for (constraints, expression, wrong) in [
            (
                rules("example.com", "v1", "lamps"),
                "object.spec.on && object.metadata.labels.size() > 0",
                false,
            ),
            (rules("example.com", "v1", "lamps"), "object.spec.off", true),
            (rules("example.com", "v2", "lamps"), "object.spec.off", false),
            (rules("example.com", "*", "lamps"), "object.spec.off", false),
            (rules("apps", "v1", "*"), "object.spec.off", false),
        ] {
            let spec = json!({"matchConstraints": constraints, "validations": [{"expression": expression}]});
            assert_eq!(!warnings(&spec, &definitions).is_empty(), wrong, "{spec}");
        }
    }
}
