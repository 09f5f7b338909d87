//! Disruption: maintains the status of each PodDisruptionBudget, which limits evictions.

mod plan;
mod scale;
mod stale;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::controller_of;
use plan::{expected, failed, needs_scale, outcome};
use scale::Scales;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "disruption-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const WORKERS: usize = 2;

struct Controller {
    cx: Arc<Context>,
    budgets: Lister<PodDisruptionBudget>,
    pods: Lister<Pod>,
    scales: Scales,
    queue: Arc<WorkQueue<ObjectKey>>,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let budgets = cx.informers.informer::<PodDisruptionBudget>();
    let pods = cx.informers.informer::<Pod>();
    let on_budget = Arc::clone(&queue);
    budgets.add_handler(move |event| on_budget.add(event.object().key()));
    let (on_pod, known, recorder) = (Arc::clone(&queue), budgets.lister(), cx.recorder.clone());
    pods.add_handler(move |event| {
        let pod = event.object();
        if let [first, _, ..] = wake(&on_pod, &known, pod).as_slice() {
            let of = format!("{:?}/{:?}", pod.namespace(), pod.name());
            let text = format!(
                "Pod {of} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
                first.name()
            );
            recorder.event(&**pod, EventType::Warning, "MultiplePodDisruptionBudgets", text);
        }
        if let Event::Updated { old, .. } = event {
            wake(&on_pod, &known, old);
        }
    });
    let Some(scales) = scales(&cx, &queue, &budgets).await else { return };
    if !(budgets.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let stale = stale::run(Arc::clone(&cx), pods.clone());
    let controller = Arc::new(Controller {
        cx,
        budgets: budgets.lister(),
        pods: pods.lister(),
        scales,
        queue: Arc::clone(&queue),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    tokio::join!(queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile), stale);
}

/// Returns the informers of the scalable kinds, once they are synced; `None` if the controller is stopped before.
async fn scales(
    cx: &Context,
    queue: &Arc<WorkQueue<ObjectKey>>,
    budgets: &Informer<PodDisruptionBudget>,
) -> Option<Scales> {
    Some(Scales {
        client: cx.client.clone(),
        replica_sets: watched::<ReplicaSet>(cx, queue, budgets).await?,
        deployments: watched::<Deployment>(cx, queue, budgets).await?,
        stateful_sets: watched::<StatefulSet>(cx, queue, budgets).await?,
        replication_controllers: watched::<ReplicationController>(cx, queue, budgets).await?,
    })
}

/// Watches a scalable kind and queues the budgets of its namespace whose expected count depends on the scale.
async fn watched<K: Kind>(
    cx: &Context,
    queue: &Arc<WorkQueue<ObjectKey>>,
    budgets: &Informer<PodDisruptionBudget>,
) -> Option<Lister<K>> {
    let informer = cx.informers.informer::<K>();
    let (queue, budgets) = (Arc::clone(queue), budgets.lister());
    informer.add_handler(move |event| {
        if let Event::Updated { old, new } = event
            && old.meta().generation != new.meta().generation
        {
            let all = budgets.list_namespace(new.namespace());
            all.iter().filter(|b| needs_scale(b)).for_each(|b| queue.add(b.key()));
        }
    });
    informer.wait_synced().await.then(|| informer.lister())
}

/// Queues the budgets that select the pod.
fn wake(
    queue: &WorkQueue<ObjectKey>,
    budgets: &Lister<PodDisruptionBudget>,
    pod: &Pod,
) -> Vec<Arc<PodDisruptionBudget>> {
    let mut all = budgets.list_namespace(pod.namespace());
    all.retain(|b| selector_of(b).is_some_and(|s| s.matches_optional(pod.metadata.labels.as_ref())));
    all.iter().for_each(|budget| queue.add(budget.key()));
    all
}

/// Returns the budget's selector. Without a selector it matches nothing, with an empty one the whole namespace.
fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector> {
    Selector::from_label_selector(budget.spec.as_ref()?.selector.as_ref()).ok()
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        let Some(budget) = self.budgets.get_key(&key) else { return Ok(()) };
        let Some(selector) = selector_of(&budget) else { return Ok(()) };
        let pods = self.pods.select(budget.namespace(), &selector);
        let recorder = &self.cx.recorder;
        if pods.is_empty() {
            recorder.event(&*budget, EventType::Normal, "NoPods", "No matching pods found");
        }
        let scales = if needs_scale(&budget) { self.scales.of(&pods).await } else { Ok(Default::default()) };
        let now = self.cx.clock.now();
        let scales = match scales {
            Ok(scales) => scales,
            Err(error) => {
                let text = format!("Failed to calculate the number of expected pods: {error}");
                recorder.event(&*budget, EventType::Warning, "CalculateExpectedPodCountFailed", text);
                self.write(&budget, failed(&budget, &error.to_string(), now)).await?;
                return Err(error);
            }
        };
        if needs_scale(&budget) && pods.iter().any(|pod| controller_of(&pod.metadata).is_none()) {
            let text = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a \
                 result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. \
                 To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
            );
            recorder.event(&*budget, EventType::Warning, "UnmanagedPods", text);
        }
        let outcome = outcome(&budget, &pods, expected(&budget, &pods, &scales), now);
        for pod in &outcome.undeleted {
            let text = format!(
                "Pod was expected by PDB {}/{} to be deleted but it wasn't",
                budget.namespace(),
                budget.name()
            );
            recorder.event(&**pod, EventType::Warning, "NotDeleted", text);
        }
        self.write(&budget, outcome.status).await?;
        if let Some(wait) = outcome.wake {
            self.queue.add_after(key, wait);
        }
        Ok(())
    }

    async fn write(&self, budget: &PodDisruptionBudget, status: PodDisruptionBudgetStatus) -> Result<()> {
        if budget.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let next = PodDisruptionBudget { status: Some(status), ..budget.clone() };
        // A conflict is an error: an eviction has used the budget, and that must not be overwritten.
        match self.cx.client.update_status(&next).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}
