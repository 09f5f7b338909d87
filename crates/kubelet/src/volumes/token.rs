//! Service account tokens for pods: requested through TokenRequest, cached, and renewed at four fifths of their
//! life.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/token`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;

use super::error::{Error, Result};

/// The lifetime, in seconds, of tokens for which none is requested.
const DEFAULT_SECONDS: i64 = 3600;
/// Tokens are renewed at this age at the latest.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
const MAX_JITTER: Duration = Duration::from_secs(10);
/// The pause before a failed renewal is tried again while the old token is valid.
const RETRY: Duration = Duration::from_secs(10);

/// A token, with what a volume needs to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub token: String,
    pub expires: Timestamp,
    pub renew_after: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod_uid: String,
    service_account: String,
    audience: Option<String>,
    seconds: i64,
}

#[derive(Clone)]
struct Held {
    token: String,
    expires: Timestamp,
    renew_at: Timestamp,
}

impl Held {
    fn token(&self, renew_after: Duration) -> Token {
        Token { token: self.token.clone(), expires: self.expires, renew_after }
    }
}

/// The tokens of all pods of this node.
pub struct Tokens {
    client: Client,
    clock: Arc<dyn Clock>,
    held: Mutex<BTreeMap<Key, Held>>,
}

/// Returns when a token is to be renewed.
fn renew_at(expires: Timestamp, life: Duration, jitter: Duration) -> Timestamp {
    let back = |t: Timestamp, by: Duration| t.checked_sub(by).unwrap_or(Timestamp::MIN);
    let issued = back(expires, life);
    let by_age = issued.checked_add(MAX_AGE.saturating_sub(jitter)).unwrap_or(Timestamp::MAX);
    back(expires, life / 5 + jitter).min(by_age)
}

fn until(later: Timestamp, now: Timestamp) -> Duration {
    later.duration_since(now).max(SignedDuration::ZERO).unsigned_abs()
}

impl Tokens {
    pub fn new(client: Client) -> Self {
        let clock = Arc::clone(client.clock());
        Self { client, clock, held: Mutex::default() }
    }

    /// Returns a token of the pod's service account that is bound to the pod.
    pub async fn get(&self, pod: &Pod, audience: Option<&str>, seconds: Option<i64>) -> Result<Token> {
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref());
        let key = Key {
            pod_uid: pod.uid().to_owned(),
            service_account: account.filter(|a| !a.is_empty()).unwrap_or("default").to_owned(),
            audience: audience.map(str::to_owned),
            seconds: seconds.unwrap_or(DEFAULT_SECONDS),
        };
        let now = self.clock.now();
        let old = self.lock().get(&key).cloned();
        if let Some(held) = old.as_ref().filter(|held| now < held.renew_at) {
            return Ok(held.token(until(held.renew_at, now)));
        }
        match self.request(pod, &key).await {
            Ok(held) => {
                let token = held.token(until(held.renew_at, now));
                self.lock().insert(key, held);
                Ok(token)
            }
            Err(error) => match old {
                Some(held) if now < held.expires => {
                    tracing::warn!(pod = %pod.key(), %error, "token not renewed");
                    Ok(held.token(RETRY))
                }
                Some(_) => Err(Error::failed(format!("token expired and refresh failed: {error}"))),
                None => Err(Error::failed(format!("failed to fetch token: {error}"))),
            },
        }
    }

    async fn request(&self, pod: &Pod, key: &Key) -> knarr_client::Result<Held> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(key.audience.iter().cloned().collect()),
                expiration_seconds: Some(key.seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.name().to_owned()),
                    uid: Some(pod.uid().to_owned()),
                }),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let resource = ServiceAccount::RESOURCE;
        let answer: TokenRequest = self
            .client
            .create_subresource(&resource, pod.namespace(), &key.service_account, "token", &request)
            .await?;
        let incomplete = || {
            knarr_client::Error::Protocol("the answer to a token request has no token or no end".to_owned())
        };
        let status = answer.status.ok_or_else(incomplete)?;
        let expires = status.expiration_timestamp.ok_or_else(incomplete)?.0;
        let token = status.token.ok_or_else(incomplete)?;
        let seconds = answer.spec.and_then(|s| s.expiration_seconds).unwrap_or(key.seconds);
        let life = Duration::from_secs(seconds.clamp(1, i64::from(u32::MAX)).unsigned_abs());
        let jitter = MAX_JITTER.mul_f64(fastrand::f64());
        Ok(Held { token, expires, renew_at: renew_at(expires, life, jitter) })
    }

    /// Forgets the tokens of a pod that is gone.
    pub fn forget(&self, pod_uid: &str) {
        self.lock().retain(|key, _| key.pod_uid != pod_uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_time() {
        let hour = Duration::from_secs(3600);
        let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
        let table = [
            (hour, Duration::ZERO, 2880),
            (hour, Duration::from_secs(10), 2870),
            // A token that is valid for a year is renewed at the age of a day.
            (hour * 24 * 365, Duration::ZERO, 24 * 3600),
            (hour * 24 * 365, Duration::from_secs(10), 24 * 3600 - 10),
        ];
        for (life, jitter, want) in table {
            let expires = at(0).checked_add(life).unwrap();
            assert_eq!(renew_at(expires, life, jitter), at(want), "{life:?} {jitter:?}");
        }
    }
}
