//! Volume expander: emits an event that an external driver must expand the volume of a claim that was enlarged.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::quantity::Quantity;
use knarr_client::Event;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;

use knarr_api::kind::{Kind, ObjectKey};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-expander-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const STORAGE: &str = "storage";

/// Returns the requested size of a bound claim if it exceeds the capacity; `None` otherwise.
fn outgrown(claim: &PersistentVolumeClaim) -> Option<&ApiQuantity> {
    let asked = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE)?;
    let status = claim.status.as_ref().filter(|s| s.phase.as_deref() == Some("Bound"))?;
    let has = status.capacity.as_ref()?.get(STORAGE)?;
    (Quantity::try_from(asked).ok()? > Quantity::try_from(has).ok()?).then_some(asked)
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    let on_claim = Arc::clone(&queue);
    claims.add_handler(move |event| {
        let (old, new) = match event {
            Event::Added(new) => (None, new),
            Event::Updated { old, new } => (Some(old), new),
            Event::Deleted(_) => return,
        };
        // The event is emitted once for each size.
        if outgrown(new).is_some_and(|size| old.and_then(|old| outgrown(old)) != Some(size)) {
            on_claim.add(new.key());
        }
    });
    if !claims.wait_synced().await {
        return;
    }
    let (claims, stop) = (claims.lister(), cx.stop.clone());
    let reconcile = move |key: ObjectKey| {
        let (cx, claims) = (Arc::clone(&cx), claims.clone());
        async move {
            // The control plane itself can expand no type of volume any more.
            if let Some(claim) = claims.get_key(&key).filter(|claim| outgrown(claim).is_some()) {
                let text = "waiting for an external controller to expand this PVC";
                cx.recorder.event(&*claim, EventType::Normal, "ExternalExpanding", text);
            }
            Ok::<(), knarr_client::Error>(())
        }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use k8s_openapi::api::core::v1::Event as ApiEvent;
    use serde_json::{Value, json};

    fn claim(asked: &str, status: Value) -> PersistentVolumeClaim {
        let value = json!({"metadata": {"name": "c", "namespace": "ns"},
            "spec": {"resources": {"requests": {"storage": asked}}}, "status": status});
        serde_json::from_value(value).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_event_is_emitted_once() {
        let world = World::new(&[PersistentVolumeClaim::RESOURCE, ApiEvent::RESOURCE]);
        let bound = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        world.api.add(&claim("1Gi", bound.clone()));
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        assert!(world.events().is_empty());
        let ask = |size: &str| {
            world.api.edit::<PersistentVolumeClaim>("ns", "c", |c| {
                c.spec = claim(size, Value::Null).spec;
            });
        };
        ask("2Gi");
        world.pass(1.0).await;
        let want = "c ExternalExpanding waiting for an external controller to expand this PVC";
        assert_eq!(world.events(), [want]);
        world.api.edit::<PersistentVolumeClaim>("ns", "c", |c| {
            c.status
                .as_mut()
                .unwrap()
                .capacity
                .as_mut()
                .unwrap()
                .insert(STORAGE.into(), ApiQuantity("2Gi".into()));
        });
        world.pass(1.0).await;
        assert_eq!(world.events().len(), 1);
        assert!(outgrown(&claim("2Gi", json!({"phase": "Lost", "capacity": {"storage": "1Gi"}}))).is_none());
    }
}
