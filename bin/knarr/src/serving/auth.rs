//! Who asks a component, and whether they may: the API server is asked, and its answers are kept for a while.
//!
//! Source: `k8s.io/apiserver/pkg/server/options`, the delegating authentication and authorization.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Answers kept of each sort.
const MAX_KEPT: usize = 1024;
const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";

/// Somebody who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserInfo {
    pub name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// From a client certificate, which the handshake has verified.
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().find_map(|a| a.as_str().ok())?.to_owned();
        let groups = subject.iter_organization().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
        Some(Self { name, groups, ..Self::default() }.known())
    }

    fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }

    fn known(mut self) -> Self {
        if !self.is_in(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("forbidden: User {user:?} cannot {verb} path {path:?}")]
    Forbidden { user: String, verb: String, path: String },
    #[error("Internal Server Error: {path:?}: {why}")]
    Unknown { path: String, why: String },
}

pub struct Options {
    /// Who says whose a token is.
    pub authentication: Option<Client>,
    /// Who says who may see what.
    pub authorization: Option<Client>,
    /// Paths for everybody; `/a/*` stands for all below `/a`.
    pub always_allow: Vec<String>,
    pub token_ttl: Duration,
    pub allowed_ttl: Duration,
    pub denied_ttl: Duration,
    pub clock: Arc<dyn Clock>,
}

type Kept<K, V> = Mutex<BTreeMap<K, (V, Duration)>>;

pub struct Delegated {
    options: Options,
    /// By the tokens' digests: tokens are not kept as they are.
    tokens: Kept<Vec<u8>, Option<UserInfo>>,
    decisions: Kept<(UserInfo, String, String), bool>,
}

impl Delegated {
    pub fn new(options: Options) -> Self {
        Self { options, tokens: Mutex::default(), decisions: Mutex::default() }
    }

    /// The holder of the certificate or of the token, or nobody in particular.
    pub async fn authenticate(
        &self,
        certificate: Option<UserInfo>,
        headers: &HeaderMap,
    ) -> Result<UserInfo, Refused> {
        if let Some(user) = certificate {
            return Ok(user);
        }
        let (Some(token), Some(client)) = (bearer_token(headers), &self.options.authentication) else {
            return Ok(UserInfo::anonymous());
        };
        let key = ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref().to_vec();
        if let Some(known) = self.known(&self.tokens, &key) {
            return known.ok_or(Refused::Unauthorized);
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let answer = client.create(&TokenReview { spec, ..TokenReview::default() }).await;
        let answer = answer.inspect_err(|error| tracing::warn!(%error, "TokenReview failed"));
        let status = answer.map_err(|_| Refused::Unauthorized)?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| {
            let (groups, extra) = (user.groups.unwrap_or_default(), user.extra.unwrap_or_default());
            let (name, uid) = (user.username.unwrap_or_default(), user.uid.unwrap_or_default());
            UserInfo { name, uid, groups, extra }.known()
        });
        self.keep(&self.tokens, key, user.clone(), self.options.token_ttl);
        user.ok_or(Refused::Unauthorized)
    }

    pub async fn authorize(&self, user: &UserInfo, method: &Method, path: &str) -> Result<(), Refused> {
        if self.options.always_allow.iter().any(|allowed| covers(allowed, path)) || user.is_in(MASTERS) {
            return Ok(());
        }
        let verb = method.as_str().to_ascii_lowercase();
        let key = (user.clone(), verb, path.to_owned());
        let allowed = match (self.known(&self.decisions, &key), &self.options.authorization) {
            (Some(allowed), _) => allowed,
            (None, None) => false,
            (None, Some(client)) => {
                let allowed = review(client, &key).await?;
                let ttl = if allowed { self.options.allowed_ttl } else { self.options.denied_ttl };
                self.keep(&self.decisions, key.clone(), allowed, ttl);
                allowed
            }
        };
        let (_, verb, path) = key;
        if allowed { Ok(()) } else { Err(Refused::Forbidden { user: user.name.clone(), verb, path }) }
    }

    fn known<K: Ord, V: Clone>(&self, kept: &Kept<K, V>, key: &K) -> Option<V> {
        let now = self.options.clock.monotonic();
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    fn keep<K: Ord, V>(&self, kept: &Kept<K, V>, key: K, value: V, ttl: Duration) {
        let now = self.options.clock.monotonic();
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, (_, until)| now < *until);
        }
        if kept.len() < MAX_KEPT {
            kept.insert(key, (value, now + ttl));
        }
    }
}

async fn review(client: &Client, (user, verb, path): &(UserInfo, String, String)) -> Result<bool, Refused> {
    let attributes = NonResourceAttributes { path: Some(path.clone()), verb: Some(verb.clone()) };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
            groups: Some(user.groups.clone()),
            extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = client.create(&review).await;
    let answer = answer.map_err(|e| Refused::Unknown { path: path.clone(), why: e.to_string() })?;
    Ok(answer.status.is_some_and(|s| s.allowed && s.denied != Some(true)))
}

/// Whether a path is the allowed one, or below it where it ends in `/*`.
fn covers(allowed: &str, path: &str) -> bool {
    let (allowed, path) = (allowed.trim_start_matches('/'), path.trim_start_matches('/'));
    match allowed.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == allowed,
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_for_everybody() {
        let table = [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/ping", false),
            ("/healthz/*", "/healthz/ping", true),
            ("healthz", "/healthz", true),
            ("/healthz", "/metrics", false),
        ];
        for (allowed, path, want) in table {
            assert_eq!(covers(allowed, path), want, "{allowed} {path}");
        }
    }

    #[test]
    fn words_of_a_refusal() {
        let refused = Refused::Forbidden { user: "eve".into(), verb: "get".into(), path: "/metrics".into() };
        assert_eq!(refused.to_string(), "forbidden: User \"eve\" cannot get path \"/metrics\"");
    }

    #[test]
    fn the_known_are_in_the_group_of_the_known_once() {
        let user = UserInfo { name: "ann".into(), ..UserInfo::default() }.known();
        assert_eq!(user.groups, [AUTHENTICATED]);
        assert_eq!(user.clone().known(), user);
        assert!(!UserInfo::anonymous().is_in(AUTHENTICATED));
    }
}
