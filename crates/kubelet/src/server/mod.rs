//! The HTTPS server of the node: logs, exec, attach, port-forward, statistics.
//!
//! A request is authenticated (`auth`) and authorized, and then handled by route (`route` lists all). Exec,
//! attach and port-forward upgrade their connection: to WebSocket channels (`channels`), or to SPDY/3.1
//! (`spdy`). kubectl's port-forward uses SPDY, either directly or inside a WebSocket.

mod answer;
mod auth;
mod cadvisor;
mod certificates;
mod channels;
mod client_authorities;
mod dispatch;
mod error;
mod exec;
mod exec_result;
mod families;
mod handler;
mod health;
pub mod healthz_port;
mod local_path;
mod log_line;
mod log_options;
mod log_stream;
mod log_watch;
mod logs;
mod metrics;
mod port_forward;
mod process;
mod request_counts;
mod route;
mod serve;
mod serving_certificate;
pub(crate) mod spdy;
mod stats;
mod system_logs;
mod upgrade;

#[cfg(test)]
pub(crate) mod fake_runtime;
#[cfg(test)]
mod metrics_tests;
#[cfg(test)]
mod pages_tests;
#[cfg(test)]
mod rights_tests;
#[cfg(test)]
mod tests;

pub use certificates::NotAfter;
pub use client_authorities::ClientAuthorities;
pub use error::ServerError;
pub use handler::Folders;
pub use health::{Check, checks};
pub use serve::{BoundServer, Options, bind};
pub use serving_certificate::ServingCertificate;
