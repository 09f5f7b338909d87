//! An issuer's published keys: found by discovery, kept, and fetched again when a token names one that is not known.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use serde_json::Value;
use tokio::sync::Mutex;

use super::config::Jwt;
use super::jwk::{self, Jwk};
use crate::authn::jwt::Unverified;
use crate::outbound::Outbound;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Unknown keys make us ask the issuer again, but not more often than this.
const ASK_EVERY: Duration = Duration::from_secs(10);

pub struct Provider {
    issuer: String,
    discovery_url: String,
    ca_pem: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: Option<Duration>,
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
            state: Mutex::default(),
        };
        provider.outbound(&provider.discovery_url)?;
        Ok(provider)
    }

    fn outbound(&self, url: &str) -> Result<Outbound, String> {
        let ca = (!self.ca_pem.is_empty()).then_some(self.ca_pem.as_bytes());
        Outbound::to_url(url, ca, TIMEOUT).map_err(|e| e.to_string())
    }

    /// Whether one of the issuer's keys signed the token.
    pub async fn verify(&self, token: &Unverified<'_>, clock: &dyn Clock) -> Result<(), String> {
        let mut state = self.state.lock().await;
        if let Some(signed) = signed_by(&state.keys, token) {
            return signed
                .then_some(())
                .ok_or_else(|| "failed to verify signature: failed to verify id token signature".into());
        }
        let now = clock.monotonic();
        if state.asked.is_none_or(|at| now.saturating_sub(at) >= ASK_EVERY) {
            state.asked = Some(now);
            match self.fetch(clock).await {
                Ok(keys) => (state.keys, state.failure) = (Arc::new(keys), None),
                Err(error) => {
                    tracing::warn!(issuer = self.issuer, error, "cannot fetch an issuer's keys");
                    state.failure = Some(error);
                }
            }
        }
        if let Some(failure) = state.failure.as_ref().filter(|_| state.keys.is_empty()) {
            return Err(format!(
                "oidc: authenticator for issuer {:?} is not initialized: {failure}",
                self.issuer
            ));
        }
        match signed_by(&state.keys, token) {
            Some(true) => Ok(()),
            _ => Err("failed to verify signature: failed to verify id token signature".into()),
        }
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

/// `None` if no key of the token's name is known.
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
