//! `matchConditions` of webhooks and policies: expressions that say which requests they want to see.

use knarr_cel::budget::MATCH_CONDITIONS_BUDGET;
use knarr_cel::{Activation, Budget, Declarations, Program, Type, Value as Cel, compile, schema};
use serde_json::Value;

use super::limit_ranger::aggregated;

/// One condition, compiled.
struct Condition {
    expression: String,
    program: Result<Program, String>,
}

/// All conditions of one webhook or policy.
pub struct Conditions(Vec<Condition>);

/// What the expressions may look at.
pub struct Variables<'v> {
    pub object: &'v Value,
    pub old: &'v Value,
    /// As an AdmissionRequest, without the objects.
    pub request: &'v Value,
    /// `authorizer` and `authorizer.requestResource`, where somebody can be asked.
    pub authorizer: Option<(Cel<'v>, Cel<'v>)>,
}

/// The variables of conditions.
pub fn declarations() -> Declarations {
    Declarations::new()
        .variable("object", Type::Dyn)
        .variable("oldObject", Type::Dyn)
        .variable("request", Type::Dyn)
        .variable("authorizer", Type::Opaque("kubernetes.authorization.Authorizer".into()))
        .variable("authorizer.requestResource", Type::Opaque("kubernetes.authorization.ResourceCheck".into()))
}

impl Conditions {
    pub fn new(expressions: impl IntoIterator<Item = String>) -> Self {
        let decls = declarations();
        let condition = |expression: String| Condition {
            program: compile(&expression, &decls, &[Type::Bool]).map_err(|e| e.to_string()),
            expression,
        };
        Self(expressions.into_iter().map(condition).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold. One that does not decides, whatever becomes of the others; otherwise one that cannot be
    /// evaluated is an error, or, where failures are ignored, does not hold.
    pub fn hold(&self, variables: &Variables<'_>, ignores_failures: bool) -> Result<bool, String> {
        let mut budget = Budget::new(MATCH_CONDITIONS_BUDGET);
        let mut errors = Vec::new();
        for condition in &self.0 {
            let wrong =
                |why: String| format!("expression '{}' resulted in error: {why}", condition.expression);
            let program = match &condition.program {
                Ok(program) => program,
                Err(why) => {
                    errors.push(wrong(why.clone()));
                    continue;
                }
            };
            let mut activation = Activation::new()
                .with("object", schema::dynamic(variables.object))
                .with("oldObject", schema::dynamic(variables.old))
                .with("request", schema::dynamic(variables.request));
            if let Some((authorizer, check)) = &variables.authorizer {
                activation = activation
                    .with("authorizer", authorizer.clone())
                    .with("authorizer.requestResource", check.clone());
            }
            match program.evaluate(&activation, &mut budget) {
                Ok(value) if value.as_bool() == Some(true) => {}
                Ok(_) => return Ok(false),
                Err(error) => errors.push(wrong(error.to_string())),
            }
        }
        match aggregated(errors) {
            None => Ok(true),
            Some(_) if ignores_failures => Ok(false),
            Some(why) => Err(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions() {
        let object = json!({"metadata": {"name": "a", "labels": {"x": "y"}}});
        let request = json!({"operation": "CREATE", "userInfo": {"username": "u"}});
        let variables = Variables { object: &object, old: &Value::Null, request: &request, authorizer: None };
        for (expressions, ignores, expected) in [
            (&[][..], false, Ok(true)),
            (&["object.metadata.name == 'a'", "oldObject == null"], false, Ok(true)),
            (&["request.operation == 'UPDATE'"], false, Ok(false)),
            (&["object.nope == 1", "false"], false, Ok(false)),
            (&["object.nope == 1"], true, Ok(false)),
            (
                &["object.nope == 1"],
                false,
                Err("expression 'object.nope == 1' resulted in error: no such key: nope"),
            ),
        ] {
            let conditions = Conditions::new(expressions.iter().map(|e| (*e).to_owned()));
            let found = conditions.hold(&variables, ignores);
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|e| *e),
                "{expressions:?}"
            );
        }
        assert!(Conditions::new(["1 +".to_owned()]).hold(&variables, false).is_err());
        assert!(
            Conditions::new(["authorizer.group('').resource('pods').check('get').allowed()".to_owned()])
                .hold(&variables, false)
                .is_err()
        );
    }
}
