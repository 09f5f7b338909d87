//! In-process access for components of the same process: the same pipeline, without TLS, HTTP and serialization.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use http::header::ACCEPT;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::{List, ListOptions, Transport, WatchEvent, WatchStream};
use knarr_client::{Client, Error, Result, wire};

use crate::aggregator;
use crate::pipeline;
use crate::state::State;
use knarr_auth::authn::{MASTERS, UserInfo};
use knarr_auth::authz::Attributes;
use knarr_registry::cache::Kind;
use knarr_registry::list;
use knarr_registry::options::ListParams;
use knarr_registry::served::Served;
use knarr_registry::watch::{self, Frame};
use knarr_wire::body::{Body, ByteStream};
use knarr_wire::query::Query;
use knarr_wire::request_info::RequestInfo;

/// The maximum size of a response from an aggregated server that is read whole, in bytes.
const MAX_PROXIED: usize = 256 << 20;

/// Returns the client of the server's own loops.
pub fn own_client(server: &Arc<State>) -> Client {
    let user = UserInfo::new("system:apiserver", &[MASTERS]);
    let transport = Arc::new(InProcess::new(Arc::clone(server), user));
    Client::new(transport, Arc::clone(&server.clock), "kube-apiserver")
        .supervised_by(&server.health.supervisor)
}

/// The in-process access of one component, with its identity.
pub struct InProcess {
    server: Arc<State>,
    user: UserInfo,
}

impl InProcess {
    pub fn new(server: Arc<State>, user: UserInfo) -> Self {
        Self { server, user: user.authenticated() }
    }

    /// Authorizes a list or watch, and returns the resource and the list parameters.
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
            .registry
            .table
            .find(resource.group, resource.version, resource.plural)
            .ok_or_else(StatusError::path_not_found)?;
        let params = ListParams::parse(&served, &info.name, &query, watch)?;
        Ok((served, params))
    }

    /// Returns whether an aggregated server serves the resource's group version.
    fn is_elsewhere(&self, resource: &ResourceType) -> bool {
        aggregator::service_of(&self.server.aggregator, &resource.path(None, None)).is_some()
    }

    /// Reads the whole body. A body from an aggregated server is limited in time and size.
    async fn whole(&self, body: Body) -> Result<Bytes> {
        let stream = match body.collect() {
            Ok(body) => return Ok(body),
            Err(stream) => stream,
        };
        let server = &self.server;
        tokio::select! {
            whole = gather(stream) => whole,
            () = server.stop.cancelled() => Err(broke_off("the server is shutting down")),
            () = server.clock.sleep(server.config.request_timeout) => Err(broke_off("it takes too long")),
        }
    }

    /// Forwards the watch of an aggregated server, until this server stops.
    async fn watch_elsewhere(&self, request: http::Request<Bytes>) -> Result<WatchStream> {
        let response = pipeline::serve_in_process(Arc::clone(&self.server), request, self.user.clone()).await;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            let (code, body) = (parts.status.as_u16(), self.whole(body).await?);
            return Err(Error::Status(wire::status_of(code, &parts.headers, &body)));
        }
        let chunks = match body.collect() {
            Ok(whole) => stream::iter([Ok(whole)]).boxed(),
            Err(chunks) => chunks.map_err(broke_off).boxed(),
        };
        Ok(wire::events(chunks.take_until(self.server.stop.clone().cancelled_owned())))
    }
}

fn broke_off(why: impl std::fmt::Display) -> Error {
    Error::Protocol(format!("a proxied answer broke off: {why}"))
}

fn get(
    resource: &ResourceType,
    namespace: Option<&str>,
    options: &ListOptions,
    watch: bool,
) -> Result<http::Request<Bytes>> {
    let uri = format!("{}?{}", resource.path(namespace, None), options.query(watch));
    let request = http::Request::get(uri).header(ACCEPT, "application/json");
    request.body(Bytes::new()).map_err(|e| Error::Protocol(e.to_string()))
}

#[async_trait]
impl Transport for InProcess {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let response = pipeline::serve_in_process(Arc::clone(&self.server), request, self.user.clone()).await;
        let (parts, body) = response.into_parts();
        let body = self.whole(body).await?;
        if parts.status.is_success() {
            return Ok(http::Response::from_parts(parts, body));
        }
        Err(Error::Status(wire::status_of(parts.status.as_u16(), &parts.headers, &body)))
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        if self.is_elsewhere(resource) {
            let request = get(resource, namespace, options, false)?;
            return wire::parse_list(resource, self.send(request).await?.body());
        }
        let (served, params) = self.open(resource, namespace, options, false).await?;
        let found = list::list(&self.server.registry, &served, namespace, &params).await?;
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
        if self.is_elsewhere(resource) {
            return self.watch_elsewhere(get(resource, namespace, options, true)?).await;
        }
        let (served, params) = self.open(resource, namespace, options, true).await?;
        let session = watch::start(&self.server.registry, &served, namespace, params).await?;
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

/// Reads the response of an aggregated server, up to the maximum size.
async fn gather(mut stream: ByteStream) -> Result<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(broke_off)?;
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
