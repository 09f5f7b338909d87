//! The authorities that a cluster publishes: the ClusterTrustBundles of `kubernetes.io/kube-apiserver-serving`.

use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use knarr_client::transport::ListOptions;
use knarr_client::{Client, Result};

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

/// Lists the bundles (PEM). There is one, or two while the publisher replaces it; none if the cluster does
/// not publish any.
pub async fn bundles(client: &Client) -> Result<Vec<String>> {
    let options =
        ListOptions { field_selector: Some(format!("spec.signerName={SIGNER}")), ..ListOptions::default() };
    let (listed, _) = match client.list::<ClusterTrustBundle>(None, &options).await {
        // The cluster does not publish any.
        Err(error) if error.status().is_some_and(|s| matches!(s.code(), 403 | 404)) => return Ok(Vec::new()),
        listed => listed?,
    };
    Ok(listed.iter().map(|bundle| bundle.spec.trust_bundle.clone()).collect())
}
