//! ServiceCIDRs: sets their finalizer and Ready condition, and releases a deleted one only if every allocated address
//! stays covered by another range.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use knarr_api::addresses::Network;
use knarr_api::kind::Kind;
use knarr_client::client::Patch;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};
use serde_json::json;

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "service-cidr-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
/// How long a deleted range is kept, so that every API server stops allocating addresses from it.
const GRACE: Duration = Duration::from_secs(10);

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let cidrs = cx.informers.informer::<ServiceCIDR>();
    let addresses = cx.informers.informer::<IPAddress>();
    let (on_cidr, all) = (Arc::clone(&queue), cidrs.lister());
    cidrs.add_handler(move |event| {
        let changed = event.object();
        on_cidr.add(changed.name().to_owned());
        if matches!(event, Event::Added(_) | Event::Deleted(_)) {
            let of = networks(changed);
            for other in all.list().iter().filter(|o| overlap(&networks(o), &of)) {
                on_cidr.add(other.name().to_owned());
            }
        }
    });
    let (on_address, all) = (Arc::clone(&queue), cidrs.lister());
    addresses.add_handler(move |event| {
        let (false, Some(address)) = (matches!(event, Event::Updated { .. }), managed(event.object())) else {
            return;
        };
        for cidr in all.list().iter().filter(|c| covers(c, &address)) {
            on_address.add(cidr.name().to_owned());
        }
    });
    if !(cidrs.wait_synced().await && addresses.wait_synced().await) {
        return;
    }
    let (cidrs, addresses, again, stop) =
        (cidrs.lister(), addresses.lister(), Arc::clone(&queue), cx.stop.clone());
    let reconcile = move |name: String| {
        let (cx, cidrs, addresses, queue) =
            (Arc::clone(&cx), cidrs.clone(), addresses.clone(), Arc::clone(&again));
        async move { reconcile(&cx, &cidrs, &addresses, &queue, &name).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

fn networks(cidr: &ServiceCIDR) -> Vec<Network> {
    let cidrs = cidr.spec.as_ref().and_then(|s| s.cidrs.as_ref());
    cidrs.into_iter().flatten().filter_map(|c| Network::parse(c)).collect()
}

fn overlap(one: &[Network], other: &[Network]) -> bool {
    one.iter().any(|a| other.iter().any(|b| a.contains(b) || b.contains(a)))
}

fn covers(cidr: &ServiceCIDR, address: &Network) -> bool {
    networks(cidr).iter().any(|n| n.contains(address))
}

/// Returns the address as a one-address network if an API server allocated it for a Service.
fn managed(address: &IPAddress) -> Option<Network> {
    let labels = address.metadata.labels.as_ref()?;
    if labels.get("ipaddress.kubernetes.io/managed-by").is_none_or(|by| by != "ipallocator.k8s.io") {
        return None;
    }
    let ip = knarr_api::addresses::parse_ip(address.name())?;
    Some(Network { address: ip, bits: if ip.is_ipv4() { 32 } else { 128 } })
}

/// The next step for a range.
#[derive(Debug, PartialEq)]
enum Step {
    Protect,
    Ready,
    /// Deleting the range would leave allocated addresses uncovered.
    Blocked,
    Wait(Duration),
    Release,
}

fn plan(cidr: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Network], now: Timestamp) -> Step {
    let Some(deleted) = &cidr.metadata.deletion_timestamp else {
        let protected = cidr.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
        return if protected { Step::Ready } else { Step::Protect };
    };
    let others: Vec<Network> =
        all.iter().filter(|o| o.name() != cidr.name()).flat_map(|o| networks(o)).collect();
    let own = networks(cidr);
    let replaced = own.iter().all(|n| others.iter().any(|o| o.contains(n)));
    let orphan = |a: &&Network| own.iter().any(|n| n.contains(a)) && !others.iter().any(|o| o.contains(a));
    if !replaced && addresses.iter().any(|a| orphan(&a)) {
        return Step::Blocked;
    }
    let gone_for = now.duration_since(deleted.0).unsigned_abs();
    match GRACE.checked_sub(gone_for).filter(|left| !left.is_zero()) {
        Some(left) if now >= deleted.0 => Step::Wait(left),
        _ => Step::Release,
    }
}

async fn reconcile(
    cx: &Context,
    cidrs: &Lister<ServiceCIDR>,
    addresses: &Lister<IPAddress>,
    queue: &WorkQueue<String>,
    name: &str,
) -> Result<()> {
    let Some(cidr) = cidrs.get("", name) else { return Ok(()) };
    let leaving = cidr.metadata.deletion_timestamp.is_some();
    let taken = if leaving { addresses.list() } else { Vec::new() };
    let taken: Vec<Network> = taken.iter().filter_map(|a| managed(a)).collect();
    let done = match plan(&cidr, &cidrs.list(), &taken, cx.clock.now()) {
        Step::Protect => {
            let patch = json!({"metadata": {"finalizers": [FINALIZER]}});
            let patched = cx.client.patch::<ServiceCIDR>("", name, None, &Patch::Strategic(patch)).await;
            match patched {
                Ok(cidr) => return set_ready(cx, &cidr).await,
                Err(error) => Err(error),
            }
        }
        Step::Ready => return set_ready(cx, &cidr).await,
        Step::Blocked => {
            let why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                       ServiceCIDR";
            set_condition(cx, &cidr, "False", "Terminating", why).await
        }
        Step::Wait(left) => {
            queue.add_after(name.to_owned(), left);
            Ok(())
        }
        Step::Release => {
            let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
            cx.client.patch::<ServiceCIDR>("", name, None, &Patch::Strategic(patch)).await.map(|_| ())
        }
    };
    match done {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

async fn set_ready(cx: &Context, cidr: &ServiceCIDR) -> Result<()> {
    let set = set_condition(cx, cidr, "True", "", "Kubernetes Service CIDR is ready").await;
    if set.is_err() {
        let why = "The ServiceCIDR Status can not be set to Ready=True";
        cx.recorder.event(cidr, EventType::Warning, "KubernetesServiceCIDRError", why);
    }
    set
}

async fn set_condition(
    cx: &Context,
    cidr: &ServiceCIDR,
    status: &str,
    reason: &str,
    message: &str,
) -> Result<()> {
    let conditions = cidr.status.as_ref().and_then(|s| s.conditions.as_ref());
    let known = conditions.into_iter().flatten().find(|c| c.type_ == READY);
    if known.is_some_and(|c| c.status == status && c.reason == reason && c.message == message) {
        return Ok(());
    }
    let condition = Condition {
        type_: READY.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Time(cx.clock.now()),
        observed_generation: None,
    };
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": cidr.name()},
        "status": {"conditions": [condition]},
    });
    let patch = Patch::Apply { object, force: true };
    cx.client.patch::<ServiceCIDR>("", cidr.name(), Some("status"), &patch).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::ServiceCIDRSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};

    use super::*;
    use crate::testing::{World, at};

    fn cidr(name: &str, ranges: &[&str]) -> ServiceCIDR {
        let cidrs = Some(ranges.iter().map(ToString::to_string).collect());
        ServiceCIDR {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: Some(ServiceCIDRSpec { cidrs }),
            ..ServiceCIDR::default()
        }
    }

    fn address(ip: &str) -> IPAddress {
        serde_json::from_value(json!({
            "metadata": {"name": ip, "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
            "spec": {"parentRef": {"resource": "services", "namespace": "ns", "name": "web"}},
        }))
        .unwrap()
    }

    #[test]
    fn a_range_goes_when_no_address_needs_it() {
        let mut leaving = cidr("old", &["10.1.0.0/24"]);
        leaving.metadata.finalizers = Some(vec![FINALIZER.into()]);
        leaving.metadata.deletion_timestamp = Some(Time(at(0)));
        let inside = [managed(&address("10.1.0.7")).unwrap()];
        let outside = [managed(&address("10.2.0.7")).unwrap()];
        let with = |others: &[ServiceCIDR]| {
            let all = std::iter::once(&leaving).chain(others);
            all.cloned().map(Arc::new).collect::<Vec<_>>()
        };
        let wide = [cidr("wide", &["10.0.0.0/8"])];
        let part = [cidr("part", &["10.1.0.0/28"])];
        for (others, addresses, second, want) in [
            (&[][..], &inside, 30, Step::Blocked),
            (&[][..], &outside, 30, Step::Release),
            (&[][..], &outside, 4, Step::Wait(Duration::from_secs(6))),
            (&wide[..], &inside, 30, Step::Release),
            (&part[..], &inside, 30, Step::Release),
        ] {
            let step = plan(&leaving, &with(others), addresses, at(second));
            assert_eq!(step, want, "{others:?} {second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_is_made_ready_and_held_by_its_addresses() {
        let world = World::new(&[ServiceCIDR::RESOURCE, IPAddress::RESOURCE]);
        let api = Arc::clone(&world.api);
        let client = api.client();
        client.create(&cidr("more", &["10.1.0.0/24"])).await.unwrap();
        client.create(&address("10.1.0.7")).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        let ready = |c: &ServiceCIDR| c.status.clone().unwrap().conditions.unwrap()[0].status.clone();
        let more = client.get::<ServiceCIDR>("", "more").await.unwrap();
        assert_eq!(
            (ready(&more), more.metadata.finalizers.clone()),
            ("True".into(), Some(vec![FINALIZER.into()]))
        );
        client.delete::<ServiceCIDR>("", "more", &DeleteOptions::default()).await.unwrap();
        world.pass(60.0).await;
        assert_eq!(ready(&client.get::<ServiceCIDR>("", "more").await.unwrap()), "False");
        client.delete::<IPAddress>("", "10.1.0.7", &DeleteOptions::default()).await.unwrap();
        world.pass(15.0).await;
        assert!(client.get::<ServiceCIDR>("", "more").await.unwrap_err().is_not_found());
    }
}
