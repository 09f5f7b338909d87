//! What end-to-end tests and development commands run clusters in, and what they need of the machine.

pub mod requirements;
pub mod sandbox;
