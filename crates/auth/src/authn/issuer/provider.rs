//! The published keys of an issuer: found by discovery, cached, and fetched again if a token names an unknown key.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use knarr_apimachinery::clock::Clock;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore};

use super::config::Jwt;
use super::jwk::{self, Jwk};
use crate::authn::jwt::Unverified;
use knarr_outgoing::endpoint::Outbound;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The minimum interval between two fetches because of unknown keys.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How many requests with unknown keys may wait for a fetch; others are refused, because anybody can invent a key id.
const MOST_WAITING: usize = 100;

pub struct Provider {
    issuer: String,
    discovery_url: String,
    ca_pem: String,
    /// The current keys; reading does not block.
    state: ArcSwap<State>,
    /// The time of the last fetch; locked by the request that fetches.
    asked: Mutex<Option<Duration>>,
    /// Limits the waiting requests.
    waiting: Semaphore,
}

#[derive(Default)]
struct State {
    keys: Arc<Vec<Jwk>>,
    failure: Option<String>,
}

impl Provider {
    pub fn new(rules: &Jwt) -> Result<Self, String> {
        let url = rules.issuer.url.trim_end_matches('/');
        let discovery_url = rules
            .issuer
            .discovery_url
            .clone()
            .unwrap_or_else(|| format!("{url}/.well-known/openid-configuration"));
        let provider = Self {
            issuer: rules.issuer.url.clone(),
            discovery_url,
            ca_pem: rules.issuer.certificate_authority.clone(),
            state: ArcSwap::default(),
            asked: Mutex::default(),
            waiting: Semaphore::new(MOST_WAITING),
        };
        provider.outbound(&provider.discovery_url)?;
        Ok(provider)
    }

    fn outbound(&self, url: &str) -> Result<Outbound, String> {
        let ca = (!self.ca_pem.is_empty()).then_some(self.ca_pem.as_bytes());
        Outbound::to_url(url, ca, TIMEOUT).map_err(|e| e.to_string())
    }

    /// Verifies that one of the issuer's keys signed the token. Only tokens with unknown keys wait for a fetch.
    pub async fn verify(&self, token: &Unverified<'_>, clock: &dyn Clock) -> Result<(), String> {
        let known = self.state.load_full();
        let signed = match signed_by(&known.keys, token) {
            Some(signed) => signed,
            None => {
                let state = self.renewed(&known, clock).await?;
                if let Some(failure) = state.failure.as_ref().filter(|_| state.keys.is_empty()) {
                    return Err(format!(
                        "oidc: authenticator for issuer {:?} is not initialized: {failure}",
                        self.issuer
                    ));
                }
                signed_by(&state.keys, token).unwrap_or(false)
            }
        };
        signed
            .then_some(())
            .ok_or_else(|| "failed to verify signature: failed to verify id token signature".into())
    }

    /// Returns the state after `known`: one request fetches the keys, the others wait for its result.
    async fn renewed(&self, known: &Arc<State>, clock: &dyn Clock) -> Result<Arc<State>, String> {
        let busy = |_| format!("oidc: too many tokens with unknown keys of issuer {:?}", self.issuer);
        let _waits = self.waiting.try_acquire().map_err(busy)?;
        let mut asked = self.asked.lock().await;
        let state = self.state.load_full();
        let lately = asked.is_some_and(|at| clock.monotonic().saturating_sub(at) < ASK_EVERY);
        if lately || !Arc::ptr_eq(&state, known) {
            return Ok(state);
        }
        let state = match self.fetch(clock).await {
            Ok(keys) => State { keys: Arc::new(keys), failure: None },
            Err(error) => {
                tracing::warn!(issuer = self.issuer, error, "cannot fetch an issuer's keys");
                State { keys: Arc::clone(&state.keys), failure: Some(error) }
            }
        };
        // Set only after the fetch: if this request is cancelled before, the next one fetches.
        *asked = Some(clock.monotonic());
        let state = Arc::new(state);
        self.state.store(Arc::clone(&state));
        Ok(state)
    }

    async fn fetch(&self, clock: &dyn Clock) -> Result<Vec<Jwk>, String> {
        let document = self.get(&self.discovery_url, clock).await?;
        if document["issuer"].as_str() != Some(self.issuer.as_str()) {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {}",
                self.issuer, document["issuer"]
            ));
        }
        let uri = document["jwks_uri"].as_str().ok_or("the discovery document names no jwks_uri")?;
        Ok(jwk::keys(&self.get(uri, clock).await?))
    }

    async fn get(&self, url: &str, clock: &dyn Clock) -> Result<Value, String> {
        let reply = self.outbound(url)?.get(clock).await.map_err(|e| e.to_string())?;
        if reply.code != 200 {
            return Err(format!("{url} answered {}", reply.code));
        }
        serde_json::from_slice(&reply.body).map_err(|e| format!("{url}: {e}"))
    }
}

/// Returns whether a key of the token's key id verifies it; `None` if no such key is known.
fn signed_by(keys: &[Jwk], token: &Unverified<'_>) -> Option<bool> {
    let wanted = token.key_id();
    let mut candidates = keys.iter().filter(|k| wanted.is_empty() || k.id == wanted).peekable();
    candidates.peek()?;
    Some(
        candidates.any(|k| {
            token.verify_with(|algorithm, message, signature| k.verify(algorithm, message, signature))
        }),
    )
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
    use futures_util::{FutureExt, pin_mut};
    use knarr_client::clock::SystemClock;
    use serde_json::json;

    use super::*;
    use crate::authn::issuer::config;
    use crate::authn::jwt;

    fn token(kid: &str) -> String {
        let part = |value: Value| BASE64.encode(value.to_string());
        let header = part(json!({"alg": "ES256", "kid": kid}));
        format!("{header}.{}.{}", part(json!({})), BASE64.encode([0; 64]))
    }

    /// Returns an issuer that accepts connections and never answers.
    fn silent() -> (std::net::TcpListener, Provider) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, jwt: [{{issuer: \
             {{url: \"{url}\", audiences: [me]}}, claimMappings: {{username: {{claim: sub, prefix: \"\"}}}}}}]}}"
        );
        let rules = config::parse(text.as_bytes()).unwrap().issuers.remove(0);
        (listener, Provider::new(&rules).unwrap())
    }

    #[tokio::test]
    async fn tokens_with_known_keys_do_not_wait_for_the_issuer() {
        let (_listener, provider) = silent();
        let point = BASE64.encode([7; 32]);
        let set = json!({"keys": [{"kid": "known", "kty": "EC", "crv": "P-256", "x": point, "y": point}]});
        provider.state.store(Arc::new(State { keys: Arc::new(jwk::keys(&set)), failure: None }));
        let (known, unknown) = (token("known"), token("unknown"));
        let (known, unknown) = (jwt::parse(&known).unwrap(), jwt::parse(&unknown).unwrap());
        let asking = provider.verify(&unknown, &SystemClock);
        pin_mut!(asking);
        assert!(asking.as_mut().now_or_never().is_none(), "it waits for the issuer");
        let judged = provider.verify(&known, &SystemClock).now_or_never();
        assert_eq!(
            judged.unwrap().unwrap_err(),
            "failed to verify signature: failed to verify id token signature"
        );
        // The number of waiting requests is limited.
        let mut waiting: Vec<_> =
            (1..MOST_WAITING).map(|_| Box::pin(provider.verify(&unknown, &SystemClock))).collect();
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
        let refused = provider.verify(&unknown, &SystemClock).now_or_never().unwrap().unwrap_err();
        assert!(refused.contains("too many tokens with unknown keys"), "{refused}");
    }

    #[tokio::test]
    async fn a_question_that_is_given_up_is_asked_again() {
        let (_listener, provider) = silent();
        let unknown = token("unknown");
        let unknown = jwt::parse(&unknown).unwrap();
        assert!(provider.verify(&unknown, &SystemClock).now_or_never().is_none());
        assert!(provider.verify(&unknown, &SystemClock).now_or_never().is_none());
        *provider.asked.lock().await = Some(SystemClock.monotonic());
        assert!(provider.verify(&unknown, &SystemClock).now_or_never().unwrap().is_err(), "not so soon");
    }
}
