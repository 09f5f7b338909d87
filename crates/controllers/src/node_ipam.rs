//! Node IPAM: allocates a part of the cluster's pod addresses to each node.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Node;
use knarr_api::kind::Kind;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Patch, Result};
use serde_json::json;

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "node-ipam-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The parts of one CIDR, by index, with those in use.
#[derive(Debug)]
struct Parts {
    base: u32,
    /// The prefix length of a part.
    mask: u8,
    count: u32,
    used: BTreeSet<u32>,
    /// The index at which the next search starts, so that a released part is not reused at once.
    next: u32,
}

impl Parts {
    /// Divides `cidr`, such as `10.42.0.0/16`, into parts; `None` if it does not parse or is smaller than a part.
    fn new(cidr: &str, mask: u8) -> Option<Self> {
        let (address, prefix) = cidr.split_once('/')?;
        let (address, prefix) = (u32::from(address.parse::<Ipv4Addr>().ok()?), prefix.parse::<u8>().ok()?);
        if prefix > mask || mask > 30 || prefix == 0 {
            return None;
        }
        let base = address & (u32::MAX << (32 - prefix));
        Some(Self { base, mask, count: 1 << (mask - prefix), used: BTreeSet::new(), next: 0 })
    }

    fn size(&self) -> u32 {
        1 << (32 - self.mask)
    }

    fn take(&mut self) -> Option<String> {
        let free = (0..self.count).map(|i| (self.next + i) % self.count).find(|n| !self.used.contains(n))?;
        self.used.insert(free);
        self.next = (free + 1) % self.count;
        Some(format!("{}/{}", Ipv4Addr::from(self.base + free * self.size()), self.mask))
    }

    /// Returns the indexes of all parts that overlap a range, which may be larger or smaller than one part.
    fn numbers(&self, range: &str) -> Range<u32> {
        let read = |range: &str| {
            let (address, prefix) = range.split_once('/')?;
            let prefix = prefix.parse::<u32>().ok().filter(|prefix| (1..=32).contains(prefix))?;
            let first = u32::from(address.parse::<Ipv4Addr>().ok()?) & (u32::MAX << (32 - prefix));
            Some((u64::from(first), u64::from(first) + (1 << (32 - prefix))))
        };
        let Some((first, end)) = read(range) else { return 0..0 };
        let (base, size) = (u64::from(self.base), u64::from(self.size()));
        let within = |at: u64| at.clamp(base, base + u64::from(self.count) * size) - base;
        let number = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
        number(within(first) / size)..number(within(end).div_ceil(size))
    }

    fn occupy(&mut self, part: &str) {
        self.used.extend(self.numbers(part));
    }

    fn give_back(&mut self, part: &str) {
        let range = self.numbers(part);
        self.used.retain(|number| !range.contains(number));
    }
}

fn part_of(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref().filter(|c| !c.is_empty())
}

/// After this many failed attempts in a row an event on the node reports CIDRAssignmentFailed. Source: upstream's
/// range allocator.
const ATTEMPTS: usize = 3;

async fn run(cx: Arc<Context>) {
    let Some(parts) = Parts::new(&cx.options.cluster_cidr, cx.options.node_cidr_mask_size) else {
        let (cidr, mask) = (&cx.options.cluster_cidr, cx.options.node_cidr_mask_size);
        tracing::error!("nodes get no pod CIDR: {cidr} cannot be divided into parts of /{mask}");
        return;
    };
    let mut parts = parts;
    // No node may get addresses of Services.
    cx.options.service_cidr.iter().for_each(|range| parts.occupy(range));
    let parts = Arc::new(Mutex::new(parts));
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let nodes = cx.informers.informer::<Node>();
    if !nodes.wait_synced().await {
        return;
    }
    // All parts in use are recorded before the first one is allocated.
    let (on_node, used) = (Arc::clone(&queue), Arc::clone(&parts));
    nodes.add_handler(move |event| {
        let node = event.object();
        let mut parts = used.lock().unwrap_or_else(PoisonError::into_inner);
        match (event, part_of(node)) {
            (Event::Deleted(_), Some(part)) => parts.give_back(part),
            (Event::Deleted(_), None) => {}
            (_, Some(part)) => parts.occupy(part),
            (_, None) => on_node.add(node.name().to_owned()),
        }
    });
    let (nodes, stop) = (nodes.lister(), cx.stop.clone());
    let reconcile = move |name: String| {
        let (cx, nodes, parts) = (Arc::clone(&cx), nodes.clone(), Arc::clone(&parts));
        async move { assign(&cx, &nodes, &parts, &name).await }
    };
    queue.run(DESCRIPTOR.name, 4, stop, reconcile).await;
}

async fn assign(cx: &Context, nodes: &Lister<Node>, parts: &Mutex<Parts>, name: &str) -> Result<()> {
    let Some(node) = nodes.get("", name).filter(|n| part_of(n).is_none()) else { return Ok(()) };
    let lock = || parts.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(part) = lock().take() else {
        let text = format!("Node {name} status is now: CIDRNotAvailable");
        cx.recorder.event(&*node, EventType::Normal, "CIDRNotAvailable", text);
        return Err(knarr_client::Error::Protocol(format!("no pod addresses are left for node {name}")));
    };
    let patch = json!({"metadata": {"uid": node.uid()}, "spec": {"podCIDR": part, "podCIDRs": [part]}});
    let patch = Patch::Strategic(patch);
    let (mut result, mut refused) = (Ok(()), true);
    for _ in 0..ATTEMPTS {
        result = cx.client.patch::<Node>("", name, None, &patch).await.map(|_| ());
        let Err(error) = &result else { break };
        // The informer may lag behind an earlier assignment, which is final.
        let current = cx.client.get::<Node>("", name).await.ok();
        if let Some(given) = current.as_ref().and_then(|node| part_of(node)) {
            if given != part {
                lock().give_back(&part);
            }
            return Ok(());
        }
        refused &= error.status().is_some_and(|status| status.code() < 500);
        if error.is_not_found() {
            break;
        }
    }
    if let Err(error) = result {
        // If the answer was lost, the write may have succeeded: the part stays allocated until the node shows it.
        if refused {
            lock().give_back(&part);
        }
        let text = format!("Node {name} status is now: CIDRAssignmentFailed");
        cx.recorder.event(&*node, EventType::Normal, "CIDRAssignmentFailed", text);
        return if error.is_not_found() { Ok(()) } else { Err(error) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use knarr_apimachinery::status::StatusError;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_an_event_after_three_attempts() {
        // Parts are allocated in order; a part that was just released is not reused at once.
        let failed = "n CIDRAssignmentFailed Node n status is now: CIDRAssignmentFailed";
        for (failures, part, event) in [(2, "10.42.0.0/24", None), (3, "10.42.1.0/24", Some(failed))] {
            let world = World::new(&[Node::RESOURCE, k8s_openapi::api::core::v1::Event::RESOURCE]);
            let left = AtomicUsize::new(failures);
            world.api.guard(move |request, _| {
                let fails = request.method == http::Method::PATCH
                    && request.path.contains("/nodes/")
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
                fails.then(|| StatusError::new(403, "Forbidden", "not yet"))
            });
            world.start(&DESCRIPTOR);
            world.pass(1.0).await;
            world.api.add(&Node::decode(br#"{"metadata": {"name": "n"}}"#).unwrap());
            world.pass(60.0).await;
            assert_eq!(part_of(&world.api.get::<Node>("", "n").unwrap()), Some(part));
            assert_eq!(world.events(), event.map(str::to_owned).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn parts_are_given_once_and_reused_last() {
        let mut parts = Parts::new("10.42.0.0/22", 24).unwrap();
        parts.occupy("10.42.1.0/24");
        let taken: Vec<_> = (0..3).map_while(|_| parts.take()).collect();
        assert_eq!(taken, ["10.42.0.0/24", "10.42.2.0/24", "10.42.3.0/24"]);
        assert_eq!(parts.take(), None);
        parts.give_back("10.42.2.0/24");
        assert_eq!(parts.take().as_deref(), Some("10.42.2.0/24"));
        parts.occupy("192.168.0.0/24");
        parts.give_back("nonsense");
    }

    #[test]
    fn ranges_of_another_size_take_all_that_they_touch() {
        let mut parts = Parts::new("10.42.0.0/22", 24).unwrap();
        for (range, numbers) in [
            ("10.42.2.0/23", 2..4),
            ("10.42.1.128/25", 1..2),
            ("10.0.0.0/8", 0..4),
            ("10.41.255.0/24", 0..0),
            ("10.43.0.0/24", 4..4),
            ("10.42.0.0/0", 0..0),
        ] {
            assert_eq!(parts.numbers(range), numbers, "{range}");
        }
        parts.occupy("10.42.2.0/23");
        let taken: Vec<_> = (0..3).map_while(|_| parts.take()).collect();
        assert_eq!(taken, ["10.42.0.0/24", "10.42.1.0/24"]);
    }

    #[test]
    fn ranges_that_cannot_be_divided_are_refused() {
        for (cidr, mask) in
            [("10.42.0.0/25", 24), ("10.42.0.0", 24), ("x/16", 24), ("10.0.0.0/8", 31), ("0.0.0.0/0", 24)]
        {
            assert!(Parts::new(cidr, mask).is_none(), "{cidr} {mask}");
        }
    }
}
