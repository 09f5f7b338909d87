//! Keys and certificates for pods: the kubelet creates a PodCertificateRequest per projection, watches it until
//! its signer has answered, and creates a new one when the certificate is to be renewed.
//!
//! Source: KEP-4317; `k8s.io/kubernetes/pkg/kubelet/podcertificate`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, PodCertificateProjection, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::reflector::{self, Change, Reflector};
use knarr_client::{Client, ListOptions};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SignatureAlgorithm};
use tokio_util::sync::CancellationToken;

use super::error::{Error, Result};
use super::object_source::ObjectSource;
use super::trust_bundles::reencoded;

/// A request that does not appear in the watch for this long counts as deleted.
const LOST_AFTER: Duration = Duration::from_secs(600);
/// The upper bound of the random delay by which certificates of many pods are renewed at different times.
const MAX_JITTER: Duration = Duration::from_secs(300);
const NOT_ISSUED: &str = "credential bundle is not issued yet";

/// The key and certificate chain of a projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// PKCS#8 as PEM.
    pub key: Vec<u8>,
    pub chain: Vec<u8>,
    pub renew_after: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    pod_uid: String,
    volume: String,
    source: usize,
}

#[derive(Debug, Clone)]
struct Asked {
    key: Vec<u8>,
    request: ObjectKey,
    lost_at: Timestamp,
}

#[derive(Debug, Clone)]
struct Issued {
    key: Vec<u8>,
    chain: Vec<u8>,
    renew_at: Timestamp,
}

#[derive(Debug, Clone, Default)]
struct Held {
    asked: Option<Asked>,
    issued: Option<Issued>,
    /// The final refusal of the signer.
    refused: Option<String>,
}

/// The credentials of all pods of this node.
pub struct PodCertificates {
    client: Client,
    objects: Arc<ObjectSource>,
    stop: CancellationToken,
    requests: OnceLock<Arc<Reflector>>,
    held: Mutex<BTreeMap<Slot, Held>>,
}

/// The position of a projection in its pod.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub volume: &'a str,
    pub source: usize,
}

impl PodCertificates {
    pub fn new(client: Client, objects: Arc<ObjectSource>, stop: CancellationToken) -> Self {
        Self { client, objects, stop, requests: OnceLock::new(), held: Mutex::default() }
    }

    /// Returns the projection's credential; requests it and its renewal as needed.
    pub async fn get(
        &self,
        pod: &Pod,
        place: Place<'_>,
        projection: &PodCertificateProjection,
    ) -> Result<Credential> {
        let slot =
            Slot { pod_uid: pod.uid().to_owned(), volume: place.volume.to_owned(), source: place.source };
        let mut held = self.lock().get(&slot).cloned().unwrap_or_default();
        let now = self.client.clock().now();
        self.take_answer(pod, &mut held, now);
        let due = held.issued.as_ref().is_none_or(|issued| now >= issued.renew_at);
        if held.refused.is_none() && held.asked.is_none() && due {
            match self.ask(pod, projection, now).await {
                Ok(asked) => held.asked = Some(asked),
                Err(error) if held.issued.is_none() => return Err(error),
                Err(error) => tracing::warn!(pod = %pod.key(), %error, "pod certificate not renewed"),
            }
        }
        self.lock().insert(slot, held.clone());
        answer(held, now)
    }

    /// Forgets the credentials of a pod that is gone.
    pub fn forget(&self, pod_uid: &str) {
        self.lock().retain(|slot, _| slot.pod_uid != pod_uid);
    }

    /// Checks whether the signer has answered.
    fn take_answer(&self, pod: &Pod, held: &mut Held, now: Timestamp) {
        let Some(asked) = &held.asked else { return };
        let requests = self.requests(pod);
        let request = requests
            .store()
            .get(&asked.request)
            .and_then(|object| object.typed::<PodCertificateRequest>().ok());
        match request {
            Some(request) => {
                if let Some(verdict) = verdict(&request) {
                    match verdict {
                        Ok((chain, renew_at)) => {
                            let jitter = MAX_JITTER.mul_f64(fastrand::f64());
                            let renew_at = renew_at.checked_add(jitter).unwrap_or(renew_at);
                            held.issued = Some(Issued { key: asked.key.clone(), chain, renew_at });
                        }
                        Err(text) => held.refused = Some(text),
                    }
                    held.asked = None;
                }
            }
            None if now >= asked.lost_at => held.asked = None,
            None => {}
        }
    }

    async fn ask(&self, pod: &Pod, projection: &PodCertificateProjection, now: Timestamp) -> Result<Asked> {
        self.requests(pod);
        let spec = pod.spec.clone().unwrap_or_default();
        let (node_name, account) = (
            spec.node_name.unwrap_or_default(),
            spec.service_account_name.filter(|a| !a.is_empty()).unwrap_or_else(|| "default".to_owned()),
        );
        let failed = |what: &'static str| move |error| Error::failed(format!("while {what}: {error}"));
        let service_account: ServiceAccount =
            self.client.get(pod.namespace(), &account).await.map_err(failed("fetching service account"))?;
        let node: Node = self.client.get("", &node_name).await.map_err(failed("getting node object"))?;
        let (key, stub) = key_and_stub(&projection.key_type)?;
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                namespace: Some(pod.namespace().to_owned()),
                generate_name: Some("req-".to_owned()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: pod.name().to_owned(),
                    uid: pod.uid().to_owned(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: projection.signer_name.clone(),
                pod_name: pod.name().to_owned(),
                pod_uid: pod.uid().to_owned(),
                service_account_name: account,
                service_account_uid: service_account.uid().to_owned(),
                node_uid: node.uid().to_owned(),
                node_name,
                max_expiration_seconds: projection.max_expiration_seconds,
                stub_pkc_s10_request: ByteString(stub),
                unverified_user_annotations: projection.user_annotations.clone(),
            },
            ..PodCertificateRequest::default()
        };
        let made = self.client.create(&request).await;
        let made = made.map_err(failed("creating initial PodCertificateRequest: while creating on API"))?;
        let lost_at = now.checked_add(LOST_AFTER).unwrap_or(now);
        Ok(Asked { key, request: ObjectKey::new(pod.namespace(), made.name()), lost_at })
    }

    /// Returns the reflector of this node's requests, which is started at the first call.
    fn requests(&self, pod: &Pod) -> &Arc<Reflector> {
        self.requests.get_or_init(|| {
            let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
            let selection = ListOptions {
                field_selector: Some(format!("spec.nodeName={node}")),
                ..ListOptions::default()
            };
            let (transport, clock) = (Arc::clone(self.client.transport()), Arc::clone(self.client.clock()));
            let resource = PodCertificateRequest::RESOURCE;
            let reflector = Arc::new(Reflector::new(resource, selection, transport, clock));
            let objects = Arc::clone(&self.objects);
            let handler = move |change: &Change| {
                let (Change::Added(object) | Change::Updated { new: object, .. } | Change::Deleted(object)) =
                    change;
                if let Ok(request) = object.typed::<PodCertificateRequest>() {
                    objects.notify(&request.spec.pod_uid);
                }
            };
            reflector.add_handler(&self.stop, Arc::new(handler));
            reflector::spawn(&reflector, self.objects.supervisor(), "pod-certificates", self.stop.clone());
            reflector
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Slot, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(held: Held, now: Timestamp) -> Result<Credential> {
    if let Some(text) = held.refused {
        return Err(Error::Failed(text));
    }
    let issued = held.issued.ok_or_else(|| Error::failed(NOT_ISSUED))?;
    let left = issued.renew_at.duration_since(now).max(SignedDuration::ZERO).unsigned_abs();
    Ok(Credential { key: issued.key, chain: issued.chain, renew_after: left })
}

type Verdict = std::result::Result<(Vec<u8>, Timestamp), String>;

/// Returns the chain and when to renew it, or the text of the refusal; `None` while the signer has not decided.
fn verdict(request: &PodCertificateRequest) -> Option<Verdict> {
    let status = request.status.as_ref()?;
    for condition in status.conditions.iter().flatten() {
        let refused = |how: &str| {
            let (reason, message) = (&condition.reason, &condition.message);
            format!("PodCertificateRequest was permanently {how}: reason={reason:?} message={message:?}")
        };
        match condition.type_.as_str() {
            "Denied" => return Some(Err(refused("denied"))),
            "Failed" => return Some(Err(refused("failed"))),
            "Issued" => {
                let chain = reencoded(status.certificate_chain.as_deref().unwrap_or(""));
                return Some(Ok((chain, status.begin_refresh_at.as_ref()?.0)));
            }
            _ => {}
        }
    }
    None
}

/// Returns a new key as PEM, and an empty certificate request that proves its possession.
fn key_and_stub(key_type: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    let algorithm: &'static SignatureAlgorithm = match key_type {
        "ECDSAP256" => &rcgen::PKCS_ECDSA_P256_SHA256,
        "ECDSAP384" => &rcgen::PKCS_ECDSA_P384_SHA384,
        "ED25519" => &rcgen::PKCS_ED25519,
        other => return Err(Error::failed(format!("while generating keypair: unknown key type {other:?}"))),
    };
    let failed = |error: rcgen::Error| Error::failed(format!("while generating keypair: {error}"));
    let key = KeyPair::generate_for(algorithm).map_err(failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let stub = params.serialize_request(&key).map_err(failed)?;
    Ok((key.serialize_pem().into_bytes(), stub.der().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(condition: Option<&str>) -> PodCertificateRequest {
        let conditions: Vec<_> = condition
            .iter()
            .map(|c| {
                json!({"type": c, "status": "True", "reason": "Why", "message": "so",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": {}, "spec": {},
            "status": {"conditions": conditions, "beginRefreshAt": "2026-01-02T00:00:00Z",
                "certificateChain": "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n"},
        }))
        .expect("a request")
    }

    #[test]
    fn signers_answers() {
        assert_eq!(verdict(&request(None)), None);
        let denied = "PodCertificateRequest was permanently denied: reason=\"Why\" message=\"so\"";
        assert_eq!(verdict(&request(Some("Denied"))), Some(Err(denied.to_owned())));
        let (chain, renew_at) = verdict(&request(Some("Issued"))).expect("a verdict").expect("a chain");
        assert!(chain.starts_with(b"-----BEGIN CERTIFICATE-----\nYWJj\n"));
        assert_eq!(renew_at.to_string(), "2026-01-02T00:00:00Z");
    }

    #[test]
    fn keys_of_each_type() {
        for key_type in ["ECDSAP256", "ECDSAP384", "ED25519"] {
            let (key, stub) = key_and_stub(key_type).expect("a key");
            assert!(key.starts_with(b"-----BEGIN PRIVATE KEY-----"), "{key_type}");
            assert_eq!(stub.first(), Some(&0x30), "{key_type}");
        }
        assert!(key_and_stub("RSA3072").is_err());
    }
}
