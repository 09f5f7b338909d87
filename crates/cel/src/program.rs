//! Compilation of an expression's text to a program.

use crate::activation::Activation;
use crate::ast::{Expr, Kind};
use crate::budget::Budget;
use crate::checker::{Checked, check};
use crate::cost::estimate::{self, CostRange};
use crate::declarations::Declarations;
use crate::error::{CompileError, EvalError};
use crate::eval::Evaluator;
use crate::parser::parse;
use crate::plan::{Node, plan};
use crate::stack::{nesting, roomy};
use crate::types::Type;
use crate::validators;
use crate::value::Value;

/// The maximum nesting of lists and maps in the value of an expression.
const DEEPEST_RESULT: u16 = 256;

/// A parsed and checked expression.
#[derive(Debug)]
pub struct Expression {
    tree: Expr,
    checked: Checked,
}

/// Parses and checks an expression. If `wanted` is not empty, the type of its value must be exactly one of these: as
/// upstream, `dyn` is not accepted.
pub fn checked(source: &str, decls: &Declarations, wanted: &[Type]) -> Result<Expression, CompileError> {
    let issues = |e| CompileError::Issues(e);
    let parsed = roomy(nesting(source), || parse(source, decls.features.macros));
    let (mut tree, _) = parsed.ok_or_else(no_room)?.map_err(issues)?;
    let height = usize::from(tree.height);
    let checked = roomy(height, || {
        let checked = check(&mut tree, decls, source)?;
        validators::validate(&tree, &checked, source)?;
        Ok(checked)
    });
    let checked = checked.ok_or_else(no_room)?.map_err(issues)?;
    let found = checked.type_of(&tree);
    let fits = wanted.is_empty() || wanted.contains(found);
    if !fits {
        return Err(CompileError::OutputType { wanted: wanted.to_vec(), found: found.clone() });
    }
    Ok(Expression { tree, checked })
}

fn no_room() -> CompileError {
    CompileError::Instantiation("no memory for a thread".to_owned())
}

/// Parses, checks and plans an expression. See [`checked`] for `wanted`.
pub fn compile(source: &str, decls: &Declarations, wanted: &[Type]) -> Result<Program, CompileError> {
    checked(source, decls, wanted)?.program()
}

impl Expression {
    pub fn output_type(&self) -> &Type {
        self.checked.type_of(&self.tree)
    }

    /// Returns whether the expression uses the variable, such as `oldSelf`.
    pub fn references(&self, variable: &str) -> bool {
        references(&self.tree, variable)
    }

    /// Returns the estimated cost of an evaluation, from the limits in the declared types of variables.
    pub fn estimate(&self, decls: &Declarations) -> CostRange {
        let height = usize::from(self.tree.height);
        let range = roomy(height, || estimate::estimate(&self.tree, &self.checked, decls));
        range.unwrap_or(estimate::UNKNOWN)
    }

    pub fn program(&self) -> Result<Program, CompileError> {
        let node = roomy(usize::from(self.tree.height), || plan(&self.tree, &self.checked));
        let node = node.ok_or_else(no_room)?.map_err(|e| CompileError::Instantiation(e.to_string()))?;
        Ok(Program { node, output_type: self.output_type().clone() })
    }
}

fn references(tree: &Expr, variable: &str) -> bool {
    match &tree.kind {
        Kind::Ident(name) => name.trim_start_matches('.') == variable,
        _ => tree.children().iter().any(|child| references(child, variable)),
    }
}

/// A program, ready for evaluation. Evaluations do not change it, so that it can be shared.
#[derive(Debug)]
pub struct Program {
    node: Node,
    output_type: Type,
}

impl Program {
    pub fn output_type(&self) -> &Type {
        &self.output_type
    }

    /// Evaluates the program with these variables. The cost is charged to the budget even if the evaluation fails. An
    /// evaluation that exceeds the limit of a call or the budget fails with [`EvalError::CostLimitExceeded`].
    pub fn evaluate<'a>(
        &self,
        activation: &Activation<'_, 'a>,
        budget: &mut Budget<'_>,
    ) -> Result<Value<'a>, EvalError> {
        if budget.is_exhausted() {
            return Err(EvalError::CostLimitExceeded);
        }
        budget.begin();
        let result = Evaluator::new(activation, budget).node(&self.node);
        budget.end(None);
        bounded(result?)
    }

    /// Does the same as `evaluate`, within the evaluation of another expression: for a variable that is computed on
    /// first use. The counters of the outer evaluation are kept separately.
    pub fn evaluate_within<'a>(
        &self,
        activation: &Activation<'_, 'a>,
        budget: &mut Budget<'_>,
    ) -> Result<Value<'a>, EvalError> {
        if budget.is_exhausted() {
            return Err(EvalError::CostLimitExceeded);
        }
        let outer = budget.begin();
        let result = Evaluator::new(activation, budget).node(&self.node);
        budget.end(Some(outer));
        bounded(result?)
    }
}

fn bounded(value: Value<'_>) -> Result<Value<'_>, EvalError> {
    if value.depth() > DEEPEST_RESULT {
        return Err(EvalError::new("value nested too deep"));
    }
    Ok(value)
}
