//! Service-account tokens: issuing them, and checking that what they are bound to still exists.

use std::collections::BTreeMap;

use jiff::Timestamp;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};
use std::sync::Arc;

use super::keys::{PublicKey, SigningKey};
use super::{UserInfo, jwt};
use crate::config::{Config, ConfigError};
use crate::registry::store;
use crate::server::Inner;

/// A token that the kubelet rotates is asked for this long; it is given a year, for clients that never read it again.
const EXTENDED_WHEN: i64 = 3607;
const EXTENDED_TO: i64 = 365 * 24 * 3600;
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The keys and names under which tokens are issued and accepted.
pub struct Tokens {
    signing: Option<SigningKey>,
    keys: Vec<PublicKey>,
    pub issuer: String,
    pub audiences: Vec<String>,
}

/// What a token is issued for.
pub struct Grant<'a> {
    pub account: &'a Object,
    pub audiences: Vec<String>,
    pub expiration_seconds: i64,
    /// Kind in lower case, name and uid of what the token ends with.
    pub bound: Option<(&'static str, String, String)>,
    /// Name and uid of the node of a bound pod.
    pub node: Option<(String, String)>,
}

impl Tokens {
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let signing = match config.service_account_key_pem.as_str() {
            "" => None,
            pem => Some(SigningKey::from_pem(pem)?),
        };
        let mut keys: Vec<PublicKey> = signing.iter().map(|k| k.public.clone()).collect();
        for pem in &config.service_account_public_keys_pem {
            keys.push(PublicKey::from_pem(pem)?);
        }
        let issuer = config.service_account_issuer.clone();
        let audiences = match config.api_audiences.as_slice() {
            [] => vec![issuer.clone()],
            given => given.to_vec(),
        };
        Ok(Self { signing, keys, issuer, audiences })
    }

    /// The public keys as a JSON Web Key Set.
    pub fn jwks(&self) -> Value {
        json!({"keys": self.keys.iter().map(PublicKey::jwk).collect::<Vec<_>>()})
    }

    pub fn algorithms(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.keys.iter().map(|k| k.algorithm.name()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// A signed token and when it expires, as far as its owner is concerned.
    pub fn issue(&self, grant: &Grant<'_>, now: Timestamp) -> Result<(String, Timestamp), StatusError> {
        let key = self
            .signing
            .as_ref()
            .ok_or_else(|| StatusError::new(501, "", "no service account signing key is configured"))?;
        let now_seconds = now.as_second();
        let mut lifetime = grant.expiration_seconds;
        let shown = now_seconds.saturating_add(lifetime);
        let mut private = json!({
            "namespace": grant.account.namespace(),
            "serviceaccount": {"name": grant.account.name(), "uid": grant.account.uid()},
        });
        if let Some((kind, name, uid)) = &grant.bound {
            private[*kind] = json!({"name": name, "uid": uid});
            let for_us = grant.audiences.iter().all(|a| self.audiences.contains(a));
            if *kind == "pod" && lifetime == EXTENDED_WHEN && for_us {
                private["warnafter"] = shown.into();
                lifetime = EXTENDED_TO;
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

    /// Whose token it is, if it is one of ours, meant for us, in time, and all that it is bound to is still there.
    pub async fn authenticate(&self, server: &Inner, token: &str) -> Option<UserInfo> {
        let audiences = self.audiences.clone();
        self.authenticate_for(server, token, &audiences).await.ok().map(|(user, _)| user)
    }

    /// As `authenticate`, for one of these audiences; answers those that the token is for.
    pub async fn authenticate_for(
        &self,
        server: &Inner,
        token: &str,
        audiences: &[String],
    ) -> Result<(UserInfo, Vec<String>), String> {
        let token = jwt::parse(token).ok_or("invalid bearer token")?;
        let claims = &token.claims;
        if claims["iss"] != self.issuer || !token.is_signed_by(&self.keys) {
            return Err("invalid bearer token".into());
        }
        let now = server.clock.now().as_second();
        let number = |name: &str| claims[name].as_i64();
        if number("exp").is_none_or(|exp| now >= exp) {
            return Err("invalid bearer token, service account token has expired".into());
        }
        if number("nbf").is_some_and(|nbf| now < nbf) {
            return Err("invalid bearer token, token is not valid yet".into());
        }
        let said: Vec<&str> = match &claims["aud"] {
            Value::String(one) => vec![one],
            Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let matching: Vec<String> =
            audiences.iter().filter(|a| said.contains(&a.as_str())).cloned().collect();
        if matching.is_empty() {
            return Err(format!(
                "invalid bearer token, token audiences {said:?} is invalid for the target audiences {audiences:?}"
            ));
        }
        let user = self.bound_user(server, claims).await?;
        Ok((user, matching))
    }

    async fn bound_user(&self, server: &Inner, claims: &Value) -> Result<UserInfo, String> {
        let private = &claims["kubernetes.io"];
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let namespace = text(&private["namespace"]);
        let (name, uid) = (text(&private["serviceaccount"]["name"]), text(&private["serviceaccount"]["uid"]));
        if claims["sub"] != username(&namespace, &name) {
            return Err("invalid bearer token, sub claim is invalid".into());
        }
        let account = find(server, "serviceaccounts", &namespace, &name).await;
        if account.is_none_or(|a| a.uid() != uid) {
            return Err("invalid bearer token, service account token has been invalidated".into());
        }
        let mut extra = BTreeMap::new();
        for (kind, plural, place) in [
            ("pod", "pods", namespace.as_str()),
            ("secret", "secrets", namespace.as_str()),
            ("node", "nodes", ""),
        ] {
            let Some(claim) = private.get(kind).filter(|c| c.is_object()) else { continue };
            let (name, uid) = (text(&claim["name"]), text(&claim["uid"]));
            // A pod's node is told for information; the pod is what the token ends with.
            let binding = kind != "node" || private.get("pod").is_none();
            if binding {
                let bound = find(server, plural, place, &name).await;
                if bound.is_none_or(|o| o.uid() != uid) {
                    return Err("invalid bearer token, service account token has been invalidated".into());
                }
            }
            if kind != "secret" {
                extra.insert(format!("authentication.kubernetes.io/{kind}-name"), vec![name]);
                extra.insert(format!("authentication.kubernetes.io/{kind}-uid"), vec![uid]);
            }
        }
        if let Some(id) = claims["jti"].as_str() {
            extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
        }
        let groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Ok(UserInfo { name: username(&namespace, &name), uid, groups, extra }.authenticated())
    }
}

/// The object, from the cache or, where that may not know it yet, from the store.
pub async fn find(server: &Inner, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
    let served = server.table.find("", "v1", plural)?;
    if name.is_empty() {
        return None;
    }
    if let Some(held) = served.cache().ok()?.get(&served.cache_key(namespace, name)) {
        return Some(held);
    }
    store::read(server, &served, namespace, name).await.ok()?.map(|c| c.object)
}

pub fn username(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}
