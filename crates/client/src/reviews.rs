//! Authentication and authorization by the API server: TokenReview and SubjectAccessReview, with cached results.
//!
//! Source: the delegating parts of `k8s.io/apiserver/pkg/authentication/authenticatorfactory` and
//! `…/authorization/authorizerfactory`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use knarr_apimachinery::clock::Clock;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Client, Error};

/// The group of administrators, which is allowed everything.
pub const MASTERS: &str = "system:masters";
/// The number of cached results of each kind; the oldest are dropped when there are more.
const KEPT: usize = 1024;

/// An authenticated user.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user of a connection's client certificate while that is valid; connections may last longer.
#[derive(Debug, Clone)]
pub struct CertifiedUser {
    user: UserInfo,
    not_after: i64,
}

impl CertifiedUser {
    /// Reads the user from a client certificate that the TLS handshake has verified.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().find_map(|a| a.as_str().ok())?.to_owned();
        let groups = subject.iter_organization().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
        let not_after = certificate.validity().not_after.timestamp();
        Some(Self { user: UserInfo { name, groups, ..UserInfo::default() }, not_after })
    }

    /// Returns a user that is valid until `not_after`, in seconds since the Unix epoch.
    pub fn until(user: UserInfo, not_after: i64) -> Self {
        Self { user, not_after }
    }

    /// The user, unless the certificate has expired since the connection was opened.
    pub fn user(&self, now: Timestamp) -> Option<&UserInfo> {
        (now.as_second() <= self.not_after).then_some(&self.user)
    }
}

impl UserInfo {
    /// Returns whether the user is in this group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// What a user wants to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// Access to a path that is not a resource.
    Path { verb: String, path: String },
    /// Access to a subresource of a node.
    Node { verb: &'static str, name: String, subresource: &'static str },
}

/// How long results are cached.
#[derive(Debug, Clone, Copy)]
pub struct Lasting {
    pub token: Duration,
    pub allowed: Duration,
    pub denied: Duration,
}

/// Cached reviews.
pub struct Reviews {
    clock: Arc<dyn Clock>,
    lasting: Lasting,
    /// By digest, so that the tokens themselves are not kept.
    tokens: Mutex<Cache<[u8; 32], Option<UserInfo>>>,
    decisions: Mutex<Cache<(UserInfo, Asked), bool>>,
}

impl Reviews {
    /// Creates an empty cache of reviews.
    pub fn new(clock: Arc<dyn Clock>, lasting: Lasting) -> Self {
        Self { clock, lasting, tokens: Mutex::default(), decisions: Mutex::default() }
    }

    /// Returns the user of a token; `None` if the API server does not accept it.
    pub async fn holder(&self, client: &Client, token: &str) -> Result<Option<UserInfo>, Error> {
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let now = self.clock.monotonic();
        if let Some(known) = lock(&self.tokens).get(&key, now) {
            return Ok(known);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let answer = client.create(&TokenReview { spec, ..TokenReview::default() }).await?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| UserInfo {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        lock(&self.tokens).put(key, user.clone(), now + self.lasting.token);
        Ok(user)
    }

    /// Returns whether the user may do this, by a cached or a new SubjectAccessReview.
    pub async fn may(&self, client: &Client, user: &UserInfo, asked: Asked) -> Result<bool, Error> {
        let key = (user.clone(), asked);
        let now = self.clock.monotonic();
        if let Some(known) = lock(&self.decisions).get(&key, now) {
            return Ok(known);
        }
        let answer = client.create(&access_review(user, &key.1)).await?;
        let allowed = answer.status.is_some_and(|s| s.allowed && s.denied != Some(true));
        let lasting = if allowed { self.lasting.allowed } else { self.lasting.denied };
        lock(&self.decisions).put(key, allowed, now + lasting);
        Ok(allowed)
    }
}

fn access_review(user: &UserInfo, asked: &Asked) -> SubjectAccessReview {
    let mut spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
        groups: Some(user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    match asked {
        Asked::Path { verb, path } => {
            let (path, verb) = (Some(path.clone()), Some(verb.clone()));
            spec.non_resource_attributes = Some(NonResourceAttributes { path, verb });
        }
        Asked::Node { verb, name, subresource } => {
            spec.resource_attributes = Some(ResourceAttributes {
                verb: Some((*verb).to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some((*subresource).to_owned()),
                name: Some(name.clone()),
                ..ResourceAttributes::default()
            });
        }
    }
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// The token of a request, if it has one.
pub fn bearer_token(headers: &http::HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Results with an expiry time.
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
        if self.order.len() > KEPT
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
    fn a_certificate_names_somebody_until_it_ends() {
        let user = UserInfo { name: "ann".into(), ..UserInfo::default() };
        let ann = CertifiedUser::until(user.clone(), 100);
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!((ann.user(at(100)), ann.user(at(101))), (Some(&user), None));
    }

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
        for n in 0..=KEPT as u64 {
            cache.put(n, n, second(10));
        }
        assert_eq!(cache.get(&0, second(1)), None);
        assert_eq!(cache.get(&1, second(1)), Some(1));
        assert_eq!(cache.get(&1, second(10)), None);
    }

    #[test]
    fn reviews_say_who_and_what() {
        let user = UserInfo { name: "eve".into(), groups: vec!["dev".into()], ..UserInfo::default() };
        let path = Asked::Path { verb: "get".into(), path: "/metrics".into() };
        let spec = access_review(&user, &path).spec;
        assert_eq!((spec.user.as_deref(), spec.uid, spec.resource_attributes), (Some("eve"), None, None));
        assert_eq!(spec.non_resource_attributes.unwrap().path.as_deref(), Some("/metrics"));
        let node = Asked::Node { verb: "create", name: "n1".into(), subresource: "proxy" };
        let attributes = access_review(&user, &node).spec.resource_attributes.unwrap();
        assert_eq!(attributes.subresource.as_deref(), Some("proxy"));
        assert_eq!((attributes.name.as_deref(), attributes.resource.as_deref()), (Some("n1"), Some("nodes")));
    }
}
