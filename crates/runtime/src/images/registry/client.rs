//! A client for one repository of one registry: manifests and blobs, with its authorization.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RANGE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode, Uri};
use hyper::body::Incoming;

use super::super::credentials::Credential;
use super::super::digest::Digest;
use super::super::error::ContentError;
use super::super::oci::{DOCKER_LIST, DOCKER_MANIFEST, MAX_MANIFEST_BYTES, OCI_INDEX, OCI_MANIFEST};
use super::super::reference::Reference;
use super::RegistryError;
use super::auth::{authorize, parse_challenges};
use super::http::{Call, HttpClient, read_body, server_message};
use super::mirror::Mirror;

/// The number of attempts before a request fails.
pub const MAX_ATTEMPTS: u32 = 4;
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// A client for one repository.
pub struct RegistryClient {
    http: HttpClient,
    reference: Reference,
    credential: Option<Credential>,
    /// `scheme://host[:port]`; for a mirror, with its path.
    base: String,
    /// Names the registry whose images are requested, for a mirror.
    query: String,
    /// The value that answered the last challenge.
    authorization: Mutex<Option<HeaderValue>>,
}

/// A manifest or index as the registry returned it.
pub struct Fetched {
    pub bytes: Vec<u8>,
    pub media_type: String,
    pub digest: Digest,
}

impl RegistryClient {
    pub fn new(http: HttpClient, reference: &Reference, credential: Option<Credential>) -> RegistryClient {
        let host = match reference.host() {
            // Docker's images are named after one host and served by another.
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        let base = format!("{}://{host}", http.scheme(host));
        RegistryClient {
            http,
            reference: reference.clone(),
            credential,
            base,
            query: String::new(),
            authorization: Mutex::default(),
        }
    }

    /// Returns a client that requests the image from a mirror. Credentials are sent only to their own registry.
    pub fn of_mirror(http: HttpClient, reference: &Reference, mirror: &Mirror) -> RegistryClient {
        RegistryClient {
            base: mirror.base().to_owned(),
            query: format!("?ns={}", reference.host()),
            ..RegistryClient::new(http, reference, None)
        }
    }

    fn url(&self, kind: &str, identifier: &str) -> Result<Uri, RegistryError> {
        let (base, path, query) = (&self.base, self.reference.path(), &self.query);
        let text = format!("{base}/v2/{path}/{kind}/{identifier}{query}");
        text.parse().map_err(|_| RegistryError::Protocol(format!("unusable address {text:?}")))
    }

    /// Fetches a manifest by tag or digest; verifies the digest if it was requested by digest.
    pub async fn manifest(&self, identifier: &str) -> Result<Fetched, RegistryError> {
        let mut call = Call::get(self.url("manifests", identifier)?);
        let accept = [DOCKER_MANIFEST, DOCKER_LIST, OCI_MANIFEST, OCI_INDEX].join(", ");
        if let Ok(accept) = HeaderValue::from_str(&accept) {
            call.headers.insert(ACCEPT, accept);
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.manifest_once(call.clone(), identifier).await {
                Err(error) if error.is_transient() && attempt < MAX_ATTEMPTS => pause(attempt, &error).await,
                result => return result,
            }
        }
    }

    async fn manifest_once(&self, call: Call, identifier: &str) -> Result<Fetched, RegistryError> {
        let (call, response) = self.send(call).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                let separator = if identifier.contains(':') { '@' } else { ':' };
                let name = format!("{}{separator}{identifier}", self.reference.repository());
                return Err(RegistryError::NotFound(name));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(denied(response).await),
            _ => return Err(call.unexpected(response).await),
        }
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        let media_type = media_type.split(';').next().unwrap_or("").trim().to_owned();
        let body = read_body(response.into_body(), MAX_MANIFEST_BYTES).await.map_err(|e| call.failed(e))?;
        let bytes = body.ok_or(RegistryError::TooLarge {
            what: format!("manifest {identifier}"),
            limit: MAX_MANIFEST_BYTES,
        })?;
        let digest = Digest::of(&bytes);
        match identifier.parse::<Digest>() {
            Ok(expected) if expected != digest => {
                return Err(ContentError::Mismatch { expected, actual: digest }.into());
            }
            // Either it was requested by tag, or the digest matches.
            _ => {}
        }
        Ok(Fetched { bytes, media_type, digest })
    }

    /// Starts fetching a blob from byte `from` on. The result contains the real start: 0 if the server does not
    /// support ranges.
    pub async fn blob(
        &self,
        digest: &Digest,
        from: u64,
    ) -> Result<(Call, u64, Response<Incoming>), RegistryError> {
        let mut call = Call::get(self.url("blobs", &digest.to_string())?);
        if from > 0 {
            let range = HeaderValue::from_str(&format!("bytes={from}-"));
            call.headers.insert(RANGE, range.map_err(|e| RegistryError::Protocol(e.to_string()))?);
        }
        let (call, response) = self.send(call).await?;
        match response.status() {
            StatusCode::OK => Ok((call, 0, response)),
            StatusCode::PARTIAL_CONTENT if from > 0 => Ok((call, from, response)),
            StatusCode::NOT_FOUND => {
                Err(RegistryError::NotFound(format!("{}@{digest}", self.reference.repository())))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(denied(response).await),
            _ => Err(call.unexpected(response).await),
        }
    }

    /// Sends a request with the known authorization, and once more with a new one if the registry challenges
    /// it.
    async fn send(&self, call: Call) -> Result<(Call, Response<Incoming>), RegistryError> {
        let known = self.known_authorization();
        let (sent, response) = self.http.send(with_authorization(&call, known.as_ref())).await?;
        if response.status() != StatusCode::UNAUTHORIZED || sent.url.authority() != call.url.authority() {
            return Ok((sent, response));
        }
        let challenges = parse_challenges(
            response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()),
        );
        if challenges.is_empty() {
            return Ok((sent, response));
        }
        let plain = call.url.scheme_str() == Some("http");
        let repository = self.reference.path();
        let fresh = authorize(&self.http, &challenges, self.credential.as_ref(), repository, plain).await?;
        // A second challenge to this same authorization is final.
        if known.as_ref() == Some(&fresh) {
            return Ok((sent, response));
        }
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(fresh.clone());
        self.http.send(with_authorization(&call, Some(&fresh))).await
    }

    fn known_authorization(&self) -> Option<HeaderValue> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn with_authorization(call: &Call, value: Option<&HeaderValue>) -> Call {
    let mut call = call.clone();
    if let Some(value) = value {
        call.headers.insert(AUTHORIZATION, value.clone());
    }
    call
}

async fn denied(response: Response<Incoming>) -> RegistryError {
    let status = response.status();
    let message = server_message(response.into_body()).await;
    RegistryError::Denied(match message {
        Some(message) => format!("server message: {message}"),
        None => format!("unexpected status {status}"),
    })
}

/// Waits before another attempt, longer each time.
pub async fn pause(attempt: u32, error: &RegistryError) {
    let wait = FIRST_BACKOFF.saturating_mul(1 << attempt.min(16)).min(MAX_BACKOFF);
    tracing::debug!(%error, attempt, wait_ms = wait.as_millis() as u64, "registry request failed, trying again");
    tokio::time::sleep(wait).await;
}
