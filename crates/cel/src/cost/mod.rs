//! Costs: the actual cost of an evaluation, and the estimate of its maximum.

pub mod actual;
pub mod estimate;
pub mod functions;

/// The cost of reading a character of a string.
pub const STRING: f64 = 0.1;
/// The cost of a character of a pattern, per unit of cost of reading the string.
pub const PATTERN: f64 = 0.25;
/// The cost of one authorizer check: two of them fit into the limit of an evaluation.
pub const CHECK: u64 = 350_000;
