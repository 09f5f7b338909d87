//! The API server over a memory store, through its in-process transport and over TLS.

mod access;
mod certificates;
mod harness;
mod lists;
mod protobuf;
mod proxying;
mod subresources;
mod tls;
mod two_servers;
mod verbs;
mod watches;
mod workloads;
