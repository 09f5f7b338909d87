//! The scheduler: watches unbound pods, filters and scores nodes with plugins, and binds through the API.

mod background;
mod binding;
pub mod cache;
mod cluster_events;
pub mod config;
mod decide;
pub mod diagnosis;
pub mod explain;
mod extended;
mod extended_group;
pub mod extender;
pub mod framework;
mod group_condition;
mod group_trial;
pub mod groups;
mod handlers;
pub mod health;
mod health_watch;
mod intern;
pub mod metrics;
pub mod plugins;
pub mod queue;
mod schedule_group;
pub mod schedule_one;
mod scheduler;
pub mod snapshot;
pub mod trial;
pub mod waiting;
pub mod what_if;

pub use scheduler::{Options, Scheduler};
