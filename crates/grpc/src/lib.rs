//! A minimal gRPC for the services beside a cluster: calls to etcd, key services, container runtimes and
//! storage drivers, and a small server. Messages are `prost`'s; HTTP/2 is `hyper`'s.
//!
//! Source: PROTOCOL-HTTP2.md of gRPC.

mod connection;
mod error;
mod message;
mod server;

pub use connection::{Answers, Connection, KeepAlive, Options, Requests};
pub use error::{CallError, Code};
pub use server::{Answer, serve};
