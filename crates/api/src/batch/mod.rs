//! The `batch` group: work that ends, run once or on a schedule.

pub mod cronjob;
mod indexes;
pub mod job;
pub mod schedule;
mod status;
pub mod timezone;
mod validation;

pub use job::name_warning;
