//! Token cleaner: deletes expired bootstrap tokens.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use super::{expiration, is_token};
use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "token-cleaner-controller", run: |cx| Box::pin(async move { run(cx).await }) };

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let secrets = cx.informers.informer::<Secret>();
    let on_secret = Arc::clone(&queue);
    secrets.add_handler(move |event| {
        if is_token(event.object()) && !matches!(event, Event::Deleted(_)) {
            on_secret.add(event.object().key());
        }
    });
    if !secrets.wait_synced().await {
        return;
    }
    let (secrets, again, stop) = (secrets.lister(), Arc::clone(&queue), cx.stop.clone());
    let reconcile = move |key: ObjectKey| {
        let (cx, secrets, queue) = (Arc::clone(&cx), secrets.clone(), Arc::clone(&again));
        async move { reconcile(&cx, &secrets, &queue, key).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn reconcile(
    cx: &Context,
    secrets: &Lister<Secret>,
    queue: &WorkQueue<ObjectKey>,
    key: ObjectKey,
) -> Result<()> {
    let Some(secret) = secrets.get_key(&key).filter(|s| is_token(s)) else { return Ok(()) };
    let Some(end) = expiration(&secret) else { return Ok(()) };
    let left = Duration::try_from(end.duration_since(cx.clock.now())).unwrap_or(Duration::ZERO);
    if !left.is_zero() {
        queue.add_after(key, left);
        return Ok(());
    }
    let preconditions = Preconditions { uid: Some(secret.uid().to_owned()), resource_version: None };
    let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
    match cx.client.delete::<Secret>(&key.namespace, &key.name, &options).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::token;
    use super::*;
    use crate::testing::World;

    #[tokio::test(start_paused = true)]
    async fn tokens_go_when_they_end() {
        let world = World::new(&[Secret::RESOURCE]);
        world.api.add(&token("abcdef", &[("expiration", "2026-01-01T00:01:00Z")]));
        world.api.add(&token("always", &[]));
        world.api.add(&token("broken", &[("expiration", "soon")]));
        world.start(&DESCRIPTOR);
        let names = || -> Vec<String> {
            world.api.all::<Secret>().iter().map(|s| s.name().replace("bootstrap-token-", "")).collect()
        };
        world.pass(30.0).await;
        assert_eq!(names(), ["abcdef", "always"]);
        world.pass(31.0).await;
        assert_eq!(names(), ["always"]);
    }
}
