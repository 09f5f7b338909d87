//! Trust anchors for pods, from ClusterTrustBundles: these are watched once a pod projects some.
//!
//! Source: KEP-3257; `k8s.io/kubernetes/pkg/kubelet/clustertrustbundle`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::reflector::{self, Change, Reflector};
use knarr_client::{Client, ListOptions};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_util::sync::CancellationToken;

use super::error::{Error, Result};
use super::object_source::ObjectSource;

/// How long a read waits for the first list.
const SYNC_WAIT: Duration = Duration::from_secs(2);
/// The line length of PEM text.
const LINE: usize = 64;

/// The cluster's trust bundles for the pods of this node.
pub struct TrustBundles {
    client: Client,
    /// Notified of the pods that need a refresh.
    objects: Arc<ObjectSource>,
    stop: CancellationToken,
    watched: OnceLock<Arc<Reflector>>,
    users: Arc<Mutex<BTreeSet<String>>>,
}

impl TrustBundles {
    pub fn new(client: Client, objects: Arc<ObjectSource>, stop: CancellationToken) -> Self {
        Self { client, objects, stop, watched: OnceLock::new(), users: Arc::default() }
    }

    /// Returns the anchors of one bundle.
    pub async fn by_name(&self, pod_uid: &str, name: &str, optional: bool) -> Result<Vec<u8>> {
        let bundles = self.synced(pod_uid).await?;
        let Some(object) = bundles.store().get(&ObjectKey::new("", name)) else {
            let missing = format!(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
            );
            return if optional { Ok(Vec::new()) } else { Err(Error::failed(missing)) };
        };
        let bundle = object.typed::<ClusterTrustBundle>().map_err(|e| Error::failed(e.to_string()))?;
        Ok(anchors([bundle.spec.trust_bundle.as_str()]))
    }

    /// Returns the anchors of all bundles of a signer that match the selector, without duplicates. Without a
    /// selector none match.
    pub async fn by_signer(
        &self,
        pod_uid: &str,
        signer: &str,
        selector: Option<&LabelSelector>,
        optional: bool,
    ) -> Result<Vec<u8>> {
        let bundles = self.synced(pod_uid).await?;
        let selector = Selector::from_label_selector(selector)
            .map_err(|error| Error::failed(format!("while parsing label selector: {error}")))?;
        let mut chosen = Vec::new();
        for object in bundles.store().list(None) {
            let bundle = object.typed::<ClusterTrustBundle>().map_err(|e| Error::failed(e.to_string()))?;
            let labels = bundle.metadata.labels.clone().unwrap_or_default();
            if bundle.spec.signer_name.as_deref() == Some(signer) && selector.matches(&labels) {
                chosen.push(bundle);
            }
        }
        if chosen.is_empty() && !optional {
            let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
            return Err(Error::failed(none));
        }
        Ok(anchors(chosen.iter().map(|bundle| bundle.spec.trust_bundle.as_str())))
    }

    /// Forgets a pod that is gone: it gets no more notifications.
    pub fn forget(&self, pod_uid: &str) {
        lock(&self.users).remove(pod_uid);
    }

    async fn synced(&self, pod_uid: &str) -> Result<&Arc<Reflector>> {
        lock(&self.users).insert(pod_uid.to_owned());
        let watched = self.watched.get_or_init(|| self.watch());
        let synced = tokio::select! {
            synced = watched.wait_synced() => synced,
            () = self.client.clock().sleep(SYNC_WAIT) => false,
        };
        if synced {
            Ok(watched)
        } else {
            Err(Error::failed("ClusterTrustBundle informer has not yet synced"))
        }
    }

    fn watch(&self) -> Arc<Reflector> {
        let (transport, clock) = (Arc::clone(self.client.transport()), Arc::clone(self.client.clock()));
        let resource = ClusterTrustBundle::RESOURCE;
        let reflector = Arc::new(Reflector::new(resource, ListOptions::default(), transport, clock));
        let (users, objects) = (Arc::clone(&self.users), Arc::clone(&self.objects));
        let handler = move |_: &Change| lock(&users).iter().for_each(|uid| objects.notify(uid));
        reflector.add_handler(&self.stop, Arc::new(handler));
        reflector::spawn(&reflector, self.objects.supervisor(), "trust-bundles", self.stop.clone());
        reflector
    }
}

fn lock(users: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    users.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns each certificate once, in an order that does not depend on the order of the bundles.
fn anchors<'a>(bundles: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut all = BTreeSet::new();
    for bundle in bundles {
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten() {
            all.insert(certificate.to_vec());
        }
    }
    encoded(all)
}

/// Returns a chain of certificates without any text between them.
pub(super) fn reencoded(chain: &str) -> Vec<u8> {
    encoded(CertificateDer::pem_slice_iter(chain.as_bytes()).flatten().map(|c| c.to_vec()))
}

fn encoded(certificates: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut pem = Vec::new();
    for certificate in certificates {
        pem.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
        for line in STANDARD.encode(certificate).as_bytes().chunks(LINE) {
            pem.extend_from_slice(line);
            pem.push(b'\n');
        }
        pem.extend_from_slice(b"-----END CERTIFICATE-----\n");
    }
    pem
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(content: &str) -> String {
        let body = STANDARD.encode(content);
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn anchors_come_once_and_in_one_order() {
        let (a, b) = (pem("aaa"), pem("bbb"));
        let both = format!("{a}{b}");
        assert_eq!(anchors([format!("{b}text between\n{a}").as_str(), a.as_str()]), both.as_bytes());
        assert_eq!(anchors([b.as_str(), a.as_str()]), both.as_bytes());
        assert_eq!(anchors(["no certificate"]), b"");
        let long = pem(&"x".repeat(100));
        let text = String::from_utf8(anchors([long.as_str()])).expect("text");
        assert!(text.lines().all(|line| line.len() <= LINE), "{text}");
    }
}
