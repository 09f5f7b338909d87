//! From the text of an expression to a program that can be evaluated.

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

/// How deep lists and maps in the value of an expression may hold each other.
const DEEPEST_RESULT: u16 = 256;

/// An expression that is known to be right.
#[derive(Debug)]
pub struct Expression {
    tree: Expr,
    checked: Checked,
}

/// Parses and checks an expression. Its value must have exactly one of the types
/// wanted, if any are given: `dyn` will not do, as upstream.
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

    /// Whether the expression uses the variable, `oldSelf` for one.
    pub fn references(&self, variable: &str) -> bool {
        references(&self.tree, variable)
    }

    /// What an evaluation may cost, with the limits of the declared types of variables.
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

/// An expression made ready. Evaluations do not change it; share it freely.
#[derive(Debug)]
pub struct Program {
    node: Node,
    output_type: Type,
}

impl Program {
    pub fn output_type(&self) -> &Type {
        &self.output_type
    }

    /// The value for these variables. What the evaluation costs is taken from the budget, also if it fails; one that
    /// goes past the limit of a call, or finds the budget used up, fails with [`EvalError::CostLimitExceeded`].
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

    /// As `evaluate`, from within the evaluation of another expression: a variable computed on first use. The
    /// counts of the outer evaluation are kept apart.
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
