//! FlowSchema: assigns requests to priority levels.

use k8s_openapi::api::flowcontrol::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::{mandatory, rules, validate_conditions};
use crate::defaults::{blank, child};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::FlowSchema::RESOURCE, "FlowSchemaList", "flowschema", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("PriorityLevel", "string", "The priority level for matching requests."),
    Column::new(
        "MatchingPrecedence",
        "string",
        "The matching precedence: schemas with lower values are tried first.",
    ),
    Column::new("DistinguisherMethod", "string", "How flows of one schema are distinguished."),
    AGE,
    Column::new("MissingPL", "string", "Whether the priority level is missing."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::FlowSchema>().unwrap_or_default();
    let spec = &o.spec;
    let conditions = o.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let dangling = conditions.filter(|c| c.type_ == "Dangling").find_map(|c| c.status.clone());
    vec![
        Value::from(object.name()),
        Value::from(spec.priority_level_configuration.name.as_str()),
        Value::from(spec.matching_precedence.unwrap_or(0)),
        table::or_none(spec.distinguisher_method.as_ref().map_or("", |m| m.type_.as_str())),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(dangling.as_deref().unwrap_or("?")),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        blank(spec, "matchingPrecedence", 1000);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        super::prepare_for_update(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::FlowSchema>().map(|o| validate_own(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        let Ok(new) = new.typed::<api::FlowSchema>() else { return ErrorList::new() };
        match subresource {
            Some("status") => {
                let mut errors = ErrorList::new();
                validate_status(&mut errors, &new);
                errors
            }
            _ => validate_own(&new),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
const MOST_PRECEDENCE: i32 = 10_000;

fn validate_own(schema: &api::FlowSchema) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = schema.metadata.name.as_deref().unwrap_or("");
    let (path, spec) = (Path::new("spec"), &schema.spec);
    precedence(&mut errors, &path.child("matchingPrecedence"), name, spec.matching_precedence.unwrap_or(0));
    if let Some(method) = spec.distinguisher_method.as_ref().filter(|m| !METHODS.contains(&m.type_.as_str()))
    {
        // The message shows upstream's internal Go type.
        let text = format!(r#"{{"Type":{}}}"#, Value::from(method.type_.as_str()));
        let path = path.child("distinguisherMethod").child("type");
        errors.push(validate::not_supported_text(&path, &text, &METHODS));
    }
    let level = spec.priority_level_configuration.name.as_str();
    let at = path.child("priorityLevelConfiguration").child("name");
    if level.is_empty() {
        errors.push(Error::required(&at, "must reference a priority level"));
    } else {
        validate::dns_subdomain(&mut errors, &at, level);
    }
    for (i, rule) in spec.rules.iter().flatten().enumerate() {
        rules::validate(&mut errors, &path.child("rules").index(i), rule);
    }
    if let Some(fixed) = mandatory::flow_schema(name)
        && !prepare::same(Some(&validate::shown(spec)), Some(&fixed))
    {
        let problem = format!("spec of '{name}' must equal the fixed value");
        errors.push(Error::invalid(&path, validate::shown(spec), problem));
    }
    validate_status(&mut errors, schema);
    errors
}

fn precedence(errors: &mut ErrorList, path: &Path, name: &str, value: i32) {
    if value <= 0 {
        errors.push(Error::invalid(path, value, "must be a positive value"));
    }
    if value > MOST_PRECEDENCE {
        errors.push(Error::invalid(path, value, format!("must not be greater than {MOST_PRECEDENCE}")));
    }
    if value == 1 && name != "exempt" {
        let problem = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(Error::invalid(path, value, problem));
    }
}

fn validate_status(errors: &mut ErrorList, schema: &api::FlowSchema) {
    let conditions = schema.status.iter().flat_map(|s| s.conditions.iter().flatten());
    validate_conditions(errors, conditions.map(|c| c.type_.as_str()));
}
