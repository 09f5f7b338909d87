//! The API server: authentication, authorization, admission, generic registry and watch cache over a store.
//!
//! [`ApiServer::new`] loads the watch cache and writes the bootstrap objects, [`ApiServer::serve`] answers HTTPS,
//! [`ApiServer::transport`] gives a component of the same process its own way in.

mod admission;
mod aggregator;
mod allocators;
mod authn;
mod authz;
mod bootstrap;
mod cache;
mod config;
mod discovery;
mod http;
mod in_process;
mod metrics;
mod pipeline;
mod proxy;
mod registry;
mod server;
mod table;
mod webhook;

pub use authn::UserInfo;
pub use authn::signer::TokenSigner;
pub use config::{Config, ConfigError, Keypair, SYSTEM_VERSION, Version};
pub use server::{ApiServer, StartError};
