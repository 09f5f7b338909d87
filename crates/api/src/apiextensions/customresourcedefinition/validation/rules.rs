//! The CEL rules of a schema: each must compile, and the estimated cost of each and of all is limited.

use std::sync::Arc;

use knarr_apimachinery::field::{Error, ErrorList, Path, go_json};
use knarr_apimachinery::structural::{Additional, Rule, Schema};
use knarr_cel::budget::{STATIC_CRD_LIMIT, STATIC_RULE_LIMIT};
use knarr_cel::{CompileError, Declarations, Type, checked, schema};
use serde_json::Value;

use crate::custom::declarations;
use crate::validate::invalid_text;

/// How many of the most expensive rules get an error if the total cost exceeds its limit.
const NAMED: usize = 4;

/// The position of a node in the schema: how often it can occur in an object, and the path that makes old values
/// impossible to correlate.
#[derive(Clone)]
struct Place {
    /// `None` means no limit.
    cardinality: Option<u64>,
    uncorrelatable: Option<Path>,
}

struct Walk {
    errors: ErrorList,
    total: u64,
    dearest: Vec<(Path, u64)>,
    /// The schema was accepted before: single rules may keep exceeding their cost limit.
    unchanged: bool,
}

/// Validates the rules of a schema that is otherwise valid.
pub fn validate(schema: &Schema, json: &Value, unchanged: bool, path: &Path) -> ErrorList {
    let mut walk = Walk { errors: ErrorList::new(), total: 0, dearest: Vec::new(), unchanged };
    walk.node(schema, json, true, path, &Place { cardinality: Some(1), uncorrelatable: None });
    if walk.total > STATIC_CRD_LIMIT {
        for (path, _) in &walk.dearest {
            let why =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            walk.errors.push(Error::forbidden(path, why));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        walk.errors.push(Error::forbidden(path, too_dear(what, walk.total, STATIC_CRD_LIMIT)));
    }
    walk.errors
}

fn too_dear(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Returns the maximum number of elements of a value of this schema; `None` means no limit.
fn max_elements(schema: &Schema) -> Option<u64> {
    let limit = |n: Option<i64>| n.map(|n| u64::try_from(n).unwrap_or(0));
    match schema.ty.as_str() {
        "object" if schema.additional.is_some() => limit(schema.limits.max_properties),
        "array" => limit(schema.limits.max_items),
        _ => Some(1),
    }
}

/// Returns a rule as error messages show it: with all its fields, in the order of the Go type.
fn shown(rule: &Rule) -> String {
    let text = |t: &str| go_json(&Value::from(t).to_string());
    let reason = rule.reason.as_deref().map_or_else(|| "null".to_owned(), text);
    let optional = rule.optional_old_self.map_or_else(|| "null".to_owned(), |o| o.to_string());
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{reason},"FieldPath":{},"OptionalOldSelf":{optional}}}"#,
        text(&rule.rule),
        text(&rule.message),
        text(&rule.message_expression),
        text(&rule.field_path),
    )
}

impl Walk {
    fn node(&mut self, schema: &Schema, json: &Value, root: bool, path: &Path, place: &Place) {
        if !schema.any(&|s| !s.rules.is_empty()) {
            return;
        }
        let cardinality = match (place.cardinality, max_elements(schema)) {
            (Some(outer), Some(own)) => Some(outer.saturating_mul(own)),
            _ => None,
        };
        let inside = |correlatable: bool| Place {
            cardinality,
            uncorrelatable: place.uncorrelatable.clone().or_else(|| (!correlatable).then(|| path.clone())),
        };
        if let (Some(Additional::Schema(additional)), Some(json)) =
            (&schema.additional, json.get("additionalProperties"))
        {
            self.node(additional, json, false, &path.child("additionalProperties"), &inside(true));
        }
        let granular = schema.map_type.as_deref() != Some("atomic");
        for (name, property) in &schema.properties {
            let json = json.get("properties").and_then(|p| p.get(name)).unwrap_or(&Value::Null);
            self.node(property, json, false, &path.child("properties").key(name), &inside(granular));
        }
        if let (Some(items), Some(json)) = (schema.items.as_deref(), json.get("items")) {
            let keyed = schema.list_type.as_deref() == Some("map");
            self.node(items, json, false, &path.child("items"), &inside(keyed));
        }
        self.rules(schema, json, root || schema.embedded_resource, path, place);
    }

    fn rules(&mut self, schema: &Schema, json: &Value, root: bool, path: &Path, place: &Place) {
        if schema.rules.is_empty() {
            return;
        }
        let at = path.child("x-kubernetes-validations");
        let Some(decl) = schema::declared_type(json, root) else {
            let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable \
                       to convert structural schema to CEL declarations";
            return self.errors.push(Error::internal(&at, why));
        };
        let decl = Arc::new(decl.named("selfType"));
        let cardinality = place.cardinality.unwrap_or_else(|| decl.max_cardinality());
        for (i, rule) in schema.rules.iter().enumerate() {
            let decls = declarations(&decl, rule.optional_old_self == Some(true));
            self.rule(rule, &decls, cardinality, &at.index(i), place);
        }
    }

    fn rule(&mut self, rule: &Rule, decls: &Declarations, cardinality: u64, path: &Path, place: &Place) {
        let at = path.child("rule");
        let expression = match checked(&rule.rule, decls, &[Type::Bool]) {
            Ok(expression) => expression,
            Err(error) => {
                let why = match error {
                    CompileError::OutputType { .. } => "cel expression must evaluate to a bool".to_owned(),
                    other => other.to_string(),
                };
                return self.errors.push(invalid_text(&at, &shown(rule), &why));
            }
        };
        let cost = expression.estimate(decls).max.saturating_mul(cardinality);
        self.observe(&at, cost, "estimated rule cost");
        if let Err(error) = expression.program() {
            return self.errors.push(invalid_text(&at, &shown(rule), &error.to_string()));
        }
        self.message(rule, decls, &path.child("messageExpression"));
        if expression.references("oldSelf") {
            if let Some(within) = &place.uncorrelatable {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                );
                self.errors.push(Error::invalid(&at, rule.rule.as_str(), why));
            }
        } else if let Some(optional) = rule.optional_old_self {
            let at = path.child("optionalOldSelf");
            let why = "may not be set if oldSelf is not used in rule";
            self.errors.push(Error::invalid(&at, optional, why));
        }
    }

    fn message(&mut self, rule: &Rule, decls: &Declarations, path: &Path) {
        if rule.message_expression.is_empty() {
            return;
        }
        match checked(&rule.message_expression, decls, &[Type::String]) {
            Ok(expression) => {
                self.observe(path, expression.estimate(decls).max, "estimated messageExpression cost");
            }
            Err(error) => {
                let why = match error {
                    CompileError::OutputType { .. } => {
                        "messageExpression must evaluate to a string".to_owned()
                    }
                    other => format!("messageExpression {other}"),
                };
                self.errors.push(invalid_text(path, &shown(rule), &why));
            }
        }
    }

    fn observe(&mut self, path: &Path, cost: u64, what: &str) {
        if cost > STATIC_RULE_LIMIT && !self.unchanged {
            self.errors.push(Error::forbidden(path, too_dear(what, cost, STATIC_RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        self.dearest.push((path.clone(), cost));
        self.dearest.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        self.dearest.truncate(NAMED);
    }
}
