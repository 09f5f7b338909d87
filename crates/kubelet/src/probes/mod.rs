//! Probes: who is alive, ready, started.

mod results;

pub use results::{ProbeResult, ProbeResults, Results};
