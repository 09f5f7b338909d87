//! The scheduler: watches unbound pods, filters and scores nodes with plugins, and binds through the API.

mod binding;
pub mod cache;
mod cluster_events;
pub mod config;
pub mod diagnosis;
pub mod explain;
pub mod framework;
mod handlers;
mod intern;
pub mod plugins;
pub mod queue;
pub mod schedule_one;
mod scheduler;
pub mod snapshot;
pub mod trial;
pub mod waiting;
pub mod what_if;
pub mod work;

pub use scheduler::{Options, Scheduler};
