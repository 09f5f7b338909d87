//! CEL `matchConditions` of webhooks and policies: which requests they apply to.

use knarr_api::admissionregistration::expressions::{Offers, declarations};
use knarr_cel::budget::MATCH_CONDITIONS_BUDGET;
use knarr_cel::{Budget, Declarations, Type};
use serde_json::Value;

use super::Attributes;
use super::limit_ranger::aggregated;
use super::matching::Invocation;
use super::policy::expression::Expression;
use super::policy::inputs::{self, Inputs};
use super::policy::questions::Questions;
use crate::Context;

/// The compiled conditions of one webhook or policy. Compile once, when the configuration is read.
#[derive(Debug, Default)]
pub struct MatchConditions {
    list: Vec<(String, Expression)>,
}

impl MatchConditions {
    /// Compiles conditions, given as names and expressions, without parameters.
    pub fn compile(conditions: &[(String, String)]) -> Self {
        if conditions.is_empty() {
            return Self::default();
        }
        let offers = Offers { authorizer: true, ..Offers::default() };
        Self::within(conditions, &declarations(offers).stored())
    }

    /// Compiles conditions with further declarations.
    pub fn within(conditions: &[(String, String)], decls: &Declarations) -> Self {
        let one =
            |(name, text): &(String, String)| (name.clone(), Expression::new(text, decls, &[Type::Bool]));
        Self { list: conditions.iter().map(one).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether all conditions hold. If one is false, the result is false, whatever the errors of the others.
    /// `Err` if none is false and one could not be evaluated: then the failure policy decides (`Ignore`: the webhook
    /// is not called).
    pub fn hold(&self, inputs: &Inputs<'_>) -> Result<bool, String> {
        let mut budget = Budget::new(MATCH_CONDITIONS_BUDGET);
        let mut problems = Vec::new();
        for (_, expression) in &self.list {
            let activation = inputs.activation();
            match expression.evaluate(&activation, &mut budget).map_err(|e| e.to_string())? {
                Ok(value) if value.as_bool() == Some(false) => return Ok(false),
                Ok(_) => {}
                Err(why) => problems.push(why),
            }
        }
        aggregated(problems).map_or(Ok(true), Err)
    }

    /// Evaluates [`MatchConditions::hold`] for a webhook: `object` and `old` are in the form that the webhook would
    /// receive.
    pub async fn hold_for(
        &self,
        attributes: &Attributes<'_>,
        invocation: &Invocation,
        (object, old): (&Value, &Value),
        context: &Context<'_>,
    ) -> Result<bool, String> {
        if self.list.is_empty() {
            return Ok(true);
        }
        let questions = Questions::new();
        let request = inputs::request(attributes, invocation);
        let inputs = Inputs {
            object,
            old,
            request: &request,
            namespace: &Value::Null,
            params: &Value::Null,
            authorizer: Some(questions.clone()),
            about: inputs::about(attributes),
        };
        questions.settle(attributes, context, || self.hold(&inputs)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_cel::library::authz::Check;
    use serde_json::json;

    #[test]
    fn conditions() {
        let object = json!({"metadata": {"name": "a", "labels": {"x": "y"}}});
        let request = json!({"operation": "CREATE", "userInfo": {"username": "u"}});
        let inputs = Inputs {
            object: &object,
            old: &Value::Null,
            request: &request,
            namespace: &Value::Null,
            params: &Value::Null,
            authorizer: Some(Questions::new()),
            about: Check::default(),
        };
        let wrong = "expression 'object.nope == 1' resulted in error: no such key: nope";
        let both = format!("[{wrong}, expression 'object.x == 2' resulted in error: no such key: x]");
        for (expressions, expected) in [
            (&[][..], Ok(true)),
            (&["object.metadata.name == 'a'", "oldObject == null"], Ok(true)),
            (&["request.operation == 'UPDATE'"], Ok(false)),
            (&["object.nope == 1", "false"], Ok(false)),
            (&["object.nope == 1"], Err(wrong)),
            (&["object.nope == 1", "object.x == 2"], Err(both.as_str())),
        ] {
            let named: Vec<_> = expressions.iter().map(|e| (String::new(), (*e).to_owned())).collect();
            let found = MatchConditions::compile(&named).hold(&inputs);
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|e| *e),
                "{expressions:?}"
            );
        }
        let broken = MatchConditions::compile(&[(String::new(), "1 +".to_owned())]);
        assert!(
            broken.hold(&inputs).unwrap_err().starts_with("compilation error: compilation failed: ERROR:")
        );
    }
}
