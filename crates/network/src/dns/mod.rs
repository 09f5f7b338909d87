//! The cluster DNS of a node, by the Kubernetes DNS-Based Service Discovery specification 1.1.0.
//!
//! Every node answers its own pods: the cluster IP of the `kube-dns` service is an address of the node's
//! bridge, to which the server binds, and the service proxy does not handle that service.

mod answer;
mod cache;
mod entry;
mod forward;
mod metrics;
mod question;
mod records;
mod resolv_conf;
mod run;
mod server;

pub use answer::{Answer, Lookup, lookup};
pub use entry::{ServiceEntry, service_entry};
pub use forward::{ForwardError, Forwarder};
pub use records::Records;
pub use resolv_conf::parse_nameservers;
pub use run::run;
pub use server::{DnsConfig, DnsError, DnsServer};

#[cfg(test)]
mod tests;
