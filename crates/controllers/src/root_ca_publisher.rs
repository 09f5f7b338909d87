//! Root CA publisher: keeps a ConfigMap in each namespace with the CA certificate by which pods verify the API
//! server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;
use knarr_client::transport::ListOptions;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::support::refusals::namespace_is_terminating;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "root-ca-certificate-publisher-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const NAME: &str = "kube-root-ca.crt";
const DESCRIBED_BY: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                           guaranteed across distributions of Kubernetes clusters.";

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let namespaces = cx.informers.informer::<Namespace>();
    let selection =
        ListOptions { field_selector: Some(format!("metadata.name={NAME}")), ..ListOptions::default() };
    let maps = cx.informers.selected::<ConfigMap>(selection);
    let on_namespace = Arc::clone(&queue);
    namespaces.add_handler(move |event| {
        if !matches!(event, Event::Deleted(_)) {
            on_namespace.add(event.object().name().to_owned());
        }
    });
    let on_map = Arc::clone(&queue);
    maps.add_handler(move |event| {
        if !matches!(event, Event::Added(_)) {
            on_map.add(event.object().namespace().to_owned());
        }
    });
    if !(namespaces.wait_synced().await && maps.wait_synced().await) {
        return;
    }
    let (namespaces, maps, stop) = (namespaces.lister(), maps.lister(), cx.stop.clone());
    let reconcile = move |namespace: String| {
        let (cx, namespaces, maps) = (Arc::clone(&cx), namespaces.clone(), maps.clone());
        async move { publish(&cx, &namespaces, &maps, &namespace).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

fn is_described(map: &ConfigMap) -> bool {
    map.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(DESCRIBED_BY))
}

async fn publish(
    cx: &Context,
    namespaces: &Lister<Namespace>,
    maps: &Lister<ConfigMap>,
    namespace: &str,
) -> Result<()> {
    if namespaces.get("", namespace).is_none_or(|n| n.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    let data = BTreeMap::from([("ca.crt".to_owned(), cx.options.root_ca.clone())]);
    let annotations = BTreeMap::from([(DESCRIBED_BY.to_owned(), DESCRIPTION.to_owned())]);
    let result = match maps.get(namespace, NAME) {
        Some(map) if map.data.as_ref() == Some(&data) && is_described(&map) => return Ok(()),
        Some(map) => {
            let mut next = ConfigMap::clone(&map);
            next.data = Some(data);
            next.metadata.annotations.get_or_insert_default().extend(annotations);
            cx.client.update(&next).await
        }
        None => {
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(namespace.to_owned()),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            };
            cx.client.create(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }).await
        }
    };
    match result {
        // If another client created a map of that name, its event requeues the namespace and the map is corrected.
        Err(e) if !e.is_not_found() && !namespace_is_terminating(&e) => Err(e),
        _ => Ok(()),
    }
}
