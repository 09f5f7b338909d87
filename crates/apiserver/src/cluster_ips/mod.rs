//! Reconciles Services with their IPAddress objects, and keeps the ServiceCIDR of the server's own range.

mod default_cidr;
mod repair;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::{EventRecorder, EventType};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Event, Informers, Lister, Result};
use tokio_util::sync::CancellationToken;

use crate::steps::Steps;
pub use default_cidr::reconcile as ensure_default;
use knarr_registry::Registry;
use knarr_registry::allocators::addresses;
use knarr_registry::allocators::ranges::{DEFAULT, Range};
use repair::Mend;

/// Addresses and Services change in one transaction, but their events arrive at two informers one after the other.
const SETTLE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// The server's own ServiceCIDR.
    Default,
    Service(ObjectKey),
    Address(String),
}

struct Keeper {
    registry: Arc<Registry>,
    client: Client,
    recorder: EventRecorder,
    services: Lister<Service>,
    cidrs: Lister<ServiceCIDR>,
    addresses: Lister<IPAddress>,
    queue: Arc<WorkQueue<Key>>,
}

/// Runs until `stop`.
pub async fn run(registry: Arc<Registry>, client: Client, steps: Arc<Steps>, stop: CancellationToken) {
    if registry.table.find("networking.k8s.io", "v1", "ipaddresses").is_none() {
        return stop.cancelled().await;
    }
    let informers = Informers::new(client.clone(), stop.clone());
    let queue = WorkQueue::new(Arc::clone(&registry.clock));
    let (services, cidrs, addresses) = (
        informers.informer::<Service>(),
        informers.informer::<ServiceCIDR>(),
        informers.informer::<IPAddress>(),
    );
    let on_service = Arc::clone(&queue);
    services.add_handler(move |event| {
        if !matches!(event, Event::Deleted(_)) {
            on_service.add_after(Key::Service(event.object().key()), SETTLE);
        }
    });
    let on_cidr = Arc::clone(&queue);
    cidrs.add_handler(move |event| {
        if event.object().name() == DEFAULT {
            on_cidr.add(Key::Default);
        }
    });
    let on_address = Arc::clone(&queue);
    addresses.add_handler(move |event| {
        let address = event.object();
        let parent = &address.spec.parent_ref;
        if parent.resource == "services" {
            let of = ObjectKey::new(parent.namespace.as_deref().unwrap_or(""), &parent.name);
            on_address.add_after(Key::Service(of), SETTLE);
        }
        if !matches!(event, Event::Deleted(_)) {
            on_address.add_after(Key::Address(address.name().to_owned()), SETTLE);
        }
    });
    if !informers.wait_synced().await {
        return;
    }
    steps.finish(&["start-service-ip-repair-controllers"]);
    let keeper = Arc::new(Keeper {
        recorder: EventRecorder::new(client.clone(), "ipallocator-repair-controller", "", stop.clone()),
        services: services.lister(),
        cidrs: cidrs.lister(),
        addresses: addresses.lister(),
        queue: Arc::clone(&queue),
        registry,
        client,
    });
    let reconcile = move |key: Key| {
        let keeper = Arc::clone(&keeper);
        async move { keeper.reconcile(key).await }
    };
    queue.run("repair-cluster-ips", 1, stop, reconcile).await;
}

impl Keeper {
    async fn reconcile(&self, key: Key) -> Result<()> {
        match key {
            Key::Default => {
                let cidr = self.cidrs.get("", DEFAULT);
                if let Some((reason, why)) =
                    cidr.as_deref().and_then(|c| default_cidr::differs(c, &self.registry))
                {
                    if let Some(cidr) = cidr {
                        self.recorder.event(&*cidr, EventType::Warning, reason, why);
                    }
                    return Ok(());
                }
                ensure_default(&self.registry).await.map_err(knarr_client::Error::Status)
            }
            Key::Service(key) => self.service(&key).await,
            Key::Address(name) => self.address(&name).await,
        }
    }

    async fn service(&self, key: &ObjectKey) -> Result<()> {
        let Some(service) = self.services.get_key(key) else { return Ok(()) };
        let ranges: Vec<Range> = self.cidrs.list().iter().flat_map(|c| repair::ranges(c)).collect();
        for ip in repair::cluster_ips(&service) {
            let address = self.addresses.get("", &ip);
            let referred = address.as_ref().and_then(|a| {
                let parent = &a.spec.parent_ref;
                self.services.get(parent.namespace.as_deref().unwrap_or(""), &parent.name)
            });
            let mend = repair::service(&service, &ip, &ranges, address.as_deref(), referred.as_deref());
            let (anew, note) = match mend {
                Mend::Fine | Mend::Delete(..) | Mend::Later(_) => continue,
                Mend::Report(reason, why) => (false, Some((reason, why))),
                Mend::Recreate(note) => (true, note),
            };
            if let Some((reason, why)) = note {
                self.recorder.event(&*service, EventType::Warning, reason, why);
            }
            if anew {
                self.recreate(&ip, address.is_some(), key).await?;
            }
        }
        Ok(())
    }

    async fn recreate(&self, ip: &str, exists: bool, of: &ObjectKey) -> Result<()> {
        if exists {
            self.delete(ip).await?;
        }
        let object = addresses::object(ip, &of.namespace, &of.name);
        let object: IPAddress = serde_json::from_value(object)
            .map_err(|e| knarr_client::Error::Protocol(format!("an address of its own: {e}")))?;
        match self.client.create(&object).await {
            Err(e) if !e.is_already_exists() => Err(e),
            _ => Ok(()),
        }
    }

    async fn delete(&self, ip: &str) -> Result<()> {
        match self.client.delete::<IPAddress>("", ip, &DeleteOptions::default()).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    async fn address(&self, name: &str) -> Result<()> {
        let Some(address) = self.addresses.get("", name) else { return Ok(()) };
        let parent = &address.spec.parent_ref;
        let service = self.services.get(parent.namespace.as_deref().unwrap_or(""), &parent.name);
        match repair::address(&address, service.as_deref(), self.registry.clock.now()) {
            Mend::Later(wait) => self.queue.add_after(Key::Address(name.to_owned()), wait),
            Mend::Delete(reason, why) => {
                self.recorder.event(&*address, EventType::Warning, reason, why);
                self.delete(name).await?;
            }
            Mend::Fine | Mend::Report(..) | Mend::Recreate(_) => {}
        }
        Ok(())
    }
}
