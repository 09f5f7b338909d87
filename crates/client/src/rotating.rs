//! A transport whose identity can be replaced while it is in use.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use knarr_api::certificates::request::not_after;
use knarr_api::kind::ResourceType;

use crate::error::Result;
use crate::http::HttpTransport;
use crate::kubeconfig::Access;
use crate::transport::{List, ListOptions, Transport, WatchStream};

/// Requests use the newest identity. Running watches keep the identity they started with until they end.
pub struct Rotating(RwLock<Current>);

struct Current {
    transport: HttpTransport,
    /// The expiry of the client certificate, if there is one.
    not_after: Option<Timestamp>,
}

impl Current {
    fn of(access: &Access) -> Result<Self> {
        let not_after = access.client_certificate.as_deref().and_then(not_after);
        Ok(Self { transport: HttpTransport::new(access)?, not_after })
    }
}

impl Rotating {
    /// Creates a transport with this access.
    pub fn new(access: &Access) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(RwLock::new(Current::of(access)?))))
    }

    /// Uses this access from now on. On an error nothing changes.
    pub fn exchange(&self, access: &Access) -> Result<()> {
        let next = Current::of(access)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// The transport with the newest identity.
    pub fn current(&self) -> HttpTransport {
        self.0.read().unwrap_or_else(PoisonError::into_inner).transport.clone()
    }

    /// The expiry of the client certificate; `None` if there is none.
    pub fn not_after(&self) -> Option<Timestamp> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).not_after
    }
}

#[async_trait]
impl Transport for Rotating {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        self.current().send(request).await
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        self.current().list(resource, namespace, options).await
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        self.current().watch(resource, namespace, options).await
    }
}
