//! Costs: what an evaluation did cost, and what one may cost at most.

pub mod actual;
pub mod estimate;
pub mod functions;

/// Of reading a character of a string.
pub const STRING: f64 = 0.1;
/// Of a character of a pattern, for each unit that reading the string costs.
pub const PATTERN: f64 = 0.25;
/// Of one question to the authorizer: two of them fit into the limit of a call.
pub const CHECK: u64 = 350_000;
