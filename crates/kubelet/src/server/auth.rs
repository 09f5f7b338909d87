//! Who asks, and whether they may: client certificates, TokenReview and SubjectAccessReview.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/server/auth.go`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long answers of the API server are believed; upstream's defaults.
const TOKEN_TTL: Duration = Duration::from_secs(120);
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Answers kept; older ones are forgotten.
const CACHE: usize = 1024;
/// The identity that the API server itself comes with.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const MASTERS: &str = "system:masters";

/// Somebody who is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// From a client certificate, which the TLS handshake has verified.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().find_map(|a| a.as_str().ok())?.to_owned();
        let groups = subject.iter_organization().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
        Some(Self { name, groups, ..Self::default() })
    }

    /// Who needs no asking: the API server, and administrators.
    fn may_do_all(&self) -> bool {
        self.name == API_SERVER || self.groups.iter().any(|group| group == MASTERS)
    }
}

/// A request for one of the node's subresources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Access {
    user: UserInfo,
    verb: &'static str,
    subresource: &'static str,
}

/// The caller may not: the text of the 403.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])\n", subresources.join(" "))]
    Forbidden { user: String, verb: &'static str, subresources: Vec<&'static str> },
    #[error("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})")]
    Unavailable { user: String, verb: &'static str, subresource: &'static str },
}

/// Asks the API server, and remembers for a while.
pub struct Auth {
    client: Client,
    clock: Arc<dyn Clock>,
    node_name: String,
    tokens: Mutex<Cache<[u8; 32], Option<UserInfo>>>,
    decisions: Mutex<Cache<Access, bool>>,
}

impl Auth {
    pub fn new(client: Client, node_name: &str) -> Self {
        let clock = Arc::clone(client.clock());
        let (tokens, decisions) = (Mutex::default(), Mutex::default());
        Self { client, clock, node_name: node_name.to_owned(), tokens, decisions }
    }

    /// The caller: of the certificate if there is one, else of the bearer token.
    pub async fn authenticate(
        &self,
        certificate: Option<&UserInfo>,
        headers: &http::HeaderMap,
    ) -> Result<UserInfo, AuthError> {
        if let Some(user) = certificate {
            return Ok(user.clone());
        }
        let token = bearer_token(headers).ok_or(AuthError::Unauthorized)?;
        // Tokens are not kept in memory as they are.
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let now = self.clock.monotonic();
        if let Some(known) = lock(&self.tokens).get(&key, now) {
            return known.ok_or(AuthError::Unauthorized);
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let answer = self.client.create(&review).await;
        let answer = answer.inspect_err(|error| tracing::debug!(%error, "TokenReview failed"));
        let status = answer.map_err(|_| AuthError::Unauthorized)?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        lock(&self.tokens).put(key, user.clone(), now + TOKEN_TTL);
        user.ok_or(AuthError::Unauthorized)
    }

    /// Whether the caller may do this with any of the subresources of this node.
    pub async fn authorize(
        &self,
        user: &UserInfo,
        verb: &'static str,
        subresources: &[&'static str],
    ) -> Result<(), AuthError> {
        if user.may_do_all() {
            return Ok(());
        }
        for subresource in subresources {
            let access = Access { user: user.clone(), verb, subresource };
            let now = self.clock.monotonic();
            let known = lock(&self.decisions).get(&access, now);
            let allowed = match known {
                Some(allowed) => allowed,
                None => {
                    let allowed = self.review(&access).await?;
                    let ttl = if allowed { ALLOWED_TTL } else { DENIED_TTL };
                    lock(&self.decisions).put(access, allowed, now + ttl);
                    allowed
                }
            };
            if allowed {
                return Ok(());
            }
        }
        Err(AuthError::Forbidden { user: user.name.clone(), verb, subresources: subresources.to_vec() })
    }

    async fn review(&self, access: &Access) -> Result<bool, AuthError> {
        let user = &access.user;
        let attributes = ResourceAttributes {
            verb: Some(access.verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(access.subresource.to_owned()),
            name: Some(self.node_name.clone()),
            ..ResourceAttributes::default()
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
                groups: Some(user.groups.clone()),
                extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        match self.client.create(&review).await {
            Ok(answer) => Ok(answer.status.is_some_and(|s| s.allowed && s.denied != Some(true))),
            Err(error) => {
                tracing::debug!(%error, "SubjectAccessReview failed");
                let (user, verb) = (user.name.clone(), access.verb);
                Err(AuthError::Unavailable { user, verb, subresource: access.subresource })
            }
        }
    }
}

fn bearer_token(headers: &http::HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers with an end; the oldest go when there are too many.
struct Cache<K, V> {
    map: BTreeMap<K, (V, Duration)>,
    order: VecDeque<K>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { map: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Cache<K, V> {
    fn get(&self, key: &K, now: Duration) -> Option<V> {
        self.map.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    fn put(&mut self, key: K, value: V, until: Duration) {
        if self.map.insert(key.clone(), (value, until)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > CACHE
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_in_headers() {
        let table = [
            (None, None),
            (Some("Bearer abc"), Some("abc")),
            (Some("bearer  abc "), Some("abc")),
            (Some("Bearer "), None),
            (Some("Basic abc"), None),
        ];
        for (value, want) in table {
            let mut headers = http::HeaderMap::new();
            if let Some(value) = value {
                headers.insert(http::header::AUTHORIZATION, value.parse().unwrap());
            }
            assert_eq!(bearer_token(&headers), want, "{value:?}");
        }
    }

    #[test]
    fn answers_end_and_old_ones_go() {
        let mut cache = Cache::default();
        let second = Duration::from_secs;
        for n in 0..=CACHE as u64 {
            cache.put(n, n, second(10));
        }
        assert_eq!(cache.get(&0, second(1)), None);
        assert_eq!(cache.get(&1, second(1)), Some(1));
        assert_eq!(cache.get(&1, second(10)), None);
    }

    #[test]
    fn words_of_a_refusal() {
        let error =
            AuthError::Forbidden { user: "eve".into(), verb: "get", subresources: vec!["pods", "proxy"] };
        assert_eq!(
            error.to_string(),
            "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
    }
}
