//! Service-account tokens: issues them, and checks that the objects they are bound to still exist.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};
use std::sync::Arc;

use super::keys::{PublicKey, SigningKey};
use super::options::ServiceAccounts;
use super::{Authenticated, UserInfo, jwt};
use knarr_registry::Registry;
use knarr_registry::managed::Change;
use knarr_registry::options::WriteParams;
use knarr_registry::store;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_wire::annotations::annotate;
use knarr_wire::keypair::ConfigError;
use knarr_wire::metrics::Metric;
use knarr_wire::request::Request;

/// The lifetime, in seconds, by which the kubelet's requests for rotated tokens are recognized. Such tokens are
/// issued for a year, for clients that read them only once.
const EXTENDED_WHEN: i64 = 3607;
const EXTENDED_TO: i64 = 365 * 24 * 3600;
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The issuer of tokens that controllers store in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The allowed clock skew, in seconds.
const LEEWAY: i64 = 60;
const INVALIDATED: &str = "service account token has been invalidated";

/// The keys, issuers and audiences with which tokens are issued and accepted.
pub struct Tokens {
    signing: Option<SigningKey>,
    keys: Vec<PublicKey>,
    /// The issuer of new tokens.
    pub issuer: String,
    /// All issuers whose tokens are accepted.
    issuers: Vec<String>,
    pub audiences: Vec<String>,
    extend: bool,
    /// The maximum lifetime of a token, in seconds.
    longest: Option<i64>,
}

/// The content of a token to be issued.
pub struct Grant<'a> {
    pub account: &'a Object,
    pub audiences: Vec<String>,
    pub expiration_seconds: i64,
    /// The lower-case kind, name and uid of the object that the token is bound to.
    pub bound: Option<(&'static str, String, String)>,
    /// The name and uid of the node of a bound pod.
    pub node: Option<(String, String)>,
}

impl Tokens {
    pub fn new(config: &ServiceAccounts) -> Result<Self, ConfigError> {
        let signing = match config.key_pem.as_str() {
            "" => None,
            pem => Some(SigningKey::from_pem(pem)?),
        };
        let mut keys: Vec<PublicKey> = signing.iter().map(|k| k.public.clone()).collect();
        for pem in &config.public_keys_pem {
            for key in PublicKey::all_from_pem(pem)? {
                if !keys.iter().any(|k| k.id == key.id) {
                    keys.push(key);
                }
            }
        }
        let issuer = config.issuer.clone();
        let mut issuers = vec![issuer.clone()];
        issuers.extend(config.further_issuers.iter().cloned());
        let audiences = match config.audiences.as_slice() {
            [] => vec![issuer.clone()],
            given => given.to_vec(),
        };
        let longest = config.max_expiration.map(|d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
        Ok(Self { signing, keys, issuer, issuers, audiences, extend: config.extend_expiration, longest })
    }

    /// Returns the public keys as a JSON Web Key Set.
    pub fn jwks(&self) -> Value {
        json!({"keys": self.keys.iter().map(PublicKey::jwk).collect::<Vec<_>>()})
    }

    pub fn algorithms(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.keys.iter().map(|k| k.algorithm.name()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns a signed token, and its expiry as its owner sees it.
    pub fn issue(&self, grant: &Grant<'_>, now: Timestamp) -> Result<(String, Timestamp), StatusError> {
        let key = self
            .signing
            .as_ref()
            .ok_or_else(|| StatusError::new(501, "", "no service account signing key is configured"))?;
        let now_seconds = now.as_second();
        let mut lifetime = grant.expiration_seconds.min(self.longest.unwrap_or(i64::MAX));
        let shown = now_seconds.saturating_add(lifetime);
        let mut private = json!({
            "namespace": grant.account.namespace(),
            "serviceaccount": {"name": grant.account.name(), "uid": grant.account.uid()},
        });
        if let Some((kind, name, uid)) = &grant.bound {
            private[*kind] = json!({"name": name, "uid": uid});
            let for_us = grant.audiences.iter().all(|a| self.audiences.contains(a));
            if self.extend && *kind == "pod" && grant.expiration_seconds == EXTENDED_WHEN && for_us {
                private["warnafter"] = shown.into();
                lifetime = EXTENDED_TO.min(self.longest.unwrap_or(EXTENDED_TO));
            }
        }
        if let Some((name, uid)) = &grant.node {
            private["node"] = json!({"name": name, "uid": uid});
        }
        let claims = json!({
            "iss": self.issuer,
            "sub": username(grant.account.namespace(), grant.account.name()),
            "aud": grant.audiences,
            "iat": now_seconds,
            "nbf": now_seconds,
            "exp": now_seconds.saturating_add(lifetime),
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": private,
        });
        let token = jwt::sign(&claims, key).map_err(|_| StatusError::internal("cannot sign the token"))?;
        let expires = Timestamp::from_second(shown).map_err(StatusError::internal)?;
        Ok((token, expires))
    }

    /// Authenticates a token, if everything that it is bound to still exists; `None` if this server did not issue it.
    pub async fn authenticate(
        &self,
        registry: &Registry,
        text: &str,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, String> {
        let Some(token) = jwt::parse(text) else { return Ok(None) };
        let claims = &token.claims;
        let issuer = claims["iss"].as_str().unwrap_or("");
        let legacy = issuer == LEGACY_ISSUER;
        if !legacy && !self.issuers.iter().any(|i| i == issuer) {
            return Ok(None);
        }
        if !token.is_signed_by(&self.keys) {
            return Err("invalid signature, no keys found".into());
        }
        let named: Vec<String> = match &claims["aud"] {
            Value::String(one) => vec![one.clone()],
            Value::Array(many) => many.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let named = if named.is_empty() {
            registry.metrics.increment(Metric::LegacyTokens, &[]);
            annotate("authentication.k8s.io/legacy-token", claims["sub"].as_str().unwrap_or(""));
            self.audiences.clone()
        } else {
            named
        };
        let matching: Vec<String> = named.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if matching.is_empty() {
            return Err(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(&named),
                quoted(audiences)
            ));
        }
        let user = if legacy {
            legacy_user(registry, text, claims).await?
        } else {
            in_time(claims, registry.clock.now().as_second())?;
            bound_user(registry, claims).await?
        };
        Ok(Some(Authenticated { user, audiences: matching }))
    }
}

fn quoted(values: &[String]) -> String {
    let quoted: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn in_time(claims: &Value, now: i64) -> Result<(), String> {
    let number = |name: &str| claims[name].as_i64();
    if number("exp").is_none_or(|exp| now > exp.saturating_add(LEEWAY)) {
        return Err("service account token has expired".into());
    }
    if number("nbf").is_some_and(|nbf| now < nbf.saturating_sub(LEEWAY)) {
        return Err("service account token is not valid yet".into());
    }
    if number("iat").is_some_and(|iat| now < iat.saturating_sub(LEEWAY)) {
        return Err("service account token is issued in the future".into());
    }
    Ok(())
}

/// Returns whether the object was deleted some time ago: the tokens of a terminating object stay valid for a moment.
fn is_deleted(object: &Object, now: Timestamp) -> bool {
    let deleted = object.metadata().ok().and_then(|m| m.deletion_timestamp);
    deleted.is_some_and(|at| at.0.as_second() < now.as_second().saturating_sub(LEEWAY))
}

fn text(v: &Value) -> String {
    v.as_str().unwrap_or("").to_owned()
}

async fn bound_user(registry: &Registry, claims: &Value) -> Result<UserInfo, String> {
    let private = &claims["kubernetes.io"];
    let now = registry.clock.now();
    let namespace = text(&private["namespace"]);
    let (name, uid) = (text(&private["serviceaccount"]["name"]), text(&private["serviceaccount"]["uid"]));
    if claims["sub"] != username(&namespace, &name) {
        return Err("sub claim is invalid".into());
    }
    let account = find(registry, "serviceaccounts", &namespace, &name).await;
    let account = account.ok_or_else(|| format!("serviceaccounts \"{name}\" not found"))?;
    if account.uid() != uid {
        return Err(format!("service account UID ({}) does not match claim ({uid})", account.uid()));
    }
    if is_deleted(&account, now) {
        return Err(format!("service account {namespace}/{name} has been deleted"));
    }
    let mut extra = BTreeMap::new();
    for (kind, plural, place) in [
        ("secret", "secrets", namespace.as_str()),
        ("pod", "pods", namespace.as_str()),
        ("node", "nodes", ""),
    ] {
        let Some(claim) = private.get(kind).filter(|c| c.is_object()) else { continue };
        let (name, uid) = (text(&claim["name"]), text(&claim["uid"]));
        // The node of a pod is only informative; the token is bound to the pod.
        if kind != "node" || private.get("pod").is_none() {
            let bound = find(registry, plural, place, &name).await.ok_or(INVALIDATED)?;
            if bound.uid() != uid {
                let own = bound.uid();
                return Err(format!(
                    "{kind} UID ({own}) does not match service account {kind} ref claim ({uid})"
                ));
            }
            if is_deleted(&bound, now) {
                return Err(INVALIDATED.into());
            }
        }
        if kind != "secret" {
            extra.insert(format!("authentication.kubernetes.io/{kind}-name"), vec![name]);
            extra.insert(format!("authentication.kubernetes.io/{kind}-uid"), vec![uid]);
        }
    }
    if let Some(warn_after) = private["warnafter"].as_i64() {
        if now.as_second() > warn_after {
            let late = now.as_second() - warn_after;
            let subject = text(&claims["sub"]);
            let note = format!("subject: {subject}, seconds after warning threshold: {late}");
            annotate("authentication.k8s.io/stale-token", &note);
            registry.metrics.increment(Metric::StaleTokens, &[]);
        } else {
            registry.metrics.increment(Metric::ValidTokens, &[]);
        }
    }
    if let Some(id) = claims["jti"].as_str() {
        extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
    }
    Ok(account_user(&namespace, &name, uid, extra))
}

fn account_user(namespace: &str, name: &str, uid: String, extra: BTreeMap<String, Vec<String>>) -> UserInfo {
    let groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    UserInfo { name: username(namespace, name), uid, groups, extra }.authenticated()
}

/// Authenticates a token of a Secret. It never expires; the Secret must contain this token, and is labelled with the
/// day of its last use.
async fn legacy_user(registry: &Registry, token: &str, claims: &Value) -> Result<UserInfo, String> {
    let claim = |name: &str| {
        let value = text(&claims[format!("kubernetes.io/serviceaccount/{name}")]);
        if value.is_empty() { Err(format!("{name} claim is missing")) } else { Ok(value) }
    };
    let (namespace, secret_name) = (claim("namespace")?, claim("secret.name")?);
    let (name, uid) = (claim("service-account.name")?, claim("service-account.uid")?);
    if claims["sub"] != username(&namespace, &name) {
        return Err("sub claim is invalid".into());
    }
    let secret =
        find(registry, "secrets", &namespace, &secret_name).await.ok_or("Token has been invalidated")?;
    let content: Value = serde_json::from_slice(&secret.json()).map_err(|e| e.to_string())?;
    if !content["metadata"]["deletionTimestamp"].is_null() {
        return Err("Token has been invalidated".into());
    }
    let held = content["data"]["token"].as_str().and_then(|t| STANDARD.decode(t).ok()).unwrap_or_default();
    let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
    if digest(&held).as_ref() != digest(token.as_bytes()).as_ref() {
        return Err("Token does not match server's copy".into());
    }
    let account = find(registry, "serviceaccounts", &namespace, &name).await;
    let account = account.ok_or_else(|| format!("serviceaccounts \"{name}\" not found"))?;
    let metadata = account.metadata().map_err(|e| e.to_string())?;
    if metadata.deletion_timestamp.is_some() {
        return Err(format!("ServiceAccount {namespace}/{name} has been deleted"));
    }
    if account.uid() != uid {
        return Err(format!("ServiceAccount UID ({}) does not match claim ({uid})", account.uid()));
    }
    mark_used(registry, &secret, &namespace, &secret_name).await;
    if secret.header().label(INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
        let shown = format!("{secret_name}/{namespace}");
        annotate("authentication.k8s.io/legacy-token-invalidated", &shown);
        registry.metrics.increment(Metric::InvalidTokens, &[]);
        return Err(format!(
            "the token in secret {namespace}/{secret_name} for service account {namespace}/{name} has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of this token"
        ));
    }
    let account: Value = serde_json::from_slice(&account.json()).map_err(|e| e.to_string())?;
    let automatic =
        account["secrets"].as_array().into_iter().flatten().any(|r| r["name"] == secret_name.as_str());
    if automatic {
        annotate("authentication.k8s.io/legacy-token-autogenerated-secret", &secret_name);
        registry.metrics.increment(Metric::AutoTokens, &[]);
    } else {
        annotate("authentication.k8s.io/legacy-token-manual-secret", &secret_name);
        registry.metrics.increment(Metric::ManualTokens, &[]);
    }
    Ok(account_user(&namespace, &name, uid, BTreeMap::new()))
}

/// Labels the Secret with the current day, once a day. A failure does not refuse the token.
async fn mark_used(registry: &Registry, secret: &Object, namespace: &str, name: &str) {
    let day = |ahead: i64| {
        let at = registry.clock.now() + jiff::SignedDuration::from_hours(24 * ahead);
        at.to_string().chars().take(10).collect::<String>()
    };
    let (today, tomorrow) = (day(0), day(1));
    // The clock of another server may be ahead of this one's.
    if secret.header().label(LAST_USED).is_some_and(|used| used == today || used == tomorrow) {
        return;
    }
    let Some(served) = registry.table.find("", "v1", "secrets") else { return };
    let change = |old: &Value| {
        let mut new = old.clone();
        new["metadata"]["labels"][LAST_USED] = today.clone().into();
        Ok(new)
    };
    let request = Request::own();
    let target = Target { namespace, name, subresource: None };
    let params = WriteParams::own();
    if let Err(error) = modify(registry, &request, &served, &params, target, Change::Update, &change).await {
        tracing::warn!(%error, namespace, name, "cannot label a legacy token's secret with its last use");
    }
}

/// Returns the object from the cache, or from the store if the cache may not have it yet.
pub async fn find(registry: &Registry, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
    let served = registry.table.find("", "v1", plural)?;
    if name.is_empty() {
        return None;
    }
    if let Some(held) = served.cache().ok()?.get(&served.cache_key(namespace, name)) {
        return Some(held);
    }
    store::read(registry, &served, namespace, name).await.ok()?.map(|c| c.object)
}

pub fn username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}
