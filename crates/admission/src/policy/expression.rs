//! One expression of a policy: compiled once, evaluated for each request.

use knarr_cel::{Activation, Budget, Declarations, Program, Type, Value, compile};

/// A compiled expression, or its compilation error.
#[derive(Debug)]
pub struct Expression {
    pub text: String,
    program: Result<Program, String>,
}

/// The cost budget is exhausted; no further expression can be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("validation failed due to running out of cost budget, no further validation rules will be run")]
pub struct OutOfBudget;

impl Expression {
    pub fn new(text: &str, decls: &Declarations, wanted: &[Type]) -> Self {
        let program = compile(text, decls, wanted).map_err(|e| e.to_string());
        Self { text: text.to_owned(), program }
    }

    pub fn problem(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    pub fn program(&self) -> Result<&Program, &str> {
        self.program.as_ref().map_err(String::as_str)
    }

    /// Returns the type of the result; `None` if the expression does not compile.
    pub fn output_type(&self) -> Option<&Type> {
        self.program.as_ref().ok().map(Program::output_type)
    }

    /// Evaluates the expression; the error has upstream's message.
    pub fn evaluate<'v>(
        &self,
        activation: &Activation<'_, 'v>,
        budget: &mut Budget<'_>,
    ) -> Result<Result<Value<'v>, String>, OutOfBudget> {
        let program = match &self.program {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let outcome = program.evaluate(activation, budget);
        if budget.is_exhausted() {
            return Err(OutOfBudget);
        }
        Ok(outcome.map_err(|e| format!("expression '{}' resulted in error: {e}", self.text)))
    }
}

/// Returns the names and expressions of `matchConditions` or `variables`.
pub fn named(list: &serde_json::Value) -> Vec<(String, String)> {
    let part = |v: &serde_json::Value, field: &str| v[field].as_str().unwrap_or("").to_owned();
    list.as_array().into_iter().flatten().map(|v| (part(v, "name"), part(v, "expression"))).collect()
}
