//! Bootstrap signer: signs ConfigMap `kube-public/cluster-info` with every bootstrap token, so that the holder of a
//! token can verify the cluster by it.
//!
//! Source: RFC 7515 (detached content) with HS256, as kubeadm checks it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use knarr_api::kind::Kind;
use knarr_client::transport::ListOptions;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Lister, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{for_signing, is_token};
use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "bootstrap-signer-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
const CONTENT: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

async fn run(cx: Arc<Context>) {
    // All events concern the same single object.
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Arc::clone(&cx.clock));
    let selection =
        ListOptions { field_selector: Some(format!("metadata.name={NAME}")), ..ListOptions::default() };
    let maps = cx.informers.selected::<ConfigMap>(selection);
    let secrets = cx.informers.informer::<Secret>();
    let on_map = Arc::clone(&queue);
    maps.add_handler(move |event| {
        if event.object().namespace() == NAMESPACE {
            on_map.add(());
        }
    });
    let on_secret = Arc::clone(&queue);
    secrets.add_handler(move |event| {
        if is_token(event.object()) {
            on_secret.add(());
        }
    });
    if !(maps.wait_synced().await && secrets.wait_synced().await) {
        return;
    }
    let (maps, secrets, stop) = (maps.lister(), secrets.lister(), cx.stop.clone());
    let reconcile = move |()| {
        let (cx, maps, secrets) = (Arc::clone(&cx), maps.clone(), secrets.clone());
        async move { sign(&cx, &maps, &secrets).await }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

async fn sign(cx: &Context, maps: &Lister<ConfigMap>, secrets: &Lister<Secret>) -> Result<()> {
    let Some(map) = maps.get(NAMESPACE, NAME) else { return Ok(()) };
    let tokens = secrets.list_namespace(super::NAMESPACE);
    let Some(data) = signed(&map, &tokens, cx.clock.now()) else { return Ok(()) };
    let next = ConfigMap { data: Some(data), ..ConfigMap::clone(&map) };
    match cx.client.update(&next).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

/// Returns the map's data with current signatures; `None` if the map has them already.
fn signed(map: &ConfigMap, secrets: &[Arc<Secret>], now: Timestamp) -> Option<BTreeMap<String, String>> {
    let data = map.data.as_ref()?;
    let content = data.get(CONTENT)?;
    let mut next: BTreeMap<String, String> =
        data.iter().filter(|(k, _)| !k.starts_with(SIGNATURE)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let tokens = secrets.iter().filter(|s| is_token(s)).filter_map(|s| for_signing(s, now));
    for (id, secret) in tokens {
        let signature = detached_signature(content, &id, &secret);
        next.entry(format!("{SIGNATURE}{id}")).or_insert(signature);
    }
    (next != *data).then_some(next)
}

/// Returns a JSON Web Signature with detached content.
fn detached_signature(content: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let signature = hmac(secret.as_bytes(), message.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Computes HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0u8; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let padded = |byte: u8| block.map(|b| b ^ byte);
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::super::token;
    use super::*;
    use crate::testing::World;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn known_answers() {
        // RFC 4231, test cases 2 and 6.
        let hex = |bytes: [u8; 32]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(
            hex(hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn the_content_is_left_out() {
        let parts = detached_signature("content", "abcdef", "0123456789abcdef");
        let parts: Vec<&str> = parts.split('.').collect();
        assert_eq!((parts.len(), parts[1]), (3, ""));
        assert_eq!(URL_SAFE_NO_PAD.decode(parts[0]).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn signatures_follow_the_tokens() {
        let world = World::new(&[Secret::RESOURCE, ConfigMap::RESOURCE]);
        let metadata = ObjectMeta {
            name: Some(NAME.into()),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        };
        let data = BTreeMap::from([
            (CONTENT.to_owned(), "clusters: []".to_owned()),
            (format!("{SIGNATURE}gone00"), "x..y".to_owned()),
        ]);
        world.api.add(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() });
        world.start(&DESCRIPTOR);
        let keys = || -> Vec<String> {
            let map = world.api.get::<ConfigMap>(NAMESPACE, NAME).unwrap();
            map.data.unwrap().into_keys().collect()
        };
        world.pass(1.0).await;
        assert_eq!(keys(), [CONTENT]);
        world.api.add(&token("abcdef", &[]));
        world.pass(1.0).await;
        assert_eq!(keys(), ["jws-kubeconfig-abcdef", CONTENT]);
        world.api.remove::<Secret>("kube-system", "bootstrap-token-abcdef");
        world.pass(1.0).await;
        assert_eq!(keys(), [CONTENT]);
    }
}
