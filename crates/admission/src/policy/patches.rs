//! Applies a mutation to an object: `ApplyConfiguration` merges, `JSONPatch` patches.

use std::sync::Arc;

use knarr_apimachinery::patch::{apply, json_patch};
use knarr_apimachinery::schema::{self, Struct};
use knarr_apimachinery::structural::Schema;
use knarr_cel::{Budget, Object, Type, Value};
use serde_json::{Value as Json, json};

use super::expression::Expression;
use super::inputs::Inputs;
use super::variables::{Evaluated, Variables};
use crate::Context;
use crate::matching::Invocation;
use knarr_registry::served::Served;

/// One mutation of a policy.
pub struct Mutation {
    pub kind: MutationKind,
    pub expression: Expression,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MutationKind {
    ApplyConfiguration,
    JsonPatch,
}

impl MutationKind {
    /// Returns the field that contains the expression.
    pub fn field(self) -> &'static str {
        match self {
            Self::ApplyConfiguration => "applyConfiguration",
            Self::JsonPatch => "jsonPatch",
        }
    }

    /// Returns the required type of the expression.
    pub fn wanted(self) -> Type {
        match self {
            Self::ApplyConfiguration => Type::object("Object"),
            Self::JsonPatch => Type::list(Type::object("JSONPatch")),
        }
    }
}

/// The schemas for merging an apply configuration.
pub struct Schemas {
    built_in: Option<&'static Struct>,
    served: Option<Arc<Served>>,
}

impl Schemas {
    /// Returns the schemas of the kind that the policy receives.
    pub fn of(invocation: &Invocation, context: &Context<'_>) -> Self {
        let built_in = schema::for_kind(&invocation.kind);
        let served = context.registry.table.find(&invocation.group, &invocation.version, &invocation.plural);
        Self { built_in, served }
    }

    fn custom(&self) -> Option<&Schema> {
        self.served.as_ref()?.resource.custom().map(|c| &c.schema)
    }
}

/// Returns the mutated object, or the error that prevented the mutation.
pub fn mutated(
    mutation: &Mutation,
    variables: &Variables,
    inputs: &Inputs<'_>,
    schemas: &Schemas,
) -> Result<Json, String> {
    if let Some(problem) = mutation.expression.problem() {
        return Err(problem.to_owned());
    }
    let variables = Evaluated::new(variables, inputs);
    let activation = inputs.activation().with_lazy("variables", &variables);
    let outcome = mutation.expression.evaluate(&activation, &mut Budget::default());
    let value = outcome.map_err(|e| e.to_string())??;
    match mutation.kind {
        MutationKind::ApplyConfiguration => applied(&value, inputs.object, schemas),
        MutationKind::JsonPatch => patched(&value, inputs.object),
    }
}

fn applied(value: &Value<'_>, object: &Json, schemas: &Schemas) -> Result<Json, String> {
    let Value::Object(made @ Object::Owned { .. }) = value else {
        let t = value.type_of();
        return Err(format!("unsupported return type from ApplyConfiguration expression: {t}"));
    };
    check_names(made)?;
    let mut configuration = value.to_json().map_err(|e| e.to_string())?;
    for field in ["apiVersion", "kind"] {
        configuration[field] = object[field].clone();
    }
    apply::mutate(schemas.built_in, schemas.custom(), object, &configuration)
        .map_err(|why| format!("error applying patch: {why}"))
}

/// Checks that the type name of each nested object matches its path: `Object.spec` at `spec`.
fn check_names(object: &Object<'_>) -> Result<(), String> {
    let Object::Owned { name, .. } = object else { return Ok(()) };
    let mut problems = Vec::new();
    let mut left = MOST_PARTS;
    check_object(object, name, &mut problems, &mut left);
    if problems.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", problems.join("\n"))) }
}

const MOST_PARTS: usize = 100_000;

fn check_object(object: &Object<'_>, path: &str, problems: &mut Vec<String>, left: &mut usize) {
    let Object::Owned { name, fields, .. } = object else { return };
    if **name != *path {
        problems.push(format!(
            "unexpected type name \"{name}\", expected \"{path}\", which matches field name path from root Object type"
        ));
    }
    for (field, value) in fields.iter() {
        check_value(value, &format!("{path}.{field}"), problems, left);
    }
}

fn check_value(value: &Value<'_>, path: &str, problems: &mut Vec<String>, left: &mut usize) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    match value {
        Value::Object(object) => check_object(object, path, problems, left),
        Value::List(list) => {
            for item in list.iter().flatten() {
                check_value(&item, path, problems, left);
            }
        }
        Value::Map(map) => {
            for key in map.keys() {
                if let Some(Ok(item)) = map.get(&key) {
                    check_value(&item, path, problems, left);
                }
            }
        }
        _ => {}
    }
}

fn patched(value: &Value<'_>, object: &Json) -> Result<Json, String> {
    let Value::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut patch = Vec::with_capacity(list.len());
    for item in list.iter() {
        patch.push(operation(&item.map_err(|e| e.to_string())?)?);
    }
    if patch.is_empty() {
        return Ok(object.clone());
    }
    json_patch::apply(object, &Json::Array(patch)).or_else(|error| {
        // A failed test operation means that the patch does not apply to this object.
        let why = error.to_string();
        if why.contains("test") && why.contains("failed") {
            Ok(object.clone())
        } else {
            Err(format!("JSON Patch: {why}"))
        }
    })
}

fn operation(item: &Value<'_>) -> Result<Json, String> {
    let Value::Object(Object::Owned { name, fields, .. }) = item else {
        let t = item.type_of();
        return Err(format!(
            "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {t}"
        ));
    };
    if &**name != "JSONPatch" {
        return Err(format!(
            "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {name}"
        ));
    }
    let text = |field: &str| fields.get(field).and_then(Value::as_str).unwrap_or("");
    let mut operation = json!({"op": text("op"), "path": text("path")});
    if !text("from").is_empty() {
        operation["from"] = text("from").into();
    }
    if let Some(value) = fields.get("value") {
        if let Value::Object(made) = value {
            check_names(made)?;
        }
        operation["value"] = value.to_json().map_err(|e| {
            format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {e}")
        })?;
    }
    Ok(operation)
}
