//! The service proxy of one node: converts services and endpoint slices to nf_tables rules, with minimal
//! changes.

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
