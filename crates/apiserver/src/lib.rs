//! The API server: the request pipeline, discovery, aggregation, flow control, auditing and proxying, on top of the
//! registry.
//!
//! [`ApiServer::new`] loads the watch cache and writes the bootstrap objects, [`ApiServer::serve`] answers HTTPS,
//! [`ApiServer::transport`] returns an in-process transport for a component of the same process.
mod aggregator;
mod audit;
mod bootstrap;
mod cluster_ips;
mod config;
mod discovery;
mod flowcontrol;
mod handlers;
mod health;
mod in_process;
mod listener;
mod local_api;
mod pipeline;
mod proxy;
mod resource_metrics;
mod server;
mod state;
pub mod steps;
mod tls;

pub use audit::options::{
    Audit, Batch as AuditBatch, Format as AuditFormat, LogOptions as AuditLog, Throttle as AuditThrottle,
    Truncate as AuditTruncate, WebhookOptions as AuditWebhook,
};
pub use config::{Config, SYSTEM_VERSION, Version};
pub use knarr_admission::AdmissionConfig;
pub use knarr_admission::Exemptions;
pub use knarr_admission::TolerationSeconds;
pub use knarr_admission::{EventLimit, LimitType};
pub use knarr_api::features::Features;
pub use knarr_auth::authn::options::{Anonymous, Authentication, Oidc, RequestHeader, ServiceAccounts};
pub use knarr_auth::authn::signer::TokenSigner;
pub use knarr_auth::authz::options::{Authorization, Mode as AuthorizationMode};
pub use knarr_registry::encryption::Encryption;
pub use knarr_registry::storage_limits::storage_options;
pub use knarr_registry::{StoredObjects, Trouble};
pub use knarr_wire::identity::UserInfo;
pub use knarr_wire::keypair::{ConfigError, Keypair};
pub use knarr_wire::metrics::of_process as process_metrics;
pub use local_api::LocalApi;
pub use server::{ApiServer, StartError};
