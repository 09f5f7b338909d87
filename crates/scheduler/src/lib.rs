//! The scheduler: watches unbound pods, filters and scores nodes with plugins, and binds through the API.

pub mod cache;
mod cluster_events;
pub mod diagnosis;
pub mod framework;
pub mod plugins;
mod queue;
pub mod schedule_one;
mod scheduler;

pub use scheduler::{Options, Scheduler};
