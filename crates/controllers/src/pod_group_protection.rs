//! Pod group protection: a deleted pod group keeps its finalizer until every pod that names it has ended.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_api::gates::GENERIC_WORKLOAD;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Result};

use crate::context::{Context, Descriptor};
use crate::support::pod_state::has_ended;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "podgroup-protection-controller",
    run: |cx| {
        Box::pin(async move {
            if GENERIC_WORKLOAD.is_on() {
                run(cx).await;
            }
        })
    },
};

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";
/// The index of pods that have not ended, by `namespace/group`.
const BY_GROUP: &str = "podGroup";

fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let group = pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_deref()?;
    Some(ObjectKey::new(pod.namespace(), group))
}

fn uses(pod: &Pod) -> Vec<String> {
    group_of(pod).filter(|_| !has_ended(pod)).map(|key| key.to_string()).into_iter().collect()
}

/// Returns whether the group is being deleted and has the finalizer. Others need no work: admission sets the
/// finalizer.
fn is_candidate(group: &PodGroup) -> bool {
    group.metadata.deletion_timestamp.is_some()
        && group.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let groups = cx.informers.informer::<PodGroup>();
    let pods = cx.informers.informer::<Pod>();
    pods.add_index(BY_GROUP, uses);
    let on_group = Arc::clone(&queue);
    groups.add_handler(move |event| {
        if is_candidate(event.object()) {
            on_group.add(event.object().key());
        }
    });
    let on_pod = Arc::clone(&queue);
    pods.add_handler(move |event| {
        let released = match event {
            Event::Added(pod) => has_ended(pod).then(|| group_of(pod)),
            Event::Updated { old, new } if old.uid() != new.uid() => Some(group_of(old)),
            Event::Updated { new, .. } => has_ended(new).then(|| group_of(new)),
            Event::Deleted(pod) => Some(group_of(pod)),
        };
        released.flatten().into_iter().for_each(|key| on_pod.add(key));
    });
    if !(groups.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let reconcile = move |key: ObjectKey| {
        let (cx, groups, pods) = (Arc::clone(&cx), groups.clone(), pods.clone());
        async move {
            let Some(group) = groups.lister().get_key(&key).filter(|g| is_candidate(g)) else {
                return Ok(());
            };
            if pods.lister().by_index(BY_GROUP, &key.to_string()).is_empty() {
                return release(&cx, &group).await;
            }
            Ok(())
        }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn release(cx: &Context, group: &PodGroup) -> Result<()> {
    let mut next = group.clone();
    next.metadata.finalizers.get_or_insert_default().retain(|f| f != FINALIZER);
    match cx.client.update(&next).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_group_stays_while_a_pod_that_has_not_ended_names_it() {
        let world = World::new(&[PodGroup::RESOURCE, Pod::RESOURCE]);
        let client = world.api.client();
        let group: PodGroup = serde_json::from_value(json!({
            "metadata": {"name": "g", "namespace": "ns", "finalizers": [FINALIZER]},
            "spec": {"schedulingPolicy": {"basic": {}}}}))
        .unwrap();
        client.create(&group).await.unwrap();
        let pod = |name: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns"},
                "spec": {"containers": [], "schedulingGroup": {"podGroupName": "g"}}}))
            .unwrap()
        };
        for name in ["a", "b"] {
            client.create(&pod(name)).await.unwrap();
        }
        let controller = Descriptor { name: DESCRIPTOR.name, run: |cx| Box::pin(run(cx)) };
        world.start(&controller);
        world.pass(1.0).await;
        client.delete::<PodGroup>("ns", "g", &DeleteOptions::default()).await.unwrap();
        world.pass(1.0).await;
        let get = async || client.get::<PodGroup>("ns", "g").await;
        assert!(get().await.is_ok());
        world.api.remove::<Pod>("ns", "a");
        world.pass(1.0).await;
        assert!(get().await.is_ok(), "the other pod still names it");
        let mut ended = client.get::<Pod>("ns", "b").await.unwrap();
        ended.status.get_or_insert_default().phase = Some("Succeeded".into());
        client.update_status(&ended).await.unwrap();
        world.pass(1.0).await;
        assert!(get().await.is_err());
    }
}
