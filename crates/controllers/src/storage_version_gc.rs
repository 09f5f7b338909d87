//! Storage version garbage collector: removes the entries of API servers that no longer exist from StorageVersions.
//!
//! Source: the behaviour of `k8s.io/kubernetes/pkg/controller/storageversiongc`.

use std::sync::Arc;

use k8s_openapi::api::apiserverinternal::v1alpha1::StorageVersion;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions, Time};
use knarr_api::gates::STORAGE_VERSION_API;
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Result};

use crate::api_server_identity::storage_versions::{servers, set_servers};
use crate::api_server_identity::{NAMESPACE, is_identity};
use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "storageversion-garbage-collector-controller",
    run: |cx| {
        Box::pin(async move {
            if STORAGE_VERSION_API.is_on() {
                run(cx).await;
            }
        })
    },
};

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let leases = cx.informers.informer::<Lease>();
    let versions = cx.informers.informer::<StorageVersion>();
    let on_version = Arc::clone(&queue);
    versions.add_handler(move |event| on_version.add(event.object().name().to_owned()));
    let (on_lease, all) = (Arc::clone(&queue), versions.lister());
    leases.add_handler(move |event| {
        let Event::Deleted(lease) = event else { return };
        if is_identity(lease) {
            all.list().iter().for_each(|version| on_lease.add(version.name().to_owned()));
        }
    });
    if !(leases.wait_synced().await && versions.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let (leases, versions) = (leases.lister(), versions.lister());
    let reconcile = move |name: String| {
        let (cx, leases, versions) = (Arc::clone(&cx), leases.clone(), versions.clone());
        async move {
            let seems_stale = |version: &Arc<StorageVersion>| {
                servers(version)
                    .iter()
                    .any(|s| !leases.get(NAMESPACE, &s.api_server_id).is_some_and(|l| is_identity(&l)))
            };
            match versions.get("", &name).filter(seems_stale) {
                Some(_) => forget_those_gone(&cx, &name).await,
                None => Ok(()),
            }
        }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

/// Removes the entries of missing servers. Reads their leases live, since the informer may not show a new server yet.
async fn forget_those_gone(cx: &Context, name: &str) -> Result<()> {
    let mut version = match cx.client.get::<StorageVersion>("", name).await {
        Err(error) if error.is_not_found() => return Ok(()),
        other => other?,
    };
    let mut left = Vec::new();
    for server in servers(&version) {
        match cx.client.get::<Lease>(NAMESPACE, &server.api_server_id).await {
            Ok(lease) if is_identity(&lease) => left.push(server.clone()),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    if left.len() == servers(&version).len() {
        return Ok(());
    }
    if left.is_empty() {
        let preconditions = Preconditions {
            uid: version.metadata.uid.clone(),
            resource_version: version.metadata.resource_version.clone(),
        };
        let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        return match cx.client.delete::<StorageVersion>("", name, &options).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        };
    }
    set_servers(&mut version, left, Time(cx.clock.now()));
    cx.client.update_status(&version).await.map(drop)
}
