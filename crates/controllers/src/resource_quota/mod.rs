//! ResourceQuota: recalculates what a namespace uses. Admission charges writes; this controller releases what is
//! deleted.

mod charges;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_api::kind::{Kind, ObjectKey, ResourceType};
use knarr_api::object::Object;
use knarr_api::quota::{Amounts, Evaluator, Operation, used};
use knarr_api::resources;
use knarr_apimachinery::quantity;
use knarr_client::reflector::{Change, Reflector};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, ListOptions, Lister, Result};
use serde_json::Value;

use charges::{Charges, SETTLE, keep_recent};

use crate::context::{Context, Descriptor};
use crate::support::discovery::Discovery;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "resourcequota-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// Group and plural of a resource.
type Name = (String, String);

struct Controller {
    cx: Arc<Context>,
    quotas: Lister<ResourceQuota>,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// The resources that some quota counts, each watched from its first use on.
    watched: Mutex<BTreeMap<Name, Arc<Reflector>>>,
    charges: Mutex<BTreeMap<ObjectKey, Charges>>,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let quotas = cx.informers.informer::<ResourceQuota>();
    let on_quota = Arc::clone(&queue);
    quotas.add_handler(move |event| {
        let asked_anew = match event {
            Event::Added(_) => true,
            Event::Updated { old, new } => old.spec != new.spec,
            Event::Deleted(_) => false,
        };
        if asked_anew {
            on_quota.add(event.object().key());
        }
    });
    if !quotas.wait_synced().await {
        return;
    }
    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let controller = Arc::new(Controller {
        cx,
        quotas: quotas.lister(),
        queue: Arc::clone(&queue),
        watched: Mutex::default(),
        charges: Mutex::default(),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// Returns whether a change may reduce the usage, or alter it in a way that admission does not charge.
fn matters(evaluator: &Evaluator, change: &Change, now: Timestamp) -> bool {
    match change {
        Change::Added(_) => false,
        Change::Deleted(_) => true,
        Change::Updated { old, new } => {
            let (Some(old), Some(new)) = (value(old), value(new)) else { return true };
            evaluator.usage(&old, now) != evaluator.usage(&new, now)
                || evaluator.handles(Operation::Update, "", &new, Some(&old))
        }
    }
}

fn value(object: &Object) -> Option<Value> {
    serde_json::from_slice(&object.json()).ok()
}

fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let all = quantities.into_iter().flatten();
    all.filter_map(|(name, text)| Some((name.clone(), quantity::Quantity::parse(&text.0).ok()?))).collect()
}

fn quantities(amounts: &Amounts) -> BTreeMap<String, Quantity> {
    amounts.iter().map(|(name, amount)| (name.clone(), Quantity(amount.to_string()))).collect()
}

/// Returns the status with these amounts; resources without an evaluator keep their amount.
fn new_status(
    before: &ResourceQuotaStatus,
    hard: &BTreeMap<String, Quantity>,
    total: &Amounts,
) -> ResourceQuotaStatus {
    let mut used = before.used.clone().unwrap_or_default();
    used.retain(|name, _| hard.contains_key(name));
    used.extend(quantities(total));
    ResourceQuotaStatus {
        hard: (!hard.is_empty()).then(|| hard.clone()),
        used: (!used.is_empty()).then_some(used),
    }
}

/// Returns whether an amount changes that the quota had before.
fn alters(before: &ResourceQuotaStatus, after: &ResourceQuotaStatus) -> bool {
    let after = after.used.as_ref();
    let known = before.used.iter().flatten();
    known.into_iter().any(|(name, amount)| after.and_then(|a| a.get(name)).is_some_and(|a| a != amount))
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        let Some(quota) = self.quotas.get_key(&key) else {
            self.charges().remove(&key);
            return Ok(());
        };
        let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
        let names: BTreeSet<Name> = hard.keys().filter_map(|name| Evaluator::resource_of(name)).collect();
        let before = quota.status.clone().unwrap_or_default();
        let known = amounts(before.used.as_ref());
        let recent =
            self.charges().entry(key.clone()).or_default().observe(known.clone(), self.cx.clock.monotonic());
        let mut again = self.cx.settings().quota_resync;
        let mut status = new_status(&before, &hard, &self.count(&quota, &names, false).await?);
        if alters(&before, &status) {
            // Admission charges before the object is created, and the watch lags even more: a recent charge must not
            // be released because its object does not exist yet.
            let mut total = self.count(&quota, &names, true).await?;
            if keep_recent(&mut total, &known, &recent) {
                again = SETTLE;
            }
            status = new_status(&before, &hard, &total);
        }
        if before != status {
            let next = ResourceQuota { status: Some(status), ..ResourceQuota::clone(&quota) };
            let written = amounts(next.status.as_ref().and_then(|s| s.used.as_ref()));
            self.charges().entry(key.clone()).or_default().record(written);
            // After a conflict the next reconciliation sees what admission has charged since.
            match self.cx.client.update_status(&next).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        self.queue.add_after(key, again);
        Ok(())
    }

    fn charges(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Charges>> {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the namespace uses, from local copies or from live lists.
    async fn count(&self, quota: &ResourceQuota, names: &BTreeSet<Name>, live: bool) -> Result<Amounts> {
        let as_json: Value = serde_json::from_slice(&quota.encode()).unwrap_or_default();
        let namespace = Some(quota.namespace());
        let mut total = Amounts::new();
        for (group, plural) in names {
            let Some(evaluator) = Evaluator::of(group, plural) else { continue };
            let Some(reflector) = self.watch(group, plural, &evaluator).await? else { continue };
            let resource = if live { self.resource(group, plural).await? } else { None };
            let objects = match resource {
                Some(resource) => {
                    let transport = self.cx.client.transport();
                    transport.list(&resource, namespace, &ListOptions::default()).await?.items
                }
                // A resource that cannot be listed, perhaps for long, must not block the workers of other quotas.
                None if !reflector.has_synced() => {
                    return Err(Error::Protocol(format!("{plural} have not been listed yet")));
                }
                None => reflector.store().list(namespace),
            };
            let objects: Vec<Value> = objects.iter().filter_map(|o| value(o)).collect();
            total.extend(used(&evaluator, &as_json, &objects, self.cx.clock.now()));
        }
        Ok(total)
    }

    /// Returns the local copy of a resource, which is watched from now on; `None` if there is no such resource.
    async fn watch(
        &self,
        group: &str,
        plural: &str,
        evaluator: &Evaluator,
    ) -> Result<Option<Arc<Reflector>>> {
        let name = (group.to_owned(), plural.to_owned());
        if let Some(known) = self.watched.lock().unwrap_or_else(PoisonError::into_inner).get(&name) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(resource) = self.resource(group, plural).await? else { return Ok(None) };
        let reflector = self.cx.informers.untyped(resource, ListOptions::default());
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.contains_key(&name) {
            return Ok(Some(reflector));
        }
        let (quotas, queue, evaluator) = (self.quotas.clone(), Arc::clone(&self.queue), evaluator.clone());
        let clock = Arc::clone(&self.cx.clock);
        let handler = move |change: &Change| {
            let object = match change {
                Change::Added(object) | Change::Deleted(object) => object,
                Change::Updated { new, .. } => new,
            };
            let concerned = quotas.list_namespace(object.namespace());
            if !concerned.is_empty() && matters(&evaluator, change, clock.now()) {
                concerned.iter().for_each(|quota| queue.add(quota.key()));
            }
        };
        reflector.add_handler(&self.cx.stop, Arc::new(handler));
        watched.insert(name, Arc::clone(&reflector));
        Ok(Some(reflector))
    }

    async fn resource(&self, group: &str, plural: &str) -> Result<Option<ResourceType>> {
        if let Some(known) = resources::find(group, plural) {
            return Ok(Some(known.types));
        }
        let served = Discovery::fetch(&self.cx.client).await?;
        let mut all = served.preferred().map(|s| s.resource);
        Ok(all.find(|r| r.group == group && r.plural == plural))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn what_is_there_is_added_up_and_what_goes_is_taken_off() {
        let world = World::new(&[ResourceQuota::RESOURCE, Pod::RESOURCE, ConfigMap::RESOURCE]);
        let client = world.api.client();
        let pod = |name: &str| -> Pod {
            serde_json::from_value(
                json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"containers": [
                {"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}}),
            )
            .unwrap()
        };
        client.create(&pod("a")).await.unwrap();
        client.create(&pod("b")).await.unwrap();
        let quota: ResourceQuota =
            serde_json::from_value(json!({"metadata": {"name": "q", "namespace": "ns"},
            "spec": {"hard": {"pods": "5", "requests.cpu": "1", "count/configmaps": "3"}}}))
            .unwrap();
        client.create(&quota).await.unwrap();
        world.start(&DESCRIPTOR);
        let used = async || {
            world.pass(2.0).await;
            let status = client.get::<ResourceQuota>("ns", "q").await.unwrap().status.unwrap();
            let used = status.used.unwrap();
            ["pods", "requests.cpu", "count/configmaps"].map(|n| used[n].0.clone())
        };
        assert_eq!(used().await, ["2", "400m", "0"]);
        client.delete::<Pod>("ns", "a", &DeleteOptions::default()).await.unwrap();
        assert_eq!(used().await, ["1", "200m", "0"]);
        let mut ended: Pod = client.get("ns", "b").await.unwrap();
        ended.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
        client.update_status(&ended).await.unwrap();
        assert_eq!(used().await, ["0", "0", "0"]);
    }
    #[tokio::test(start_paused = true)]
    async fn a_charge_whose_pod_is_on_its_way_stays() {
        let world = World::new(&[ResourceQuota::RESOURCE, Pod::RESOURCE, ConfigMap::RESOURCE]);
        let client = world.api.client();
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns"}})).unwrap();
        client.create(&map).await.unwrap();
        let quota: ResourceQuota =
            serde_json::from_value(json!({"metadata": {"name": "q", "namespace": "ns"},
            "spec": {"hard": {"pods": "5", "count/configmaps": "3"}}}))
            .unwrap();
        client.create(&quota).await.unwrap();
        world.start(&DESCRIPTOR);
        let used = async || {
            let status = client.get::<ResourceQuota>("ns", "q").await.unwrap().status.unwrap();
            ["pods", "count/configmaps"].map(|n| status.used.as_ref().unwrap()[n].0.clone())
        };
        world.pass(2.0).await;
        assert_eq!(used().await, ["0", "1"]);
        // Admission charges a pod, and a recalculation is due before the pod is created.
        let mut charged: ResourceQuota = client.get("ns", "q").await.unwrap();
        let status = charged.status.get_or_insert_default();
        status.used.get_or_insert_default().insert("pods".into(), Quantity("1".into()));
        client.update_status(&charged).await.unwrap();
        client.delete::<ConfigMap>("ns", "c", &DeleteOptions::default()).await.unwrap();
        world.pass(0.1).await;
        assert_eq!(used().await, ["1", "0"], "the charge is recent");
        world.pass(1.0).await;
        assert_eq!(used().await, ["0", "0"], "the pod was never created");
    }
}
