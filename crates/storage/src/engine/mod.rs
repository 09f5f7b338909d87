//! The engine of the embedded store: state in memory, and one committer that decides writes, makes them durable and
//! publishes them.

pub(crate) mod batch;
pub(crate) mod committer;
pub(crate) mod core;
mod health;
mod hub;
pub(crate) mod journal;
pub(crate) mod quota;
mod recovery;
pub(crate) mod scrub;
pub(crate) mod state;
pub(crate) mod thread;
pub(crate) mod watcher;
