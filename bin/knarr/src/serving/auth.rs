//! Authenticates and authorizes the clients of a component through the API server, and caches its answers.
//!
//! Source: `k8s.io/apiserver/pkg/server/options`, the delegating authentication and authorization.

use std::sync::Arc;

use http::{HeaderMap, Method};
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::reviews::{Asked, Lasting, MASTERS, Reviews, UserInfo, bearer_token};

const AUTHENTICATED: &str = "system:authenticated";

/// Adds the group system:authenticated to an authenticated user.
fn known(mut user: UserInfo) -> UserInfo {
    if !user.is_in(AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

fn anonymous() -> UserInfo {
    let groups = vec!["system:unauthenticated".to_owned()];
    UserInfo { name: "system:anonymous".to_owned(), groups, ..UserInfo::default() }
}

/// Why a request is refused.
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
    /// The client that reviews tokens.
    pub authentication: Option<Client>,
    /// The client that reviews access.
    pub authorization: Option<Client>,
    /// Paths that need no authorization; `/a/*` stands for all paths below `/a`.
    pub always_allow: Vec<String>,
    pub lasting: Lasting,
    pub clock: Arc<dyn Clock>,
}

pub struct Delegated {
    options: Options,
    reviews: Reviews,
}

impl Delegated {
    pub fn new(options: Options) -> Self {
        let reviews = Reviews::new(Arc::clone(&options.clock), options.lasting);
        Self { options, reviews }
    }

    pub fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// Returns the user of the client certificate or of the token, or the anonymous user.
    pub async fn authenticate(
        &self,
        certificate: Option<UserInfo>,
        headers: &HeaderMap,
    ) -> Result<UserInfo, Refused> {
        if let Some(user) = certificate {
            return Ok(known(user));
        }
        let (Some(token), Some(client)) = (bearer_token(headers), &self.options.authentication) else {
            return Ok(anonymous());
        };
        let holder = self.reviews.holder(client, token).await;
        let holder = holder.inspect_err(|error| tracing::warn!(%error, "TokenReview failed"));
        holder.ok().flatten().map(known).ok_or(Refused::Unauthorized)
    }

    pub async fn authorize(&self, user: &UserInfo, method: &Method, path: &str) -> Result<(), Refused> {
        if self.options.always_allow.iter().any(|allowed| covers(allowed, path)) || user.is_in(MASTERS) {
            return Ok(());
        }
        let (verb, path) = (method.as_str().to_ascii_lowercase(), path.to_owned());
        if let Some(client) = &self.options.authorization {
            let asked = Asked::Path { verb: verb.clone(), path: path.clone() };
            let may = self.reviews.may(client, user, asked).await;
            if may.map_err(|e| Refused::Unknown { path: path.clone(), why: e.to_string() })? {
                return Ok(());
            }
        }
        Err(Refused::Forbidden { user: user.name.clone(), verb, path })
    }
}

/// Returns whether a path is the allowed one, or below it if that ends in `/*`.
fn covers(allowed: &str, path: &str) -> bool {
    let (allowed, path) = (allowed.trim_start_matches('/'), path.trim_start_matches('/'));
    match allowed.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == allowed,
    }
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
        let user = known(UserInfo { name: "ann".into(), ..UserInfo::default() });
        assert_eq!(user.groups, [AUTHENTICATED]);
        assert_eq!(known(user.clone()), user);
        assert!(!anonymous().is_in(AUTHENTICATED));
    }
}
