//! What evaluations may cost: upstream's units, and a bound on memory and time that those do not see.

use crate::error::EvalError;

/// The limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// The limit of all evaluations for one custom resource, or one policy binding.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// The limit of all match conditions of one webhook or policy.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// The limit of the estimated cost of one rule of a CRD.
pub const STATIC_RULE_LIMIT: u64 = 10_000_000;
/// The limit of the estimated costs of all rules of a CRD.
pub const STATIC_CRD_LIMIT: u64 = 100_000_000;
/// Bytes of a message that an expression made.
pub const MESSAGE_LIMIT: usize = 5 * 1024;

/// Elements that one evaluation may copy or compare beyond what its cost counts.
const WORK_LIMIT: u64 = 20_000_000;
/// Steps between two looks at the interruption.
const CHECK_FREQUENCY: u32 = 100;

/// Counts the cost of evaluations down.
pub struct Budget<'i> {
    remaining: i64,
    per_call: u64,
    spent: u64,
    call: u64,
    work: u64,
    steps: u32,
    interrupted: Option<&'i dyn Fn() -> bool>,
}

impl Default for Budget<'_> {
    fn default() -> Self {
        Self::new(RUNTIME_BUDGET)
    }
}

impl<'i> Budget<'i> {
    pub fn new(limit: u64) -> Self {
        Self {
            remaining: i64::try_from(limit).unwrap_or(i64::MAX),
            per_call: PER_CALL_LIMIT,
            spent: 0,
            call: 0,
            work: 0,
            steps: 0,
            interrupted: None,
        }
    }

    /// Another limit for each evaluation.
    pub fn per_call(self, per_call: u64) -> Self {
        Self { per_call, ..self }
    }

    /// Ends evaluations soon after this turns true.
    pub fn interruptible(self, interrupted: &'i dyn Fn() -> bool) -> Self {
        Self { interrupted: Some(interrupted), ..self }
    }

    /// What is left; below zero once an evaluation went past it.
    pub fn remaining(&self) -> i64 {
        self.remaining
    }

    pub fn is_exhausted(&self) -> bool {
        self.remaining < 0
    }

    /// The cost of all evaluations.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// The cost of the last evaluation.
    pub fn last_cost(&self) -> u64 {
        self.call
    }

    pub(crate) fn begin(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.call), std::mem::take(&mut self.work))
    }

    /// Takes the cost of the evaluation that ends; the one around it goes on with its own counts.
    pub(crate) fn end(&mut self, outer: Option<(u64, u64)>) {
        self.spent = self.spent.saturating_add(self.call);
        self.remaining = self.remaining.saturating_sub(i64::try_from(self.call).unwrap_or(i64::MAX));
        if let Some((call, work)) = outer {
            self.call = call;
            self.work = work;
        }
    }

    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.call = self.call.saturating_add(cost);
        if self.call > self.per_call { Err(EvalError::CostLimitExceeded) } else { Ok(()) }
    }

    /// Work that has no cost upstream.
    pub(crate) fn work(&mut self, elements: usize) -> Result<(), EvalError> {
        self.work = self.work.saturating_add(elements as u64);
        if self.work > WORK_LIMIT { Err(EvalError::CostLimitExceeded) } else { Ok(()) }
    }

    /// One turn of a loop.
    pub(crate) fn step(&mut self) -> Result<(), EvalError> {
        self.work(1)?;
        self.steps += 1;
        if self.steps >= CHECK_FREQUENCY {
            self.steps = 0;
            if self.interrupted.is_some_and(|f| f()) {
                return Err(EvalError::Interrupted);
            }
        }
        Ok(())
    }
}
