//! HTTP calls of the API server to other servers: webhooks, and endpoints that configuration files name.

pub mod dial;
pub mod endpoint;
pub mod webhook;
