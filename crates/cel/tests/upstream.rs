//! Compares expressions with upstream's implementation: types, values, costs, estimates, errors.
//!
//! `upstream/expressions.jsonl` has one expression per line. Its facts were printed by upstream's own 1.37
//! environment, with the schema and the object of the line.

use std::sync::Arc;

use knarr_cel::{Activation, Budget, Declarations, Type, Value, checked, schema};
use serde_json::Value as Json;

const SCHEMA: &str = include_str!("upstream/schema.json");
const OBJECT: &str = include_str!("upstream/object.json");
const EXPRESSIONS: &str = include_str!("upstream/expressions.jsonl");

/// Facts that differ on purpose, with the reason.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("self.tags[10] == 'x' || true", "cost", "what failed is not counted in full"),
    (
        "self.ports.exists(p, p.port / 0 == 1 || p.name == 'http')",
        "cost",
        "what failed is not counted in full",
    ),
    ("ip('1.2.3')", "error", "Go says which part of an address is wrong"),
    ("{[1]: 1}", "program", "keys are what can be compared in order"),
];

struct Case<'t> {
    line: &'t Json,
    wrong: Vec<String>,
}

impl Case<'_> {
    fn text(&self, field: &str) -> &str {
        self.line[field].as_str().unwrap_or("")
    }

    fn compare(&mut self, field: &str, found: &str) {
        let wanted = match &self.line[field] {
            Json::String(s) => s.clone(),
            Json::Null => String::new(),
            other => other.to_string(),
        };
        let expression = self.text("expr").to_owned();
        let excused = DIFFERENT.iter().any(|(e, f, _)| *e == expression && *f == field);
        if wanted != found && !excused {
            self.wrong.push(format!("{expression}\n  {field}: wanted {wanted}\n  found {found}"));
        }
    }
}

/// Formats simple values as upstream's test tool does.
fn shown(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_) => {
            Some(value.to_string())
        }
        _ => None,
    }
}

fn type_name(t: &Type) -> String {
    match t {
        Type::Timestamp | Type::Duration | Type::Null => t.name().to_owned(),
        other => other.to_string(),
    }
}

fn run(case: &mut Case<'_>, decls: &Declarations, self_: &Value<'_>, object: &Json) {
    let source = case.text("expr").to_owned();
    let expression = match checked(&source, decls, &[]) {
        Err(error) => return case.compare("compile", &error.detail()),
        Ok(expression) => expression,
    };
    case.compare("compile", "");
    case.compare("type", &type_name(expression.output_type()));
    let range = expression.estimate(decls);
    case.compare("min", &range.min.to_string());
    case.compare("max", &range.max.to_string());
    let program = match expression.program() {
        Err(error) => {
            let text = error.to_string();
            return case.compare("program", text.trim_start_matches("program instantiation failed: "));
        }
        Ok(program) => program,
    };
    let activation = Activation::new().with("self", self_.clone()).with("object", schema::dynamic(object));
    let mut budget = Budget::default();
    match program.evaluate(&activation, &mut budget) {
        Err(error) => case.compare("error", &error.to_string()),
        Ok(value) => {
            case.compare("error", "");
            if let Some(shown) = shown(&value) {
                case.compare("value", &shown);
            }
            case.compare("cost", &budget.last_cost().to_string());
        }
    }
}

#[test]
fn expressions_do_what_they_do_upstream() {
    let schema: Json = serde_json::from_str(SCHEMA).unwrap();
    let object: Json = serde_json::from_str(OBJECT).unwrap();
    let decl = Arc::new(schema::declared_type(&schema, false).unwrap().named("selfType"));
    let decls = Declarations::new().stored().declared("self", &decl).variable("object", Type::Dyn);
    let self_ = schema::to_value(&object, &decl).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in EXPRESSIONS.lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        let mut case = Case { line: &line, wrong: Vec::new() };
        run(&mut case, &decls, &self_, &object);
        count += 1;
        wrong.append(&mut case.wrong);
    }
    assert!(count > 200);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
