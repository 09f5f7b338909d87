//! The service proxy of one node: services and endpoint slices become nf_tables rules, by the smallest change.

mod base;
mod config;
mod conntrack_limits;
mod endpoints;
mod metrics;
mod plan;
mod run;
mod service;
mod sync;

pub use config::ProxyConfig;
pub use metrics::ProxyMetrics;
pub use run::run;
pub use service::{ServiceRules, SetName, service_rules};
pub use sync::{ProxyError, ServiceProxy, SyncReport};

#[cfg(test)]
mod tests;
