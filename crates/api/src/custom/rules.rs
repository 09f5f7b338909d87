//! The rules of `x-kubernetes-validations`: compiled once with their schema, run on an object within one budget.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::structural::{Additional, Correlation, Keyed, Rule, Schema};
use knarr_cel::schema::{self, DeclType};
use knarr_cel::{Activation, Budget, Declarations, EvalError, Program, Type, Value as Cel, checked};
use serde_json::Value;

/// The rules of a schema and of all schemas below it; only parts with rules are kept.
pub struct Rules {
    /// `object`, `array` …, which messages show in place of values.
    ty: String,
    decl: Option<Arc<DeclType>>,
    rules: Vec<Compiled>,
    properties: BTreeMap<String, Rules>,
    additional: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
    atomic: bool,
    list_map_keys: Vec<String>,
}

struct Compiled {
    rule: Rule,
    program: Result<Program, String>,
    message: Option<Program>,
    uses_old: bool,
}

/// Returns the declarations for rules about values of this type.
pub fn declarations(decl: &Arc<DeclType>, optional_old: bool) -> Declarations {
    let declared = Declarations::new().declared("self", decl);
    if optional_old {
        declared.declared_optional("oldSelf", decl)
    } else {
        declared.declared("oldSelf", decl)
    }
}

impl Rules {
    /// Compiles the rules of a schema. `schema` is the parsed form of `json`. Returns `None` if neither the schema nor
    /// any schema below it has rules.
    pub fn compile(schema: &Schema, json: &Value, resource_root: bool) -> Option<Self> {
        if !schema.any(&|s| !s.rules.is_empty()) {
            return None;
        }
        let root = resource_root || schema.embedded_resource;
        let decl = schema::declared_type(json, root).map(|d| Arc::new(d.named("selfType")));
        let below = |schema: Option<&Schema>, name: &str| {
            Self::compile(schema?, json.get(name)?, false).map(Box::new)
        };
        let properties = schema.properties.iter().filter_map(|(name, property)| {
            let json = json.get("properties")?.get(name)?;
            Some((name.clone(), Self::compile(property, json, false)?))
        });
        let additional = match &schema.additional {
            Some(Additional::Schema(additional)) => below(Some(additional), "additionalProperties"),
            _ => None,
        };
        Some(Self {
            ty: schema.ty.clone(),
            rules: schema.rules.iter().map(|rule| compiled(rule, decl.as_ref())).collect(),
            decl,
            properties: properties.collect(),
            additional,
            items: below(schema.items.as_deref(), "items"),
            atomic: schema.map_type.as_deref() == Some("atomic"),
            list_map_keys: match schema.list_type.as_deref() {
                Some("map") => schema.list_map_keys.clone(),
                _ => Vec::new(),
            },
        })
    }

    /// Runs the rules on a value, with its old value if there is one, and returns the errors.
    pub fn check(&self, new: &Value, old: Option<&Value>, schema: &Schema, path: &Path) -> ErrorList {
        let mut run = Run { budget: Budget::default(), errors: ErrorList::new(), over: false };
        let correlation = old.map(|old| Correlation::new(new, old, schema));
        run.node(self, new, old, correlation, None, path);
        run.errors
    }
}

fn compiled(rule: &Rule, decl: Option<&Arc<DeclType>>) -> Compiled {
    let nothing =
        |why: String| Compiled { rule: rule.clone(), program: Err(why), message: None, uses_old: false };
    let Some(decl) = decl else {
        return nothing("failed to convert to declType for CEL validation rules".to_owned());
    };
    // The rules were validated when the definition was stored, so that they may use everything stored rules may
    // use.
    let decls = declarations(decl, rule.optional_old_self == Some(true)).stored();
    let expression = match checked(&rule.rule, &decls, &[Type::Bool]) {
        Ok(expression) => expression,
        Err(error) => return nothing(error.to_string()),
    };
    let message = (!rule.message_expression.is_empty())
        .then(|| knarr_cel::compile(&rule.message_expression, &decls, &[Type::String]).ok())
        .flatten();
    Compiled {
        rule: rule.clone(),
        uses_old: expression.references("oldSelf"),
        program: expression.program().map_err(|e| e.to_string()),
        message,
    }
}

struct Run {
    budget: Budget<'static>,
    errors: ErrorList,
    /// Whether the budget is used up, so that no more rules run.
    over: bool,
}

/// The nearest value that has a correlated old value. Many values below may ask whether it has changed.
struct Before<'a> {
    correlation: Correlation<'a>,
    unchanged: OnceCell<bool>,
}

impl<'a> Before<'a> {
    fn new(correlation: Correlation<'a>) -> Self {
        Self { correlation, unchanged: OnceCell::new() }
    }

    fn is_unchanged(&self) -> bool {
        *self.unchanged.get_or_init(|| self.correlation.is_unchanged())
    }
}

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

impl Run {
    fn node(
        &mut self,
        rules: &Rules,
        new: &Value,
        old: Option<&Value>,
        correlation: Option<Correlation<'_>>,
        above: Option<&Before<'_>>,
        path: &Path,
    ) {
        if self.over || new.is_null() {
            return;
        }
        let old = old.filter(|o| !o.is_null());
        let own = correlation.map(Before::new);
        let before = own.as_ref().or(above);
        let unchanged = || before.is_some_and(Before::is_unchanged);
        self.expressions(rules, new, old, &unchanged, path);
        match new {
            Value::Array(items) => self.items(rules, items, old, correlation, before, path),
            Value::Object(map) => {
                for (name, value) in map {
                    let (below, at) = match (rules.properties.get(name), &rules.additional) {
                        (Some(property), _) => (property, path.child(name)),
                        (None, Some(additional)) => (&**additional, path.key(name)),
                        (None, None) => continue,
                    };
                    let old = old.filter(|_| !rules.atomic).and_then(|o| o.get(name));
                    let next = correlation.and_then(|c| c.key(name));
                    self.node(below, value, old, next, before, &at);
                }
            }
            _ => {}
        }
    }

    fn items(
        &mut self,
        rules: &Rules,
        items: &[Value],
        old: Option<&Value>,
        correlation: Option<Correlation<'_>>,
        before: Option<&Before<'_>>,
        path: &Path,
    ) {
        let Some(below) = rules.items.as_deref() else { return };
        let old = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let old = Keyed::new(old, &rules.list_map_keys);
        let correlated = correlation.map(|c| c.items());
        for (i, item) in items.iter().enumerate() {
            let next = correlated.as_ref().and_then(|items| items.get(i));
            self.node(below, item, old.find(item), next, before, &path.index(i));
        }
    }

    fn expressions(
        &mut self,
        rules: &Rules,
        new: &Value,
        old: Option<&Value>,
        unchanged: &dyn Fn() -> bool,
        path: &Path,
    ) {
        for compiled in &rules.rules {
            if self.over {
                return;
            }
            let ty = rules.ty.as_str();
            let (program, decl) = match (&compiled.program, &rules.decl) {
                (Ok(program), Some(decl)) => (program, decl),
                (Err(why), _) => {
                    self.errors.push(Error::invalid(path, ty, format!("rule compile error: {why}")));
                    continue;
                }
                _ => continue,
            };
            let optional = compiled.rule.optional_old_self == Some(true);
            if compiled.uses_old && old.is_none() && !optional {
                continue;
            }
            let activation = match activation(new, old, decl, optional) {
                Ok(activation) => activation,
                Err(error) => {
                    let why = format!("{error} evaluating rule: {}", shown(&compiled.rule));
                    self.errors.push(Error::invalid(path, ty, why));
                    continue;
                }
            };
            if self.budget.is_exhausted() {
                return self.stop(Error::invalid(path, ty, OUT_OF_BUDGET));
            }
            let result = program.evaluate(&activation, &mut self.budget);
            if self.budget.remaining() < 0 {
                return self.stop(Error::invalid(path, ty, OUT_OF_BUDGET));
            }
            match result.map(|value| value.as_bool()) {
                Ok(Some(true)) => {}
                Ok(_) => self.violated(compiled, ty, new, &activation, unchanged, path),
                Err(error) => self.failed(&error, &compiled.rule, ty, path),
            }
        }
    }

    fn stop(&mut self, error: Error) {
        self.errors.push(error);
        self.over = true;
    }

    fn failed(&mut self, error: &EvalError, rule: &Rule, ty: &str, path: &Path) {
        let rule = shown(rule);
        match error {
            EvalError::NoSuchOverload => {
                let why = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for \
                     rule: {rule}"
                );
                self.errors.push(Error::invalid(path, ty, why));
            }
            error if error.is_fatal() => {
                let why = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
                );
                self.stop(Error::invalid(path, ty, why));
            }
            error => self.errors.push(Error::invalid(path, ty, format!("{error} evaluating rule: {rule}"))),
        }
    }

    fn violated(
        &mut self,
        compiled: &Compiled,
        ty: &str,
        new: &Value,
        activation: &Activation<'_, '_>,
        unchanged: &dyn Fn() -> bool,
        path: &Path,
    ) {
        if !compiled.uses_old && unchanged() {
            return;
        }
        let rule = &compiled.rule;
        let field = rule.field_path.trim();
        let at = if field.is_empty() { path.clone() } else { below(path, field) };
        let message = self.message(compiled, activation);
        if self.over {
            return self.errors.push(Error::invalid(&at, ty, OUT_OF_BUDGET));
        }
        let message = message.unwrap_or_else(|| match rule.message.trim() {
            "" => format!("failed rule: {}", shown(rule)),
            message => message.to_owned(),
        });
        let whole = matches!(ty, "object" | "array");
        let mut error = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => Error::forbidden(&at, message),
            Some("FieldValueRequired") => Error::required(&at, message),
            Some("FieldValueDuplicate") => Error::duplicate(&at, new.clone()),
            _ => Error::invalid(&at, new.clone(), message),
        };
        if whole {
            error.value = None;
        }
        self.errors.push(error);
    }

    /// Evaluates the rule's messageExpression; `None` if it fails or returns an unsuitable message.
    fn message(&mut self, compiled: &Compiled, activation: &Activation<'_, '_>) -> Option<String> {
        let result = compiled.message.as_ref()?.evaluate(activation, &mut self.budget);
        if self.budget.remaining() < 0 {
            self.over = true;
            return None;
        }
        let text = result.ok()?.as_str()?.trim().to_owned();
        let fit = !text.is_empty()
            && text.len() <= knarr_cel::budget::MESSAGE_LIMIT
            && !text.contains(['\n', '\r']);
        fit.then_some(text)
    }
}

/// Returns the variables of a rule. The old value is an optional if the rule asks for that.
fn activation<'a>(
    new: &'a Value,
    old: Option<&'a Value>,
    decl: &'a DeclType,
    optional: bool,
) -> Result<Activation<'a, 'a>, EvalError> {
    let mut activation = Activation::new().with("self", schema::to_value(new, decl)?);
    let before = old.map(|old| schema::to_value(old, decl)).transpose()?;
    match (before, optional) {
        (Some(old), true) => activation = activation.with("oldSelf", Cel::some(old)),
        (None, true) => activation = activation.with("oldSelf", Cel::none()),
        (Some(old), false) => activation = activation.with("oldSelf", old),
        (None, false) => {}
    }
    Ok(activation)
}

/// Returns a rule that failed to run as messages show it.
fn shown(rule: &Rule) -> &str {
    let message = rule.message.trim();
    if message.is_empty() { rule.rule.trim() } else { message }
}

/// Returns the path of a field, given as `.a.b['c']`, below another path.
fn below(path: &Path, field: &str) -> Path {
    let mut at = path.clone();
    let mut rest = field;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix("['") {
            let end = inner.find("']").unwrap_or(inner.len());
            at = at.child(&inner[..end]);
            rest = inner.get(end + 2..).unwrap_or("");
        } else {
            let name = rest.strip_prefix('.').unwrap_or(rest);
            let end = name.find(['.', '[']).unwrap_or(name.len());
            at = at.child(&name[..end]);
            rest = if end == 0 { "" } else { &name[end..] };
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(json: &Value) -> (Schema, Rules) {
        let schema = Schema::parse(json);
        let rules = Rules::compile(&schema, json, true).unwrap();
        (schema, rules)
    }

    fn check(json: &Value, new: &Value, old: Option<&Value>) -> String {
        let (schema, rules) = rules(json);
        rules.check(new, old, &schema, &Path::default()).to_string()
    }

    fn with_rules(spec_rules: Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": spec_rules,
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"},
            "name": {"type": "string", "maxLength": 20},
            "list": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer",
                    "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may only grow"}]}}}},
        }}}})
    }

    #[test]
    fn rules_refuse_in_upstreams_words() {
        let spec = |min: i64, max: i64| json!({"spec": {"min": min, "max": max}});
        for (rule, expected) in [
            (
                json!({"rule": "self.min <= self.max"}),
                "spec: Invalid value: failed rule: self.min <= self.max",
            ),
            (
                json!({"rule": "self.min <= self.max", "message": "min must not be above max"}),
                "spec: Invalid value: min must not be above max",
            ),
            (
                json!({"rule": "self.min <= self.max", "messageExpression": "'min ' + string(self.min)"}),
                "spec: Invalid value: min 3",
            ),
            (
                json!({"rule": "self.min <= self.max", "reason": "FieldValueForbidden", "fieldPath": ".min"}),
                "spec.min: Forbidden: failed rule: self.min <= self.max",
            ),
            (
                json!({"rule": "self.min / 0 == 1"}),
                "spec: Invalid value: \"object\": division by zero evaluating rule: self.min / 0 == 1",
            ),
        ] {
            assert_eq!(check(&with_rules(json!([rule])), &spec(3, 2), None), expected);
        }
        let fine = with_rules(json!([{"rule": "self.min <= self.max"}]));
        assert_eq!(check(&fine, &spec(1, 2), None), "[]");
    }

    #[test]
    fn transitions_see_what_was_before() {
        let json = with_rules(json!([{"rule": "self.name == oldSelf.name", "message": "name is immutable"}]));
        let object = |name: &str, v: i64| json!({"spec": {"name": name, "list": [{"k": "a", "v": v}]}});
        assert_eq!(check(&json, &object("a", 1), None), "[]");
        assert_eq!(
            check(&json, &object("b", 1), Some(&object("a", 2))),
            "[spec: Invalid value: name is immutable, spec.list[0].v: Invalid value: 1: may only grow]"
        );
        let optional = with_rules(json!([{"rule": "oldSelf.hasValue() || self.name == 'first'",
            "optionalOldSelf": true, "message": "begin with first"}]));
        assert_eq!(check(&optional, &object("x", 1), None), "spec: Invalid value: begin with first");
        assert_eq!(check(&optional, &object("x", 1), Some(&object("first", 1))), "[]");
    }

    #[test]
    fn what_was_wrong_before_may_stay() {
        let json = with_rules(json!([{"rule": "self.min <= self.max"}]));
        let wrong = json!({"spec": {"min": 3, "max": 2}});
        assert_eq!(check(&json, &wrong, Some(&wrong)), "[]");
        let worse = json!({"spec": {"min": 4, "max": 2}});
        assert_eq!(
            check(&json, &worse, Some(&wrong)),
            "spec: Invalid value: failed rule: self.min <= self.max"
        );
    }
}
