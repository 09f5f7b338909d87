//! `matchConditions` of authorization webhooks: expressions over the request that decide whether the webhook is
//! called.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use knarr_cel::schema::{self, DeclType, ListKind};
use knarr_cel::{Activation, Budget, CompileError, Declarations, Program, Type, compile};
use serde_json::{Value, json};

/// The maximum number of conditions of one webhook.
const MOST: usize = 64;

static REVIEW: LazyLock<Arc<DeclType>> = LazyLock::new(|| Arc::new(review()));

fn review() -> DeclType {
    let text = || DeclType::string(0);
    let list = |of: DeclType| DeclType::list(of, ListKind::Atomic, 0);
    let requirement = || {
        DeclType::object(
            "kubernetes.SelectorRequirement",
            [("key", text()), ("operator", text()), ("values", list(text()))],
        )
    };
    let selector =
        |name: &str| DeclType::object(name, [("rawSelector", text()), ("requirements", list(requirement()))]);
    let resource = DeclType::object(
        "kubernetes.ResourceAttributes",
        [
            ("namespace", text()),
            ("verb", text()),
            ("group", text()),
            ("version", text()),
            ("resource", text()),
            ("subresource", text()),
            ("name", text()),
            ("fieldSelector", selector("kubernetes.FieldSelectorAttributes")),
            ("labelSelector", selector("kubernetes.LabelSelectorAttributes")),
        ],
    );
    let path = DeclType::object("kubernetes.NonResourceAttributes", [("path", text()), ("verb", text())]);
    DeclType::object(
        "kubernetes.SubjectAccessReviewSpec",
        [
            ("resourceAttributes", resource),
            ("nonResourceAttributes", path),
            ("user", text()),
            ("groups", list(text())),
            ("extra", DeclType::map(list(text()), 0)),
            ("uid", text()),
        ],
    )
}

/// The compiled conditions of one webhook.
#[derive(Debug, Default)]
pub struct Conditions(Vec<(String, Program)>);

impl Conditions {
    /// Compiles the expressions. Errors name the path; `path` is the webhook's.
    pub fn compile(expressions: &[String], path: &str) -> Result<Self, String> {
        if expressions.len() > MOST {
            let count = expressions.len();
            return Err(format!("{path}.matchConditions: Too many: {count}: must have at most {MOST} items"));
        }
        let decls = Declarations::new().stored().declared("request", &REVIEW);
        let mut seen = BTreeSet::new();
        let mut ready = Vec::with_capacity(expressions.len());
        for (at, text) in expressions.iter().enumerate() {
            let path = format!("{path}.matchConditions[{at}].expression");
            if text.trim().is_empty() {
                return Err(format!("{path}: Required value"));
            }
            if !seen.insert(text) {
                return Err(format!("{path}: Duplicate value: {text:?}"));
            }
            let program = compile(text, &decls, &[Type::Bool]).map_err(|error| match error {
                CompileError::Instantiation(_) => format!("{path}: Internal error: {error}"),
                _ => format!("{path}: Invalid value: {text:?}: {error}"),
            })?;
            ready.push((text.clone(), program));
        }
        Ok(Self(ready))
    }

    /// Returns whether all conditions hold for the `spec` of a SubjectAccessReview. If one is false, the result is
    /// false, whatever the errors of the others.
    pub fn hold(&self, spec: &Value) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let request = whole(spec);
        let mut problems = Vec::new();
        for (text, program) in &self.0 {
            let activation = Activation::new().with("request", schema::dynamic(&request));
            match program.evaluate(&activation, &mut Budget::default()) {
                Ok(value) if value.as_bool() == Some(true) => {}
                Ok(_) => return Ok(false),
                Err(error) => problems
                    .push(format!("cel evaluation error: expression '{text}' resulted in error: {error}")),
            }
        }
        if problems.is_empty() { Ok(true) } else { Err(problems.join(", ")) }
    }
}

/// Returns the review with all string fields set, also those that are omitted when it is sent.
fn whole(spec: &Value) -> Value {
    let text = |of: &Value, field: &str| Value::from(of[field].as_str().unwrap_or(""));
    let or = |value: &Value, other: Value| if value.is_null() { other } else { value.clone() };
    let mut request = json!({
        "user": text(spec, "user"), "uid": text(spec, "uid"),
        "groups": or(&spec["groups"], json!([])), "extra": or(&spec["extra"], json!({})),
    });
    let attributes = &spec["resourceAttributes"];
    if attributes.is_object() {
        let mut full = attributes.clone();
        for field in ["namespace", "verb", "group", "version", "resource", "subresource", "name"] {
            full[field] = text(attributes, field);
        }
        request["resourceAttributes"] = full;
    }
    if spec["nonResourceAttributes"].is_object() {
        request["nonResourceAttributes"] = spec["nonResourceAttributes"].clone();
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Result<Conditions, String> {
        let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
        Conditions::compile(&texts, "w")
    }

    #[test]
    fn conditions_decide_whether_to_ask() {
        let spec = json!({"user": "ann", "groups": ["dev"], "resourceAttributes": {
            "verb": "get", "resource": "pods", "namespace": "a"}});
        for (texts, expected) in [
            (&["request.user == 'ann'", "has(request.resourceAttributes)"][..], Ok(true)),
            (&["request.resourceAttributes.group == '' && request.groups == ['dev']"], Ok(true)),
            (&["has(request.nonResourceAttributes)"], Ok(false)),
            (&["request.nonResourceAttributes.path == '/'", "request.user == 'bob'"], Ok(false)),
            (
                &["request.nonResourceAttributes.path == '/'"],
                Err(
                    "cel evaluation error: expression 'request.nonResourceAttributes.path == '/'' resulted in \
                     error: no such key: nonResourceAttributes",
                ),
            ),
        ] {
            let found = of(texts).unwrap().hold(&spec);
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|e| *e),
                "{texts:?}"
            );
        }
    }

    #[test]
    fn wrong_conditions_are_refused() {
        for (texts, why) in [
            (&[""][..], "w.matchConditions[0].expression: Required value"),
            (&["true", "true"], "w.matchConditions[1].expression: Duplicate value: \"true\""),
            (&["request.user"], "must evaluate to bool but got string"),
            (&["request.nope"], "compilation failed: ERROR: <input>:1:8: undefined field 'nope'"),
        ] {
            let error = of(texts).err().unwrap();
            assert!(error.contains(why), "{error}");
        }
    }
}
