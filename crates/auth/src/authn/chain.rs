//! The authenticators in upstream's order: proxy headers, client certificate, the kinds of token, anonymous.

use http::request::Parts;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::issuer::{Issuer, config};
use super::options::{Anonymous, Authentication};
use super::request_header::Refused;
use super::service_account::Tokens;
use super::token_file::TokenFile;
use super::webhook::TokenWebhook;
use super::{Authenticated, UserInfo, bearer, bootstrap_token, request_header, service_account};
use crate::authn::x509::Certificate;
use knarr_registry::Registry;
use knarr_reload::Reloaded;
use knarr_wire::keypair::ConfigError;
use knarr_wire::metrics::Metric;
use knarr_wire::query::decode;

/// All authenticators.
pub struct Chain {
    pub tokens: Tokens,
    options: Authentication,
    token_file: Option<Reloaded<TokenFile>>,
    issuers: Reloaded<Issuers>,
    webhook: Option<TokenWebhook>,
}

/// The content of an authentication configuration.
#[derive(Default)]
struct Issuers {
    list: Vec<Issuer>,
    anonymous: Option<Anonymous>,
}

fn issuers(options: &Authentication) -> Result<Reloaded<Issuers>, String> {
    if let Some(path) = &options.config_file {
        return Reloaded::open(vec![path.clone()], |texts| {
            let parsed = config::parse(texts.first().map(Vec::as_slice).unwrap_or_default())?;
            let list = parsed.issuers.into_iter().map(Issuer::new).collect::<Result<_, _>>()?;
            Ok(Issuers { list, anonymous: parsed.anonymous })
        });
    }
    if options.oidc.issuer_url.is_empty() {
        return Ok(Reloaded::fixed(Issuers::default()));
    }
    let issuer = Issuer::new(config::of_flags(&options.oidc)?)?;
    Ok(Reloaded::fixed(Issuers { list: vec![issuer], anonymous: None }))
}

impl Chain {
    pub fn new(options: &Authentication, tokens: Tokens) -> Result<Self, ConfigError> {
        let unusable = |what: &'static str| move |why: String| ConfigError::Unusable { what, why };
        let token_file = options.token_file.iter().map(|path| {
            Reloaded::open(vec![path.clone()], |texts| {
                TokenFile::parse(texts.first().map(Vec::as_slice).unwrap_or_default())
            })
        });
        let token_file = token_file.into_iter().next().transpose().map_err(unusable("the token file"))?;
        let issuers = issuers(options).map_err(unusable("the authentication configuration"))?;
        let webhook = options
            .webhook_config_file
            .iter()
            .map(|file| TokenWebhook::new(file, &options.webhook_version, options.webhook_cache_ttl));
        let webhook = webhook.into_iter().next().transpose().map_err(unusable("the token webhook"))?;
        Ok(Self { tokens, options: options.clone(), token_file, issuers, webhook })
    }

    /// Authenticates a request. The credentials are removed from the headers.
    pub async fn request(
        &self,
        registry: &Registry,
        parts: &mut Parts,
        certificate: &Certificate,
    ) -> Result<UserInfo, StatusError> {
        let started = registry.clock.monotonic();
        let outcome = self.attempt(registry, parts, certificate).await;
        let result = match &outcome {
            Ok(Some(_)) => "success",
            Ok(None) => "failure",
            Err(_) => "error",
        };
        let took = registry.clock.monotonic().saturating_sub(started).as_secs_f64();
        registry.metrics.increment(Metric::AuthenticationAttempts, &[result]);
        registry.metrics.record(Metric::AuthenticationDuration, &[result], took);
        match outcome {
            Ok(Some(user)) => {
                registry.metrics.increment(Metric::AuthenticatedUsers, &[shown(&user.name)]);
                Ok(user)
            }
            Ok(None) => Err(StatusError::unauthorized()),
            Err(error) => {
                tracing::info!(error, path = parts.uri.path(), "cannot authenticate a request");
                Err(StatusError::unauthorized())
            }
        }
    }

    async fn attempt(
        &self,
        registry: &Registry,
        parts: &mut Parts,
        certificate: &Certificate,
    ) -> Result<Option<UserInfo>, String> {
        let mut errors = Vec::new();
        // Whoever the sender is, no later handler may forward the token.
        let token = bearer::take(&mut parts.headers);
        if let Some(proxy) = certificate.proxy.as_ref().and_then(|proxy| proxy.user(registry.clock.now())) {
            match request_header::user(&self.options.request_header, &proxy.name, &mut parts.headers) {
                Ok(Some(user)) => return Ok(Some(user)),
                Ok(None) => {}
                Err(refused @ Refused::Name(_)) => errors.push(refused.to_string()),
                Err(Refused::Unreadable(why)) => return Err(why),
            }
        }
        match &certificate.client {
            None => {}
            Some(Ok(identity)) => match identity.user(registry.clock.now()) {
                Some(user) if !user.name.is_empty() => {
                    let left = identity.seconds_left(registry.clock.now());
                    registry.metrics.record(Metric::ClientCertificateExpiration, &[], left);
                    return Ok(Some(UserInfo::clone(user)));
                }
                Some(_) => {}
                None => errors.push("x509: certificate has expired or is not yet valid".into()),
            },
            Some(Err(refused)) => errors.push(refused.to_string()),
        }
        match token {
            Ok(Some(token)) => match self.token(registry, &token, &self.tokens.audiences).await {
                Ok(Some(found)) => return Ok(Some(found.user)),
                Ok(None) => errors.push("invalid bearer token".into()),
                Err(error) => errors.push(format!("[invalid bearer token, {error}]")),
            },
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
        if !errors.is_empty() {
            return Err(errors.join(", "));
        }
        let configured = self.issuers.get(&*registry.clock);
        let anonymous = configured.anonymous.as_ref().unwrap_or(&self.options.anonymous);
        Ok(anonymous.admits(&decode(parts.uri.path(), false)).then(UserInfo::anonymous))
    }

    /// Authenticates a token; `None` if no authenticator knows it.
    pub async fn token(
        &self,
        registry: &Registry,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, String> {
        // Tokens without audiences are valid for this server.
        let ours = || -> Option<Vec<String>> {
            let ours = &self.tokens.audiences;
            let both: Vec<String> = audiences.iter().filter(|a| ours.contains(a)).cloned().collect();
            (!both.is_empty()).then_some(both)
        };
        let mut errors = Vec::new();
        if let Some(file) = &self.token_file
            && let Some(user) = file.get(&*registry.clock).user(token)
            && let Some(audiences) = ours()
        {
            return Ok(Some(Authenticated { user, audiences }));
        }
        match self.tokens.authenticate(registry, token, audiences).await {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
        if self.options.bootstrap_tokens
            && let Some(user) = bootstrap_user(registry, token).await
            && let Some(audiences) = ours()
        {
            return Ok(Some(Authenticated { user, audiences }));
        }
        for issuer in &self.issuers.get(&*registry.clock).list {
            if let Some(audiences) = ours() {
                match issuer.authenticate(token, &audiences, &*registry.clock).await {
                    Ok(Some(found)) => return Ok(Some(found)),
                    Ok(None) => {}
                    Err(error) => errors.push(error),
                }
            }
        }
        if let Some(webhook) = &self.webhook {
            match webhook.authenticate(registry, token, audiences).await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(None) } else { Err(errors.join(", ")) }
    }
}

async fn bootstrap_user(registry: &Registry, token: &str) -> Option<UserInfo> {
    let (id, secret) = bootstrap_token::parse(token)?;
    let name = format!("{}{id}", bootstrap_token::SECRET_PREFIX);
    let object = service_account::find(registry, "secrets", bootstrap_token::NAMESPACE, &name).await?;
    let value: Value = serde_json::from_slice(&object.json()).ok()?;
    bootstrap_token::user(&value, id, secret, registry.clock.now())
}

/// Returns a user's name as a metrics label: built-in users by name, all others as `other`, so that the number of
/// series does not grow with the users.
fn shown(name: &str) -> &str {
    const BUILT_IN: [&str; 4] =
        ["admin", "kube-apiserver-kubelet-client", "system:anonymous", "kubernetes-admin"];
    let system =
        ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:apiserver"];
    if BUILT_IN.contains(&name) || system.contains(&name) { name } else { "other" }
}
