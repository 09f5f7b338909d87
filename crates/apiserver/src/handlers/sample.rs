//! Metrics that are only measured when a client requests them.

use std::net::Ipv4Addr;

use knarr_storage::{NoSpace, RangeRequest};

use knarr_registry::Registry;
use knarr_registry::allocators::{ranges, service};
use knarr_registry::cache::RING_EVENTS;
use knarr_wire::metrics::Metric;

/// Samples the state of the process, the watch caches, the store and the allocators.
pub async fn sample(registry: &Registry) {
    let metrics = &registry.metrics;
    metrics.sample_process();
    for family in [
        Metric::ResourceObjects,
        Metric::StorageObjects,
        Metric::ResourceSize,
        Metric::WatchCacheVersion,
        Metric::WatchCacheReceived,
        Metric::WatchCacheDispatched,
        Metric::WatchCacheInitializations,
        Metric::WatchCacheCapacity,
        Metric::StorageDamaged,
    ] {
        metrics.clear(family);
    }
    for (name, count) in registry.caches.damaged() {
        let Some((group, resource)) = name.split_once('/') else { continue };
        let group = if group == "core" { "" } else { group };
        metrics.set(Metric::StorageDamaged, &[group, resource], count as f64);
    }
    let applied = registry.caches.applied() as f64;
    for (name, count, average) in registry.caches.counts() {
        let Some((group, resource)) = name.split_once('/') else { continue };
        let group = if group == "core" { "" } else { group };
        let full = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let of = [group, resource];
        metrics.set(Metric::ResourceObjects, &of, count as f64);
        metrics.set(Metric::StorageObjects, &[&full], count as f64);
        metrics.set(Metric::ResourceSize, &of, (count * average) as f64);
        metrics.set(Metric::WatchCacheVersion, &of, applied);
        metrics.set(Metric::WatchCacheCapacity, &of, RING_EVENTS as f64);
        // The cache receives each event and sends it to its watchers; it is loaded once, when the server starts.
        let events = metrics.value(Metric::StorageEvents, &of);
        metrics.set(Metric::WatchCacheReceived, &of, events);
        metrics.set(Metric::WatchCacheDispatched, &of, events);
        metrics.set(Metric::WatchCacheInitializations, &of, 1.0);
    }
    if let Ok(status) = registry.store.status().await {
        metrics.set(Metric::StorageSize, &["0"], status.file_bytes as f64);
        metrics.set(Metric::StorageInUse, &[], status.live_bytes as f64);
        metrics.set(Metric::StorageQuota, &[], status.quota_bytes.unwrap_or(0) as f64);
        for (reason, what) in
            [("disk", NoSpace::Disk), ("quota", NoSpace::Quota), ("backend", NoSpace::Backend)]
        {
            let raised = if status.no_space == Some(what) { 1.0 } else { 0.0 };
            metrics.set(Metric::StorageNoSpace, &[reason], raised);
        }
    }
    sample_allocators(registry).await;
}

async fn sample_allocators(registry: &Registry) {
    let metrics = &registry.metrics;
    let (Ok(ranges), Ok(ips), Ok(ports)) = (
        ranges::ready(registry).await,
        registry.store.range(RangeRequest::prefix(service::IPS)).await,
        registry.store.range(RangeRequest::prefix(service::PORTS)).await,
    ) else {
        return;
    };
    metrics.clear(Metric::AllocatedIps);
    metrics.clear(Metric::AvailableIps);
    let text = |key: &[u8]| String::from_utf8_lossy(&key[service::IPS.len().min(key.len())..]).into_owned();
    let taken: Vec<Ipv4Addr> = ips.kvs.iter().filter_map(|kv| text(&kv.key).parse().ok()).collect();
    for range in ranges {
        let allocated = taken.iter().filter(|ip| range.contains(**ip)).count() as f64;
        let cidr = range.to_string();
        metrics.set(Metric::AllocatedIps, &[&cidr], allocated);
        // The network and broadcast addresses are not allocated.
        let all = f64::from(range.size.saturating_sub(2));
        metrics.set(Metric::AvailableIps, &[&cidr], all - allocated);
    }
    let allocated = ports.kvs.len() as f64;
    let range = &registry.settings.node_ports;
    let all = f64::from(u32::from(*range.end()).saturating_sub(u32::from(*range.start())) + 1);
    metrics.set(Metric::AllocatedPorts, &[], allocated);
    metrics.set(Metric::AvailablePorts, &[], all - allocated);
}
