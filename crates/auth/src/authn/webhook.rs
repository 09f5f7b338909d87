//! Token authentication by a webhook: sends TokenReviews to the server of a kubeconfig, and caches its answers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Authenticated, UserInfo};
use knarr_outgoing::endpoint::Outbound;
use knarr_registry::Registry;
use knarr_wire::metrics::Metric;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of cached answers.
const MAX_KEPT: usize = 4096;

type Answer = Result<Option<Authenticated>, String>;

pub struct TokenWebhook {
    outbound: Outbound,
    version: String,
    ttl: Duration,
    kept: Mutex<HashMap<[u8; 32], (Duration, Answer)>>,
}

impl TokenWebhook {
    pub fn new(kubeconfig: &Path, version: &str, ttl: Duration) -> Result<Self, String> {
        if !matches!(version, "v1" | "v1beta1") {
            return Err(format!("unsupported webhook authenticator version {version:?}"));
        }
        let outbound = Outbound::from_kubeconfig(kubeconfig, TIMEOUT).map_err(|e| e.to_string())?;
        Ok(Self { outbound, version: version.to_owned(), ttl, kept: Mutex::default() })
    }

    pub async fn authenticate(&self, registry: &Registry, token: &str, audiences: &[String]) -> Answer {
        let mut digest = Sha256::new();
        digest.update(token);
        audiences.iter().for_each(|a| {
            digest.update([0]);
            digest.update(a);
        });
        let key: [u8; 32] = digest.finalize().into();
        let now = registry.clock.monotonic();
        if let Some(answer) = self.held(&key, now) {
            registry.metrics.increment(Metric::TokenCacheRequests, &["hit"]);
            return answer;
        }
        registry.metrics.increment(Metric::TokenCacheRequests, &["miss"]);
        let answer = self.ask(registry, token, audiences).await;
        let word = if answer.is_ok() { "ok" } else { "error" };
        registry.metrics.increment(Metric::TokenCacheFetches, &[word]);
        // Failed calls are not cached, so that the next request calls the webhook again.
        if answer.is_ok() && !self.ttl.is_zero() {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= MAX_KEPT {
                kept.retain(|_, (until, _)| *until > now);
            }
            if kept.len() < MAX_KEPT {
                kept.insert(key, (now + self.ttl, answer.clone()));
            }
        }
        answer
    }

    fn held(&self, key: &[u8; 32], now: Duration) -> Option<Answer> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).filter(|(until, _)| *until > now).map(|(_, answer)| answer.clone())
    }

    async fn ask(&self, registry: &Registry, token: &str, audiences: &[String]) -> Answer {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "metadata": {"creationTimestamp": null},
            "spec": {"token": token, "audiences": audiences}, "status": {"user": {}},
        });
        let reply = self.outbound.post(Bytes::from(review.to_string()), &*registry.clock).await;
        let reply = reply.map_err(|e| e.to_string())?;
        if !(200..300).contains(&reply.code) {
            return Err(format!("the token webhook answered {}", reply.code));
        }
        let answer: Value = serde_json::from_slice(&reply.body).map_err(|e| e.to_string())?;
        read(&answer["status"], audiences)
    }
}

fn read(status: &Value, audiences: &[String]) -> Answer {
    if let Some(error) = status["error"].as_str().filter(|e| !e.is_empty()) {
        return Err(error.to_owned());
    }
    if status["authenticated"] != true {
        return Ok(None);
    }
    let list = |value: &Value| serde_json::from_value::<Vec<String>>(value.clone()).unwrap_or_default();
    let returned = list(&status["audiences"]);
    // A webhook that returns no audiences is not audience-aware; its tokens are valid for this server.
    let matching: Vec<String> =
        audiences.iter().filter(|a| returned.is_empty() || returned.contains(a)).cloned().collect();
    if matching.is_empty() && !audiences.is_empty() {
        return Ok(None);
    }
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let user = &status["user"];
    let user = UserInfo {
        name: text(&user["username"]),
        uid: text(&user["uid"]),
        groups: list(&user["groups"]),
        extra: serde_json::from_value(user["extra"].clone()).unwrap_or_default(),
    };
    Ok(Some(Authenticated { user: user.authenticated(), audiences: matching }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let audiences = ["a".to_owned(), "b".to_owned()];
        let yes = json!({"authenticated": true, "user": {"username": "ann", "groups": ["g"], "extra": {"k": ["v"]}}, "audiences": ["b", "c"]});
        let found = read(&yes, &audiences).unwrap().unwrap();
        assert_eq!((found.user.name.as_str(), found.audiences.as_slice()), ("ann", &["b".to_owned()][..]));
        assert_eq!(found.user.groups, ["g", "system:authenticated"]);
        let elsewhere = json!({"authenticated": true, "user": {"username": "ann"}, "audiences": ["c"]});
        assert_eq!(read(&elsewhere, &audiences), Ok(None));
        assert_eq!(read(&json!({"authenticated": false}), &audiences), Ok(None));
        assert_eq!(read(&json!({"error": "no"}), &audiences), Err("no".into()));
    }
}
