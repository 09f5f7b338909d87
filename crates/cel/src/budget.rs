//! Cost limits of evaluations: upstream's cost units, and a limit on memory and time that these do not cover.

use crate::error::EvalError;

/// The cost limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// The cost limit of all evaluations for one custom resource or one policy binding.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// The cost limit of all match conditions of one webhook or policy.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// The limit of the estimated cost of one rule of a CRD.
pub const STATIC_RULE_LIMIT: u64 = 10_000_000;
/// The limit of the estimated cost of all rules of a CRD.
pub const STATIC_CRD_LIMIT: u64 = 100_000_000;
/// The longest message that a message expression may return, in bytes.
pub const MESSAGE_LIMIT: usize = 5 * 1024;

/// The number of elements that one evaluation may copy or compare beyond what its cost covers.
const WORK_LIMIT: u64 = 20_000_000;
/// The number of steps between two checks of the interruption.
const CHECK_FREQUENCY: u32 = 100;

/// The remaining cost of evaluations.
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

    /// Sets the limit of each evaluation.
    pub fn per_call(self, per_call: u64) -> Self {
        Self { per_call, ..self }
    }

    /// Stops evaluations soon after this returns true.
    pub fn interruptible(self, interrupted: &'i dyn Fn() -> bool) -> Self {
        Self { interrupted: Some(interrupted), ..self }
    }

    /// Returns the remaining budget; below zero after an evaluation has exceeded it.
    pub fn remaining(&self) -> i64 {
        self.remaining
    }

    pub fn is_exhausted(&self) -> bool {
        self.remaining < 0
    }

    /// Returns the total cost of all evaluations.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Returns the cost of the last evaluation.
    pub fn last_cost(&self) -> u64 {
        self.call
    }

    pub(crate) fn begin(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.call), std::mem::take(&mut self.work))
    }

    /// Charges the evaluation that ends; an outer evaluation continues with its own counters.
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

    /// Counts work that has no cost upstream.
    pub(crate) fn work(&mut self, elements: usize) -> Result<(), EvalError> {
        self.work = self.work.saturating_add(elements as u64);
        if self.work > WORK_LIMIT { Err(EvalError::CostLimitExceeded) } else { Ok(()) }
    }

    /// Counts one iteration of a loop, and checks for an interruption.
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
