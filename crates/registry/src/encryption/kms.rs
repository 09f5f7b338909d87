//! A key service (KMS v2) behind a unix socket. It holds the key that encrypts our data keys.
//!
//! Each value is encrypted with AES-GCM under a data key of this process. The data key, encrypted by the service, is
//! stored with the value. Source: `k8s.io/kms/apis/v2`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use knarr_grpc::Connection;
use prost::Message;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::provider::CipherError;

/// The maximum number of cached data keys.
const MAX_KEYS: usize = 256;
const KEY_BYTES: usize = 32;

pub struct Kms {
    name: String,
    socket: PathBuf,
    timeout: Duration,
    /// The current data key, in plain and encrypted by the service.
    current: tokio::sync::Mutex<Option<(Vec<u8>, Sealed)>>,
    /// The known data keys, by their encrypted form.
    known: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// A data key encrypted by the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sealed {
    key_id: String,
    encrypted_key: Vec<u8>,
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

impl StatusResponse {
    /// Checks the status of a service; `Err` lists what is wrong.
    fn verdict(&self, name: &str) -> Result<(), String> {
        let mut wrong = Vec::new();
        if self.healthz != "ok" {
            wrong.push(format!("got unexpected healthz status: {}", self.healthz));
        }
        if !matches!(&*self.version, "v2" | "v2beta1") {
            wrong.push(format!("expected KMSv2 API version v2, got {}", self.version));
        }
        if self.key_id.is_empty() {
            wrong.push("got invalid KMSv2 KeyID: keyID is empty".to_owned());
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!("kmsv2 Provider {name} is not healthy, error: {}", wrong.join(", ")))
    }
}

#[derive(Clone, PartialEq, Message)]
struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

/// The stored form of a value.
#[derive(Clone, PartialEq, Message)]
struct EncryptedObject {
    #[prost(bytes = "vec", optional, tag = "1")]
    encrypted_data: Option<Vec<u8>>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    encrypted_key: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    annotations: BTreeMap<String, Vec<u8>>,
}

impl Kms {
    pub fn new(name: String, socket: PathBuf, timeout: Duration) -> Self {
        Self { name, socket, timeout, current: tokio::sync::Mutex::default(), known: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub async fn encrypt(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        let (key, sealed) = self.data_key().await?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| CipherError::Random)?;
        let mut data = plain.to_vec();
        cipher(&key)?
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(context), &mut data)
            .map_err(|_| CipherError::Wrong)?;
        Ok(sealed.encode(&[&nonce[..], &data].concat()))
    }

    pub async fn decrypt(&self, stored: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        let (sealed, data) = Sealed::decode(stored).ok_or(CipherError::TooShort)?;
        let key = self.unseal(&sealed).await?;
        let (nonce, data) = data.split_at_checked(NONCE_LEN).ok_or(CipherError::TooShort)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| CipherError::TooShort)?;
        let mut data = data.to_vec();
        let plain = cipher(&key)?
            .open_in_place(nonce, Aad::from(context), &mut data)
            .map_err(|_| CipherError::Wrong)?
            .len();
        data.truncate(plain);
        Ok(data)
    }

    /// Requests the service's status; `Err` lists what is wrong.
    pub async fn health(&self) -> Result<(), String> {
        let asked = self.call("/v2.KeyManagementService/Status", &StatusRequest {}).await;
        let status: StatusResponse = asked.map_err(|error| {
            let name = &self.name;
            format!("failed to perform status section of the healthz check for KMS Provider {name}, error: {error}")
        })?;
        status.verdict(&self.name)
    }

    async fn data_key(&self) -> Result<(Vec<u8>, Sealed), CipherError> {
        let mut current = self.current.lock().await;
        if let Some(held) = &*current {
            return Ok(held.clone());
        }
        let mut key = vec![0; KEY_BYTES];
        SystemRandom::new().fill(&mut key).map_err(|_| CipherError::Random)?;
        let request = EncryptRequest { plaintext: key.clone(), uid: uuid::Uuid::new_v4().to_string() };
        let answer: EncryptResponse = self.call("/v2.KeyManagementService/Encrypt", &request).await?;
        let sealed = Sealed {
            key_id: answer.key_id,
            encrypted_key: answer.ciphertext,
            annotations: answer.annotations,
        };
        if sealed.encrypted_key.is_empty() || sealed.key_id.is_empty() {
            return Err(CipherError::Kms("got an empty answer from the KMS plugin".into()));
        }
        self.remember(&sealed, &key);
        *current = Some((key.clone(), sealed.clone()));
        Ok((key, sealed))
    }

    fn remember(&self, sealed: &Sealed, key: &[u8]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KEYS {
            known.clear();
        }
        known.insert(sealed.encrypted_key.clone(), key.to_vec());
    }

    async fn unseal(&self, sealed: &Sealed) -> Result<Vec<u8>, CipherError> {
        let held =
            self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&sealed.encrypted_key).cloned();
        if let Some(key) = held {
            return Ok(key);
        }
        let request = DecryptRequest {
            ciphertext: sealed.encrypted_key.clone(),
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: sealed.key_id.clone(),
            annotations: sealed.annotations.clone(),
        };
        let answer: DecryptResponse = self.call("/v2.KeyManagementService/Decrypt", &request).await?;
        let key = answer.plaintext;
        if key.is_empty() {
            return Err(CipherError::Kms("got an empty answer from the KMS plugin".into()));
        }
        self.remember(sealed, &key);
        Ok(key)
    }

    /// Makes one call on a new connection. Calls are rare, because data keys are cached.
    async fn call<A: Message + Default>(&self, path: &str, message: &impl Message) -> Result<A, CipherError> {
        let failed = |e: &dyn std::fmt::Display| CipherError::Kms(format!("KMS plugin {}: {e}", self.name));
        let exchange = async { Connection::unix(&self.socket).await?.unary(path, message).await };
        tokio::time::timeout(self.timeout, exchange)
            .await
            .map_err(|_| failed(&"context deadline exceeded"))?
            .map_err(|e| failed(&e))
    }
}

fn cipher(key: &[u8]) -> Result<LessSafeKey, CipherError> {
    let unbound = UnboundKey::new(&AES_256_GCM, key)
        .map_err(|_| CipherError::KeyLength { got: key.len(), expected: "[32]" })?;
    Ok(LessSafeKey::new(unbound))
}

impl Sealed {
    fn encode(&self, data: &[u8]) -> Vec<u8> {
        EncryptedObject {
            encrypted_data: Some(data.to_vec()),
            key_id: self.key_id.clone(),
            encrypted_key: self.encrypted_key.clone(),
            annotations: self.annotations.clone(),
        }
        .encode_to_vec()
    }

    fn decode(stored: &[u8]) -> Option<(Self, Vec<u8>)> {
        let object = EncryptedObject::decode(stored).ok()?;
        let sealed = Self {
            key_id: object.key_id,
            encrypted_key: object.encrypted_key,
            annotations: object.annotations,
        };
        Some((sealed, object.encrypted_data?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_grpc::{Answer, serve};
    use tokio::net::UnixListener;

    /// A fake service that encrypts by inverting bits.
    async fn answer(path: String, message: bytes::Bytes) -> Answer {
        let turned = |bytes: &[u8]| bytes.iter().map(|b| !b).collect::<Vec<u8>>();
        if path.ends_with("/Status") {
            let (version, healthz, key_id) = ("v2".into(), "ok".into(), "key-1".into());
            return Answer::new(Ok(StatusResponse { version, healthz, key_id }));
        }
        if path.ends_with("/Decrypt") {
            let request = DecryptRequest::decode(message).unwrap();
            assert_eq!(request.annotations["version.example.org"], b"1");
            return Answer::new(Ok(DecryptResponse { plaintext: turned(&request.ciphertext) }));
        }
        let request = EncryptRequest::decode(message).unwrap();
        Answer::new(Ok(EncryptResponse {
            ciphertext: turned(&request.plaintext),
            key_id: "key-1".into(),
            annotations: BTreeMap::from([("version.example.org".into(), b"1".to_vec())]),
        }))
    }

    #[tokio::test]
    async fn a_service_keeps_the_key_of_our_key() {
        let socket = std::env::temp_dir().join(format!("kms-{}.sock", uuid::Uuid::new_v4()));
        let listener = UnixListener::bind(&socket).unwrap();
        let serving = tokio::spawn(serve(listener, answer));
        let open = || Kms::new("k".into(), socket.clone(), Duration::from_secs(3));
        let kms = open();
        let stored = kms.encrypt(b"secret", b"/registry/a").await.unwrap();
        assert!(!stored.windows(6).any(|w| w == b"secret"));
        assert_eq!(kms.decrypt(&stored, b"/registry/a").await.unwrap(), b"secret");
        assert!(kms.decrypt(&stored, b"/registry/b").await.is_err());
        // After a restart the service must decrypt the data key.
        assert_eq!(open().decrypt(&stored, b"/registry/a").await.unwrap(), b"secret");
        assert_eq!(kms.health().await, Ok(()));
        serving.abort();
        std::fs::remove_file(&socket).unwrap();
        let error = open().decrypt(&stored, b"/registry/a").await.unwrap_err();
        assert!(error.to_string().starts_with("KMS plugin k"), "{error}");
        let ill = kms.health().await.unwrap_err();
        assert!(
            ill.starts_with("failed to perform status section of the healthz check for KMS Provider k,"),
            "{ill}"
        );
    }

    #[test]
    fn a_service_has_to_say_that_it_is_well() {
        let verdict_of = |version: &str, healthz: &str, key_id: &str| {
            StatusResponse { version: version.into(), healthz: healthz.into(), key_id: key_id.into() }
                .verdict("k")
        };
        assert_eq!(verdict_of("v2beta1", "ok", "1"), Ok(()));
        for (version, healthz, key_id, why) in [
            ("v2", "sealed", "1", "got unexpected healthz status: sealed"),
            ("v1", "ok", "1", "expected KMSv2 API version v2, got v1"),
            ("v2", "ok", "", "got invalid KMSv2 KeyID: keyID is empty"),
        ] {
            let expected = format!("kmsv2 Provider k is not healthy, error: {why}");
            assert_eq!(verdict_of(version, healthz, key_id), Err(expected));
        }
    }

    #[test]
    fn broken_messages_are_no_harm() {
        for bytes in [&[][..], &[0x0a], &[0x0a, 0xff], &[0xff; 20], &[0x0a, 2, 1]] {
            assert!(Sealed::decode(bytes).is_none());
        }
    }
}
