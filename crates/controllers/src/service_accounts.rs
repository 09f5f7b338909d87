//! ServiceAccounts: creates one called `default` in each namespace.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::support::refusals::namespace_is_terminating;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "serviceaccount-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const DEFAULT: &str = "default";

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let namespaces = cx.informers.informer::<Namespace>();
    let accounts = cx.informers.informer::<ServiceAccount>();
    let on_namespace = Arc::clone(&queue);
    namespaces.add_handler(move |event| {
        if !matches!(event, Event::Deleted(_)) {
            on_namespace.add(event.object().name().to_owned());
        }
    });
    let on_account = Arc::clone(&queue);
    accounts.add_handler(move |event| {
        if matches!(event, Event::Deleted(account) if account.name() == DEFAULT) {
            on_account.add(event.object().namespace().to_owned());
        }
    });
    if !(namespaces.wait_synced().await && accounts.wait_synced().await) {
        return;
    }
    let (namespaces, accounts, stop) = (namespaces.lister(), accounts.lister(), cx.stop.clone());
    let reconcile = move |namespace: String| {
        let (cx, namespaces, accounts) = (Arc::clone(&cx), namespaces.clone(), accounts.clone());
        async move { ensure_default(&cx, &namespaces, &accounts, &namespace).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn ensure_default(
    cx: &Context,
    namespaces: &Lister<Namespace>,
    accounts: &Lister<ServiceAccount>,
    namespace: &str,
) -> Result<()> {
    let active = namespaces.get("", namespace).is_some_and(|n| n.metadata.deletion_timestamp.is_none());
    if !active || accounts.get(namespace, DEFAULT).is_some() {
        return Ok(());
    }
    let metadata = ObjectMeta {
        name: Some(DEFAULT.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    };
    match cx.client.create(&ServiceAccount { metadata, ..ServiceAccount::default() }).await {
        Err(e) if !e.is_already_exists() && !namespace_is_terminating(&e) => Err(e),
        _ => Ok(()),
    }
}
