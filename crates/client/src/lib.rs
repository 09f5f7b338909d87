//! Access to the cluster for components: transports, a typed client, informers, work queues, events, leader election,
//! and the supervisor of long-running tasks.

pub mod backoff;
pub mod client;
pub mod clock;
pub mod error;
pub mod events;
pub mod http;
pub mod informer;
pub mod kubeconfig;
pub mod leader_election;
pub mod leadership;
pub mod lease_candidate;
pub mod metrics;
pub mod reflector;
pub mod reviews;
pub mod rotating;
pub mod service_account;
pub mod store;
pub mod supervisor;
pub mod transport;
pub mod wire;
pub mod work_queue;

pub use client::{Client, Patch};
pub use error::{Error, Result};
pub use informer::{Event, Informer, Informers, Lister};
pub use supervisor::Supervisor;
pub use transport::{List, ListOptions, Transport, WatchEvent};
