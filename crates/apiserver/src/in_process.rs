//! The way in for components of the same process: the same pipeline, without TLS, HTTP and copies of the world.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::{List, ListOptions, Transport, WatchEvent, WatchStream};
use knarr_client::{Error, Result};

use crate::authn::UserInfo;
use crate::authz::Attributes;
use crate::cache::Kind;
use crate::http::body::ByteStream;
use crate::http::query::Query;
use crate::http::request_info::RequestInfo;
use crate::pipeline;
use crate::registry::list;
use crate::registry::options::ListParams;
use crate::registry::served::Served;
use crate::registry::watch::{self, Frame};
use crate::server::Inner;

/// The longest answer of a proxied server that is read whole.
const MAX_PROXIED: usize = 16 << 20;

/// One component's access, with its identity.
pub struct InProcess {
    server: Arc<Inner>,
    user: UserInfo,
}

impl InProcess {
    pub fn new(server: Arc<Inner>, user: UserInfo) -> Self {
        Self { server, user: user.authenticated() }
    }

    /// Authorizes a list or watch and finds what it is about.
    async fn open(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
        watch: bool,
    ) -> Result<(Arc<Served>, ListParams), StatusError> {
        if self.server.stop.is_cancelled() {
            return Err(StatusError::unavailable("the server is shutting down"));
        }
        let query = Query::parse(&options.query(watch));
        let info = RequestInfo::parse(&Method::GET, &resource.path(namespace, None), &query);
        self.server.authorizer.check(&self.user, &Attributes::of_request(&info, &query)).await?;
        let served = self
            .server
            .table
            .find(resource.group, resource.version, resource.plural)
            .ok_or_else(StatusError::path_not_found)?;
        let params = ListParams::parse(&served, &query, watch)?;
        Ok((served, params))
    }
}

#[async_trait]
impl Transport for InProcess {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let proxied = request.uri().path().contains("/proxy/");
        let response = pipeline::serve_in_process(Arc::clone(&self.server), request, self.user.clone()).await;
        let (parts, body) = response.into_parts();
        let body = match body.collect() {
            Ok(body) => body,
            Err(stream) if proxied => gather(stream).await?,
            Err(_) => return Err(Error::Protocol("a stream cannot be answered in process".into())),
        };
        if parts.status.is_success() {
            return Ok(http::Response::from_parts(parts, body));
        }
        match serde_json::from_slice::<Status>(&body) {
            Ok(status) => Err(Error::Status(StatusError(Box::new(status)))),
            Err(_) => {
                let text = String::from_utf8_lossy(&body).into_owned();
                Err(Error::Status(StatusError::new(parts.status.as_u16(), "", text)))
            }
        }
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        let (served, params) = self.open(resource, namespace, options, false).await?;
        let found = list::list(&self.server, &served, namespace, &params).await?;
        Ok(List {
            items: found.items,
            resource_version: found.resource_version.to_string(),
            continue_token: found.continue_token,
        })
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        let (served, params) = self.open(resource, namespace, options, true).await?;
        let session = watch::start(&self.server, &served, namespace, params).await?;
        let events = stream::unfold(Some(session), |session| async move {
            let mut session = session?;
            match session.next().await? {
                Ok(frame) => Some((Ok(event(frame)), Some(session))),
                Err(error) => Some((Err(Error::Status(error)), None)),
            }
        });
        Ok(Box::pin(events))
    }
}

/// What a server behind this one answers, as long as it is no more than components ask for.
async fn gather(mut stream: ByteStream) -> Result<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| Error::Protocol(format!("a proxied answer broke off: {e}")))?;
        if whole.len() + chunk.len() > MAX_PROXIED {
            return Err(Error::Protocol("a proxied answer is too long".into()));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

fn event(frame: Frame) -> WatchEvent {
    match frame {
        Frame::Change(change) => match change.kind {
            Kind::Added => WatchEvent::Added(change.object),
            Kind::Modified => WatchEvent::Modified(change.object),
            Kind::Deleted => WatchEvent::Deleted(change.object),
        },
        Frame::Bookmark { revision, .. } => WatchEvent::Bookmark(revision.to_string()),
    }
}
