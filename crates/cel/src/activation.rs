//! The values of variables for one evaluation.

use crate::budget::Budget;
use crate::error::EvalError;
use crate::value::Value;

/// The values of variables by name.
#[derive(Default)]
pub struct Activation<'l, 'a> {
    variables: Vec<(&'l str, Value<'a>)>,
    lazy: Option<(&'l str, &'l (dyn LazyFields<'a> + 'l))>,
}

/// An object whose fields are computed when they are first used, such as the `variables` of a policy.
pub trait LazyFields<'a> {
    /// Returns the value of a field; `None` if the field does not exist. The cost is charged to the budget.
    fn field(&self, name: &str, budget: &mut Budget<'_>) -> Option<Result<Value<'a>, EvalError>>;
}

impl<'l, 'a> Activation<'l, 'a> {
    pub fn new() -> Self {
        Self { variables: Vec::new(), lazy: None }
    }

    /// Adds a variable.
    pub fn with(mut self, name: &'l str, value: Value<'a>) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Adds an object whose fields are computed on first use.
    pub fn with_lazy(mut self, name: &'l str, fields: &'l (dyn LazyFields<'a> + 'l)) -> Self {
        self.lazy = Some((name, fields));
        self
    }

    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    pub(crate) fn lazy(&self, name: &str) -> Option<&'l (dyn LazyFields<'a> + 'l)> {
        self.lazy.filter(|(n, _)| *n == name).map(|(_, fields)| fields)
    }
}
