//! A key service behind a unix socket (KMS v2): it keeps the key that encrypts our data key.
//!
//! Each value is encrypted with AES-GCM under a data key of this process, stored beside it as the service encrypted
//! it. Source: `k8s.io/kms/apis/v2`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::UnixStream;

use super::provider::CipherError;

const MAX_ANSWER: usize = 1 << 20;
/// Data keys known at once.
const MAX_KEYS: usize = 256;
const KEY_BYTES: usize = 32;

pub struct Kms {
    name: String,
    socket: PathBuf,
    timeout: Duration,
    /// The data key in use, and how the service encrypted it.
    current: tokio::sync::Mutex<Option<(Vec<u8>, Sealed)>>,
    /// Data keys by how the service encrypted them.
    known: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// A data key as the service encrypted it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sealed {
    key_id: String,
    encrypted_key: Vec<u8>,
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

    async fn data_key(&self) -> Result<(Vec<u8>, Sealed), CipherError> {
        let mut current = self.current.lock().await;
        if let Some(held) = &*current {
            return Ok(held.clone());
        }
        let mut key = vec![0; KEY_BYTES];
        SystemRandom::new().fill(&mut key).map_err(|_| CipherError::Random)?;
        let mut request = Vec::new();
        field(&mut request, 1, &key);
        field(&mut request, 2, uuid::Uuid::new_v4().to_string().as_bytes());
        let answer = self.call("Encrypt", request).await?;
        let mut sealed = Sealed::default();
        for (number, value) in fields(&answer) {
            match number {
                1 => sealed.encrypted_key = value.to_vec(),
                2 => sealed.key_id = String::from_utf8_lossy(value).into_owned(),
                3 => sealed.annotations.extend(entry(value)),
                _ => {}
            }
        }
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
        let mut request = Vec::new();
        field(&mut request, 1, &sealed.encrypted_key);
        field(&mut request, 2, uuid::Uuid::new_v4().to_string().as_bytes());
        field(&mut request, 3, sealed.key_id.as_bytes());
        for (name, value) in &sealed.annotations {
            field(&mut request, 4, &pair(name, value));
        }
        let answer = self.call("Decrypt", request).await?;
        let key = fields(&answer).into_iter().find(|(n, _)| *n == 1).map(|(_, v)| v.to_vec());
        let key = key.ok_or_else(|| CipherError::Kms("got an empty answer from the KMS plugin".into()))?;
        self.remember(sealed, &key);
        Ok(key)
    }

    /// One gRPC call on a connection of its own: there are few, since data keys are kept.
    async fn call(&self, method: &str, message: Vec<u8>) -> Result<Vec<u8>, CipherError> {
        let failed = |e: &dyn std::fmt::Display| CipherError::Kms(format!("KMS plugin {}: {e}", self.name));
        let exchange = async {
            let stream = UnixStream::connect(&self.socket).await.map_err(|e| failed(&e))?;
            let (mut sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
            tokio::spawn(connection);
            let mut framed = vec![0];
            framed.extend_from_slice(&(u32::try_from(message.len()).unwrap_or(u32::MAX)).to_be_bytes());
            framed.extend_from_slice(&message);
            let request = http::Request::post(format!("http://localhost/v2.KeyManagementService/{method}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(Bytes::from(framed)))
                .map_err(|e| failed(&e))?;
            let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
            let refused = status(response.headers());
            let body =
                Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|e| failed(&e))?;
            let refused = refused.or_else(|| body.trailers().and_then(status));
            if let Some(why) = refused {
                return Err(failed(&why));
            }
            let bytes = body.to_bytes();
            bytes.get(5..).map(<[u8]>::to_vec).ok_or_else(|| failed(&"an answer without a message"))
        };
        tokio::time::timeout(self.timeout, exchange)
            .await
            .map_err(|_| failed(&"context deadline exceeded"))?
    }
}

fn cipher(key: &[u8]) -> Result<LessSafeKey, CipherError> {
    let unbound = UnboundKey::new(&AES_256_GCM, key)
        .map_err(|_| CipherError::KeyLength { got: key.len(), expected: "[32]" })?;
    Ok(LessSafeKey::new(unbound))
}

/// A gRPC failure in headers or trailers.
fn status(headers: &http::HeaderMap) -> Option<String> {
    let code = headers.get("grpc-status")?.to_str().ok()?;
    let message = headers.get("grpc-message").and_then(|m| m.to_str().ok()).unwrap_or("");
    (code != "0").then(|| format!("rpc error: code = {code} desc = {message}"))
}

impl Sealed {
    /// As `EncryptedObject` of upstream: the data, the key's id, the encrypted key, annotations.
    fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        field(&mut out, 1, data);
        field(&mut out, 2, self.key_id.as_bytes());
        field(&mut out, 3, &self.encrypted_key);
        for (name, value) in &self.annotations {
            field(&mut out, 4, &pair(name, value));
        }
        out
    }

    fn decode(stored: &[u8]) -> Option<(Self, Vec<u8>)> {
        let (mut sealed, mut data) = (Self::default(), None);
        for (number, value) in fields(stored) {
            match number {
                1 => data = Some(value.to_vec()),
                2 => sealed.key_id = String::from_utf8_lossy(value).into_owned(),
                3 => sealed.encrypted_key = value.to_vec(),
                4 => sealed.annotations.extend(entry(value)),
                _ => {}
            }
        }
        Some((sealed, data?))
    }
}

/// Appends a length-delimited field.
fn field(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = value.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(value);
}

fn pair(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    field(&mut out, 1, name.as_bytes());
    field(&mut out, 2, value);
    out
}

fn entry(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let found = fields(bytes);
    let value = |n: u64| found.iter().find(|(number, _)| *number == n).map(|(_, v)| v.to_vec());
    Some((String::from_utf8(value(1)?).ok()?, value(2).unwrap_or_default()))
}

/// The length-delimited fields of a message; others are passed over, and what cannot be read ends it.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while let Some((tag, rest)) = varint(bytes) {
        bytes = match tag & 7 {
            0 => match varint(rest) {
                Some((_, rest)) => rest,
                None => break,
            },
            2 => {
                let Some((length, rest)) = varint(rest) else { break };
                let Some((value, rest)) = usize::try_from(length).ok().and_then(|n| rest.split_at_checked(n))
                else {
                    break;
                };
                found.push((tag >> 3, value));
                rest
            }
            _ => break,
        };
    }
    found
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use hyper::service::service_fn;
    use tokio::net::UnixListener;

    /// Encrypts by turning bits over.
    async fn answer(
        request: http::Request<hyper::body::Incoming>,
    ) -> Result<http::Response<impl http_body::Body<Data = Bytes, Error = std::io::Error>>, std::io::Error>
    {
        let encrypts = request.uri().path().ends_with("/Encrypt");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let given = fields(&body[5..]).into_iter().find(|(n, _)| *n == 1).unwrap().1.to_vec();
        let turned: Vec<u8> = given.iter().map(|b| !b).collect();
        let mut message = Vec::new();
        field(&mut message, 1, &turned);
        if encrypts {
            field(&mut message, 2, b"key-1");
            field(&mut message, 3, &pair("version.example.org", b"1"));
        }
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(&message);
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames =
            [Ok(http_body::Frame::data(Bytes::from(framed))), Ok(http_body::Frame::trailers(trailers))];
        Ok(http::Response::new(StreamBody::new(futures_util::stream::iter(frames))))
    }

    #[tokio::test]
    async fn a_service_keeps_the_key_of_our_key() {
        let socket = std::env::temp_dir().join(format!("kms-{}.sock", uuid::Uuid::new_v4()));
        let listener = UnixListener::bind(&socket).unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(
                    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service_fn(answer)),
                );
            }
        });
        let open = || Kms::new("k".into(), socket.clone(), Duration::from_secs(3));
        let kms = open();
        let stored = kms.encrypt(b"secret", b"/registry/a").await.unwrap();
        assert!(!stored.windows(6).any(|w| w == b"secret"));
        assert_eq!(kms.decrypt(&stored, b"/registry/a").await.unwrap(), b"secret");
        assert!(kms.decrypt(&stored, b"/registry/b").await.is_err());
        // After a restart the service is asked for the key.
        assert_eq!(open().decrypt(&stored, b"/registry/a").await.unwrap(), b"secret");
        serving.abort();
        std::fs::remove_file(&socket).unwrap();
        let error = open().decrypt(&stored, b"/registry/a").await.unwrap_err();
        assert!(error.to_string().starts_with("KMS plugin k"), "{error}");
    }

    #[test]
    fn broken_messages_are_no_harm() {
        for bytes in [&[][..], &[0x0a], &[0x0a, 0xff], &[0xff; 20], &[0x0a, 2, 1]] {
            assert!(fields(bytes).is_empty(), "{bytes:?}");
            assert!(Sealed::decode(bytes).is_none());
        }
    }
}
