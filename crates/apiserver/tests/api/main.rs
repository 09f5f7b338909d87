//! The API server over a memory store, through its in-process transport and over TLS.

mod access;
mod admission;
mod admission_webhooks;
mod aggregation;
mod answers;
mod audit;
mod authentication;
mod certificates;
mod custom_resources;
mod dry_runs;
mod encryption;
mod fairness;
mod harness;
mod lists;
mod metrics;
mod policies;
mod protobuf;
mod proxying;
mod subresources;
mod tls;
mod two_servers;
mod unauthorized;
mod verbs;
mod watches;
mod webhooks;
mod workloads;
