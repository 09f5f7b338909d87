//! Publishes the ClusterTrustBundle by which the API server's serving certificate is verified.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::{ClusterTrustBundle, ClusterTrustBundleSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use knarr_api::kind::Kind;
use knarr_client::transport::ListOptions;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Lister, Result};
use sha2::{Digest, Sha256};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

async fn run(cx: Arc<Context>) {
    if cx.options.root_ca.is_empty() {
        return;
    }
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Arc::clone(&cx.clock));
    let selection =
        ListOptions { field_selector: Some(format!("spec.signerName={SIGNER}")), ..ListOptions::default() };
    let bundles = cx.informers.selected::<ClusterTrustBundle>(selection);
    let on_bundle = Arc::clone(&queue);
    bundles.add_handler(move |_| on_bundle.add(()));
    if !bundles.wait_synced().await {
        return;
    }
    queue.add(());
    let (bundles, stop) = (bundles.lister(), cx.stop.clone());
    let reconcile = move |()| {
        let (cx, bundles) = (Arc::clone(&cx), bundles.clone());
        async move { publish(&cx, &bundles).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

/// Returns the bundle's object name: the signer and a part of the bundle's digest.
fn name_of(bundle: &str) -> String {
    let digest = Sha256::digest(bundle.as_bytes());
    let hash: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("{}:{hash}", SIGNER.replace('/', ":"))
}

async fn publish(cx: &Context, bundles: &Lister<ClusterTrustBundle>) -> Result<()> {
    let trusted = &cx.options.root_ca;
    let name = name_of(trusted);
    let spec = || {
        let (signer_name, trust_bundle) = (Some(SIGNER.to_owned()), trusted.clone());
        ClusterTrustBundleSpec { signer_name, trust_bundle }
    };
    match bundles.get("", &name) {
        None => {
            let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
            match cx.client.create(&ClusterTrustBundle { metadata, spec: spec() }).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
        }
        Some(shown) if shown.spec != spec() => {
            let mut next = (*shown).clone();
            next.spec = spec();
            cx.client.update(&next).await?;
        }
        Some(_) => {}
    }
    for old in bundles.list().iter().filter(|bundle| bundle.name() != name) {
        match cx.client.delete::<ClusterTrustBundle>("", old.name(), &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_bundle() {
        assert_eq!(name_of("abc"), "kubernetes.io:kube-apiserver-serving:ba7816bf8f01cfea414140de");
        assert_ne!(name_of("abc"), name_of("abd"));
    }
}
