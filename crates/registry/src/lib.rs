//! The registry: one implementation of each verb for all resources, based on the table of resources, the watch cache
//! and the store.

mod admission;
pub mod allocators;
pub mod attributes;
pub mod cache;
pub mod codec;
pub mod conversion;
mod conversion_webhook;
pub mod create;
pub mod custom_resources;
pub mod delete;
pub mod encryption;
pub mod event_leases;
pub mod history;
pub mod list;
pub mod managed;
pub mod metadata;
mod metered_store;
pub mod options;
pub mod own;
pub mod patch;
pub mod served;
mod services;
pub mod storage_limits;
pub mod store;
pub mod store_errors;
mod stored_objects;
pub mod subresources;
pub mod table;
pub mod target;
pub mod unsupported;
pub mod update;
pub mod watch;
pub mod watch_body;

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::status::StatusError;
use knarr_storage::Store;
use tokio_util::sync::CancellationToken;

use crate::cache::Caches;
use knarr_outgoing::webhook::Webhooks;
use knarr_wire::metrics::Metrics;
use knarr_wire::request::Request;

pub use admission::Admission;
use event_leases::EventLeases;
pub use metered_store::MeteredStore;
pub use stored_objects::{StoredObjects, Trouble};
use table::LiveTable;

/// Settings that change the behaviour of the registry.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The range from which Services get their addresses, unless ServiceCIDR objects define other ranges.
    pub service_cidr: (Ipv4Addr, u8),
    pub node_ports: RangeInclusive<u16>,
}

/// Checks whether a client has a permission beyond the one that its request was authorized for.
#[async_trait]
pub trait Permissions: Send + Sync {
    /// # Errors
    /// 403 if the user may not use this verb on the object of the request.
    async fn check_verb(&self, request: &Request, verb: &str) -> Result<(), StatusError>;
}

/// All served resources, and everything that their reads and writes depend on.
pub struct Registry {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub caches: Arc<Caches>,
    pub table: LiveTable,
    pub metrics: Arc<Metrics>,
    pub settings: Settings,
    /// The store has no history before this revision.
    pub compacted: AtomicU64,
    pub events: EventLeases,
    /// The client for the webhooks that convert custom resources and admit requests.
    pub webhooks: Webhooks,
    pub admission: Arc<dyn Admission>,
    pub permissions: Arc<dyn Permissions>,
    /// Cancelled when the server stops; ends all watches.
    pub stop: CancellationToken,
}

/// Adds the empty values that upstream serializes, so that stored objects have the same form.
pub fn fill(served: &served::Served, object: &mut serde_json::Value) {
    if let Some(schema) = served.schema {
        knarr_apimachinery::schema::validate::fill(object, schema);
    }
}
