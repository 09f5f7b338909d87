//! Sandboxes in which end-to-end tests and development commands run clusters, and what these need of the
//! machine.

pub mod requirements;
pub mod sandbox;
