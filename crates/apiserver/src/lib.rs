//! The API server: authentication, authorization, admission, generic registry and watch cache over a store.
//!
//! [`ApiServer::new`] loads the watch cache and writes the bootstrap objects, [`ApiServer::serve`] answers HTTPS,
//! [`ApiServer::transport`] gives a component of the same process its own way in.

mod admission;
mod aggregator;

mod audit;
mod authn;
mod authz;
mod bootstrap;
mod cache;
mod cluster_ips;
mod config;
mod custom_resources;
mod dial;
mod discovery;
mod encryption;
mod features;
mod flowcontrol;
mod handlers;
mod health;
mod http;
mod in_process;
mod listener;
mod local_api;
mod metrics;
mod outbound;
mod pipeline;
mod proxy;
mod registry;
mod reload;
mod resource_metrics;
mod server;
mod state;
pub mod steps;

mod stored_objects;
mod table;
mod tls;
mod webhook;

pub use admission::AdmissionConfig;
pub use admission::default_toleration_seconds::TolerationSeconds;
pub use admission::event_rate_limit::{EventLimit, LimitType};
pub use admission::pod_security::Exemptions;
pub use audit::options::{
    Audit, Batch as AuditBatch, Format as AuditFormat, LogOptions as AuditLog, Throttle as AuditThrottle,
    Truncate as AuditTruncate, WebhookOptions as AuditWebhook,
};
pub use authn::UserInfo;
pub use authn::options::{Anonymous, Authentication, Oidc, RequestHeader};
pub use authn::signer::TokenSigner;
pub use authz::options::{Authorization, Mode as AuthorizationMode};
pub use config::{Config, SYSTEM_VERSION, Version};
pub use encryption::Encryption;
pub use features::Features;
pub use http::keypair::{ConfigError, Keypair};
pub use local_api::LocalApi;
pub use metrics::of_process as process_metrics;
pub use registry::storage_limits::storage_options;
pub use server::{ApiServer, StartError};
pub use stored_objects::{StoredObjects, Trouble};
