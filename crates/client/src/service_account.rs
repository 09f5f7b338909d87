//! Acts as a service account: creates it if it is missing, requests tokens, and renews them before they expire.
//!
//! Source: `k8s.io/controller-manager/pkg/clientbuilder`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::{Kind, ResourceType};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::http::{HttpTransport, bearer};
use crate::rotating::Rotating;
use crate::transport::{List, ListOptions, Transport, WatchStream};

/// The requested lifetime of a token.
const LIFETIME_SECONDS: i64 = 3600;
/// The minimum lifetime that is assumed, because the clocks of two machines may differ.
const SHORTEST: Duration = Duration::from_secs(600);

/// The user name of a service account.
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Provides transports that act as service accounts of one namespace.
pub struct ServiceAccounts {
    /// Creates accounts and requests their tokens.
    client: Client,
    /// The connections to the server, without an identity, shared by all accounts.
    server: Arc<Rotating>,
    namespace: String,
}

impl ServiceAccounts {
    /// Creates the provider. `client` must be allowed to create accounts and tokens. `server` must have no identity of
    /// its own: a client certificate would take precedence over the token.
    pub fn new(client: Client, server: Arc<Rotating>, namespace: &str) -> Self {
        Self { client, server, namespace: namespace.to_owned() }
    }

    /// Returns the transport of the account `name`. Nothing is sent before its first use.
    pub fn transport(&self, name: &str) -> Arc<dyn Transport> {
        Arc::new(AsServiceAccount {
            client: self.client.clone(),
            server: Arc::clone(&self.server),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            held: tokio::sync::Mutex::default(),
        })
    }
}

struct AsServiceAccount {
    client: Client,
    server: Arc<Rotating>,
    namespace: String,
    name: String,
    held: tokio::sync::Mutex<Option<Held>>,
}

struct Held {
    authorization: HeaderValue,
    /// In the clock's monotonic time.
    renew_at: Duration,
}

/// How long to use a token of this lifetime: a fifth is left for the renewal.
fn use_for(lifetime: Duration) -> Duration {
    lifetime.max(SHORTEST).mul_f64(0.8)
}

impl AsServiceAccount {
    async fn transport(&self) -> Result<HttpTransport> {
        let mut held = self.held.lock().await;
        let now = self.client.clock().monotonic();
        if let Some(held) = held.as_ref().filter(|h| now < h.renew_at) {
            return Ok(self.with(&held.authorization));
        }
        self.ensure_account().await?;
        let new = self.request().await?;
        let transport = self.with(&new.authorization);
        *held = Some(new);
        Ok(transport)
    }

    /// Returns a transport by the connections of now: authorities and addresses may have changed since the token was
    /// requested.
    fn with(&self, authorization: &HeaderValue) -> HttpTransport {
        self.server.current().with_authorization(authorization.clone())
    }

    /// Drops a token that the server refuses.
    async fn forget(&self) {
        *self.held.lock().await = None;
    }

    async fn ensure_account(&self) -> Result<()> {
        let client = &self.client;
        match client.get::<ServiceAccount>(&self.namespace, &self.name).await {
            Err(error) if error.is_not_found() => {}
            other => return other.map(|_| ()),
        }
        let meta = |namespace: Option<&str>, name: &str| ObjectMeta {
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        // This client may not be allowed to create the namespace. If it is missing, creating the account fails.
        if client.get::<Namespace>("", &self.namespace).await.is_err_and(|e| e.is_not_found()) {
            let namespace = Namespace { metadata: meta(None, &self.namespace), ..Namespace::default() };
            if let Err(error) = client.create(&namespace).await {
                tracing::debug!(%error, namespace = %self.namespace, "failed to create the namespace");
            }
        }
        let account =
            ServiceAccount { metadata: meta(Some(&self.namespace), &self.name), ..ServiceAccount::default() };
        match client.create(&account).await {
            Err(error) if error.is_already_exists() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn request(&self) -> Result<Held> {
        let asked = self.client.clock().monotonic();
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(Vec::new()),
                expiration_seconds: Some(LIFETIME_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let resource = ServiceAccount::RESOURCE;
        let answer: TokenRequest =
            self.client.create_subresource(&resource, &self.namespace, &self.name, "token", &request).await?;
        let status = answer.status.unwrap_or_default();
        let token = status.token.ok_or_else(|| Error::Protocol("a token request without a token".into()))?;
        let ends = status.expiration_timestamp.map(|t| t.0);
        let left = ends.map_or(0, |ends| ends.as_second() - self.client.clock().now().as_second());
        let lifetime = Duration::from_secs(u64::try_from(left).unwrap_or(0));
        Ok(Held { authorization: bearer(&token)?, renew_at: asked + use_for(lifetime) })
    }
}

/// Returns whether the server refused the token.
fn refused<T>(answer: &Result<T>) -> bool {
    matches!(answer, Err(Error::Status(status)) if status.code() == 401)
}

#[async_trait]
impl Transport for AsServiceAccount {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let answer = self.transport().await?.send(request.clone()).await;
        // A refused request had no effect, so it can be sent again with a new token.
        if refused(&answer) {
            self.forget().await;
            return self.transport().await?.send(request).await;
        }
        answer
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        let answer = self.transport().await?.list(resource, namespace, options).await;
        if refused(&answer) {
            self.forget().await;
            return self.transport().await?.list(resource, namespace, options).await;
        }
        answer
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        let answer = self.transport().await?.watch(resource, namespace, options).await;
        if refused(&answer) {
            self.forget().await;
            return self.transport().await?.watch(resource, namespace, options).await;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_end() {
        let table = [(3600, 2880), (600, 480), (5, 480), (0, 480)];
        for (lifetime, used) in table {
            assert_eq!(use_for(Duration::from_secs(lifetime)), Duration::from_secs(used), "{lifetime}");
        }
    }
}
