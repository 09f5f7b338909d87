//! An aggregated API server for tests: a [`FakeApi`] over HTTPS, with discovery, OpenAPI, watches and tables.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use knarr_api::kind::ResourceType;
use knarr_client::{Error, ListOptions, Transport, WatchEvent};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::{FakeApi, tls};

type Body = UnsyncBoxBody<Bytes, Error>;

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    /// Path and query.
    pub uri: String,
    pub headers: HeaderMap,
    /// Whether the client showed a certificate of the authority that the server trusts.
    pub certified: bool,
}

impl Seen {
    /// Returns all values of a header, in order.
    pub fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect()
    }
}

/// A running server; dropping it stops the server and closes its connections.
pub struct ExtensionServer {
    pub address: SocketAddr,
    /// The authority that signed its certificate.
    pub ca_pem: String,
    /// The API that it serves.
    pub api: Arc<FakeApi>,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

struct Served {
    api: Arc<FakeApi>,
    resource: ResourceType,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl ExtensionServer {
    /// Serves the resource on the loopback address under a certificate for these names; `port` 0 stands for
    /// any port. The certificates of clients are verified against `client_ca_pem`.
    pub async fn start(
        names: &[&str],
        port: u16,
        resource: ResourceType,
        api: Arc<FakeApi>,
        client_ca_pem: Option<&str>,
    ) -> std::io::Result<Self> {
        let (tls, ca_pem) = tls::server(names, client_ca_pem).map_err(std::io::Error::other)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let served = Arc::new(Served { api: Arc::clone(&api), resource, seen: Arc::clone(&seen) });
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (acceptor, served) = (acceptor.clone(), Arc::clone(&served));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let certified = stream.get_ref().1.peer_certificates().is_some();
                    let service = service_fn(move |request| handle(Arc::clone(&served), request, certified));
                    // A client that disconnects is no failure of the test.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { address, ca_pem, api, seen, task })
    }

    /// Stops the server; later connections are refused.
    pub async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Returns all requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ExtensionServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(
    served: Arc<Served>,
    request: Request<Incoming>,
    certified: bool,
) -> Result<Response<Body>, Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|e| Error::Protocol(e.to_string()))?.to_bytes();
    let seen = Seen {
        method: parts.method.clone(),
        uri: parts.uri.to_string(),
        headers: parts.headers.clone(),
        certified,
    };
    served.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    if let Some(document) = served.document(parts.uri.path()) {
        return Ok(whole(200, &document));
    }
    let query = parts.uri.query().unwrap_or("").to_owned();
    if parts.method == Method::GET && query.split('&').any(|p| matches!(p, "watch=true" | "watch=1")) {
        return served.watch(parts.uri.path(), &query).await;
    }
    let wants_table =
        parts.headers.get(ACCEPT).is_some_and(|a| a.to_str().unwrap_or("").contains("as=Table"));
    match served.api.send(Request::from_parts(parts, body)).await {
        Ok(answer) if wants_table => Ok(whole(200, &table(answer.body()))),
        Ok(answer) => Ok(answer.map(|body| Full::new(body).map_err(|never| match never {}).boxed_unsync())),
        Err(Error::Status(status)) => Ok(whole(status.code(), &json!(&*status.0))),
        Err(other) => Err(other),
    }
}

fn whole(code: u16, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// Builds a table with one column that only this server has.
fn table(list: &[u8]) -> Value {
    let list: Value = serde_json::from_slice(list).unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_else(|| vec![list.clone()]);
    let rows: Vec<Value> = items
        .iter()
        .map(|item| json!({"cells": [format!("the good ship {}", item["metadata"]["name"].as_str().unwrap_or(""))], "object": item}))
        .collect();
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "rows": rows,
        "columnDefinitions": [{"name": "Title", "type": "string", "format": "", "description": "", "priority": 0}]})
}

impl Served {
    fn document(&self, path: &str) -> Option<Value> {
        let ResourceType { group, version, kind, plural, .. } = self.resource;
        let model = format!("com.example.{version}.{kind}");
        let gvk = json!([{"group": group, "version": version, "kind": kind}]);
        let schema = json!({"type": "object", "description": "A ship in the harbour.",
            "x-kubernetes-group-version-kind": gvk});
        let list = format!("/apis/{group}/{version}/namespaces/{{namespace}}/{plural}");
        let hash = "?hash=ABC";
        match path.trim_matches('/') {
            "openapi/v3" => {
                let path = format!("apis/{group}/{version}");
                let url = format!("/openapi/v3/{path}{hash}");
                Some(json!({"paths": {path: {"serverRelativeURL": url}}}))
            }
            path if path == format!("openapi/v3/apis/{group}/{version}") => Some(json!({
                "openapi": "3.0.0", "info": {"title": "ships", "version": "v0"},
                "paths": {list: {}}, "components": {"schemas": {model: schema}},
            })),
            "openapi/v2" => Some(json!({
                "swagger": "2.0", "info": {"title": "ships", "version": "v0"},
                "paths": {list: {"get": {"responses": {"200": {"description": "OK",
                    "schema": {"$ref": format!("#/definitions/{model}")}}}}}},
                "definitions": {model: schema},
            })),
            _ => None,
        }
    }

    async fn watch(&self, path: &str, query: &str) -> Result<Response<Body>, Error> {
        let namespace = path.split("/namespaces/").nth(1).and_then(|rest| rest.split('/').next());
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(n, _)| *n == name).map(|(_, v)| v.to_owned())
        };
        let options = ListOptions { resource_version: value("resourceVersion"), ..ListOptions::default() };
        let lines = self.api.watch(&self.resource, namespace, &options).await?.map(|event| {
            let (type_, object) = match event? {
                WatchEvent::Added(o) => ("ADDED", o),
                WatchEvent::Modified(o) => ("MODIFIED", o),
                WatchEvent::Deleted(o) => ("DELETED", o),
                WatchEvent::Bookmark(_) => return Ok(Frame::data(Bytes::new())),
            };
            let object: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
            Ok(Frame::data(Bytes::from(format!("{}\n", json!({"type": type_, "object": object})))))
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(lines)));
        response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        Ok(response)
    }
}
