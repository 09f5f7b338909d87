//! The `variables` of a policy: named expressions, evaluated on first use.

use std::cell::{Cell, RefCell};

use knarr_api::admissionregistration::expressions::Composition;
use knarr_cel::{Budget, Declarations, EvalError, LazyFields, Value};

use super::expression::Expression;
use super::inputs::Inputs;

/// Variables that depend on each other are evaluated recursively up to this depth; deeper chains are evaluated from
/// the first variable on.
const DEEPEST: usize = 16;

/// The compiled variables of a policy, in their order.
#[derive(Debug, Default)]
pub struct Variables {
    list: Vec<(String, Expression)>,
}

impl Variables {
    /// Compiles the variables, each of which can use the preceding ones. Also returns their declarations for the
    /// policy's expressions.
    pub fn compile(list: &[(String, String)], decls: &Declarations) -> (Self, Composition) {
        let mut compiled: Vec<(String, Expression)> = Vec::new();
        let mut composition = Composition::default();
        for (name, text) in list {
            let expression = Expression::new(text, &composition.declare(decls.clone()), &[]);
            composition.add(name, expression.output_type());
            compiled.push((name.clone(), expression));
        }
        (Self { list: compiled }, composition)
    }
}

/// The values of the variables for one request.
pub struct Evaluated<'c, 'i, 'v> {
    variables: &'c Variables,
    inputs: &'i Inputs<'v>,
    known: RefCell<Vec<Option<Result<Value<'v>, EvalError>>>>,
    depth: Cell<usize>,
}

impl<'c, 'i, 'v> Evaluated<'c, 'i, 'v> {
    pub fn new(variables: &'c Variables, inputs: &'i Inputs<'v>) -> Self {
        let known = RefCell::new(vec![None; variables.list.len()]);
        Self { variables, inputs, known, depth: Cell::new(0) }
    }

    fn known(&self, index: usize) -> Option<Result<Value<'v>, EvalError>> {
        self.known.borrow().get(index).cloned().flatten()
    }

    fn compute(&self, index: usize, budget: &mut Budget<'_>) -> Result<Value<'v>, EvalError> {
        if let Some(known) = self.known(index) {
            return known;
        }
        let Some((name, expression)) = self.variables.list.get(index) else {
            return Err(EvalError::no_such_key("variables"));
        };
        let program = expression
            .program()
            .map_err(|why| EvalError::new(format!("composited variable {name:?} fails to compile: {why}")))?;
        self.depth.set(self.depth.get() + 1);
        let activation = self.inputs.activation().with_lazy("variables", self);
        let outcome = program.evaluate_within(&activation, budget);
        self.depth.set(self.depth.get() - 1);
        let outcome = outcome.map_err(|e| match e {
            EvalError::Failed(why) => {
                EvalError::new(format!("composited variable {name:?} fails to evaluate: {why}"))
            }
            other => other,
        });
        if let Some(slot) = self.known.borrow_mut().get_mut(index) {
            *slot = Some(outcome.clone());
        }
        outcome
    }
}

impl<'v> LazyFields<'v> for Evaluated<'_, '_, 'v> {
    fn field(&self, name: &str, budget: &mut Budget<'_>) -> Option<Result<Value<'v>, EvalError>> {
        let index = self.variables.list.iter().position(|(n, _)| n == name)?;
        if self.depth.get() == DEEPEST {
            for earlier in 0..index {
                let _ = self.compute(earlier, budget);
            }
        }
        Some(self.compute(index, budget))
    }
}
