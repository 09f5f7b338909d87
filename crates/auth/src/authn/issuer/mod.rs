//! Tokens of other issuers: JSON Web Tokens whose issuer publishes its keys by OpenID Connect discovery.

pub mod claims;
pub mod config;
mod expressions;
mod jwk;
mod provider;

use knarr_apimachinery::clock::Clock;
use serde_json::Value;

use super::{Authenticated, jwt};
use config::Jwt;
use provider::Provider;

/// One issuer with its keys and rules.
pub struct Issuer {
    rules: Jwt,
    provider: Provider,
}

/// The allowed clock skew, in seconds.
const LEEWAY: i64 = 300;

impl Issuer {
    pub fn new(rules: Jwt) -> Result<Self, String> {
        let provider = Provider::new(&rules)?;
        Ok(Self { rules, provider })
    }

    /// Authenticates a token; `None` if it names another issuer.
    pub async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        clock: &dyn Clock,
    ) -> Result<Option<Authenticated>, String> {
        let Some(parsed) = jwt::parse(token) else { return Ok(None) };
        let claims = &parsed.claims;
        if claims["iss"].as_str() != Some(self.rules.issuer.url.as_str()) {
            return Ok(None);
        }
        let verify = |why: String| format!("oidc: verify token: {why}");
        if !self.rules.signing_algs.iter().any(|a| a == parsed.algorithm()) {
            let (given, known) = (parsed.algorithm(), &self.rules.signing_algs);
            return Err(verify(format!(
                "oidc: malformed jwt: unexpected signature algorithm {given:?}; expected {known:?}"
            )));
        }
        check_audience(&self.rules, claims).map_err(verify)?;
        check_time(claims, clock.now().as_second()).map_err(verify)?;
        self.provider.verify(&parsed, clock).await.map_err(verify)?;
        let user = claims::user(&self.rules, claims)?;
        Ok(Some(Authenticated { user, audiences: audiences.to_vec() }))
    }
}

fn check_audience(rules: &Jwt, claims: &Value) -> Result<(), String> {
    let named: Vec<&str> = match &claims["aud"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if rules.issuer.audiences.iter().any(|a| named.contains(&a.as_str())) {
        return Ok(());
    }
    Err(format!("oidc: expected audience in {:?} got {named:?}", rules.issuer.audiences))
}

fn check_time(claims: &Value, now: i64) -> Result<(), String> {
    let number = |name: &str| claims[name].as_i64().or_else(|| claims[name].as_f64().map(|f| f as i64));
    let expires = number("exp").ok_or("oidc: token has no expiry")?;
    if now > expires {
        return Err(format!("oidc: token is expired (Token Expiry: {expires})"));
    }
    if number("nbf").is_some_and(|nbf| now.saturating_add(LEEWAY) < nbf) {
        return Err("oidc: current time is before the nbf (not before) time".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
