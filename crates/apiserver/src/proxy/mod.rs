//! Forwards requests: logs, exec, attach and port-forward to kubelets, proxying to nodes, pods and services.

mod addresses;
mod dial;
mod locate;
mod log_socket;
mod node_identity;
mod pages;
mod rewrite;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    LOCATION, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_serving::IdleMonitor;
use rustls::ClientConfig;
use serde_json::{Value, json};

use knarr_auth::authz::{self, Authorizer};
use knarr_registry::Registry;
use knarr_registry::attributes::{Attributes, Operation};
use knarr_wire::body::{Body, BoxError};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

pub use dial::{Dialer, Kubelets};
use pages::Links;
pub use rewrite::escape;

/// Forwards requests to kubelets, pods and services.
pub struct Proxy {
    pub registry: Arc<Registry>,
    pub authorizer: Arc<Authorizer>,
    pub dialer: Arc<Dialer>,
    /// Whether backends may have loopback and link-local addresses.
    pub to_own_machine: bool,
    /// Whether the gate AuthorizePodWebsocketUpgradeCreatePermission is on.
    pub upgrades_need_create: bool,
}

impl Proxy {
    /// Returns the body of a GET request to a node's kubelet, up to `most` bytes.
    ///
    /// # Errors
    /// Why the kubelet is not reachable, or its error.
    pub async fn get_from_kubelet(&self, node: &str, path: &str, most: usize) -> Result<Bytes, String> {
        let to = locate::kubelet_of(self, node).await.map_err(|e| e.to_string())?;
        if let (false, Backend::Kubelet { address, .. }) = (self.to_own_machine, &to) {
            // As for requests to `nodes/proxy`: a node decides what its address is.
            addresses::of_host(address).await.map_err(|e| e.to_string())?;
        }
        let (mut sender, authority) = self.dialer.connect(&to).await?;
        let request = http::Request::get(path).header(HOST, authority).body(Full::new(Bytes::new()));
        let answer =
            sender.send_request(request.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), most).collect().await.map_err(|e| e.to_string())?.to_bytes();
        match status.is_success() {
            true => Ok(body),
            false => Err(format!("the kubelet answered {status}")),
        }
    }
}

/// The destination of a request.
pub struct Location {
    pub to: Backend,
    /// The path and query for the backend.
    pub path: String,
}

pub enum Backend {
    /// The kubelet of this node, by address and port, over TLS with our client certificate.
    Kubelet { node: String, address: String, port: u16 },
    /// An HTTP server.
    Plain { address: String, port: u16 },
    /// An HTTP server over TLS whose certificate must have this name.
    Tls { address: String, port: u16, server_name: String, tls: Arc<ClientConfig> },
}

impl Backend {
    /// Returns the authority, such as `10.0.0.1:80`.
    pub fn authority(&self) -> String {
        let (Self::Kubelet { address, port, .. }
        | Self::Plain { address, port }
        | Self::Tls { address, port, .. }) = self;
        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
    }
}

/// The maximum length of a kubelet's error in our answer, in bytes.
const MAX_ERROR: usize = 2048;
/// The maximum size of a page whose links are rewritten; such a page is buffered whole.
const MAX_PAGE: usize = 16 << 20;
/// A tunnel ends after this time without traffic, as the kubelet's streams do.
const TUNNEL_IDLE: Duration = Duration::from_secs(4 * 3600);
/// Hop-by-hop headers.
const HOP_BY_HOP: [HeaderName; 4] =
    [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, HeaderName::from_static("keep-alive")];

/// Answers `log`, `exec`, `attach`, `portforward` and `proxy`.
pub async fn answer(proxy: &Proxy, request: &Request) -> Result<Answer, StatusError> {
    if request.info.subresource != "log" && request.query.non_empty("dryRun").is_some() {
        return Err(StatusError::bad_request("dryRun is not supported"));
    }
    admit(proxy, request).await?;
    let streaming = matches!(request.info.subresource.as_str(), "exec" | "attach" | "portforward");
    if streaming {
        may_create(proxy, request).await?;
    }
    let upgrade = request.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
    if streaming && upgrade.is_none() {
        // The backend is located first, because upstream answers errors in that order.
        locate::locate(proxy, request).await?;
        return Err(StatusError::bad_request("Upgrade request required"));
    }
    let proxied = request.info.subresource == "proxy";
    // The request is only forwarded if its backend was found.
    let Some(location) = locate::locate(proxy, request).await? else {
        return Ok(Answer::text(200, ""));
    };
    if proxied
        && upgrade.is_none()
        && let Some(redirect) = to_root(request)
    {
        return Ok(Answer::Raw(redirect));
    }
    let is_log = request.info.subresource == "log";
    let switching = upgrade.is_some() && !is_log;
    let rewrite::Proxied { prefix, rest } = rewrite::split(&request.raw_path, &request.info.resource);
    let set_headers = |headers: &mut HeaderMap| {
        if proxied {
            rewrite::forwarded(headers, &format!("{prefix}{rest}"));
        }
    };
    let response = send(proxy, request, &location, switching, set_headers).await;
    let response = response.map_err(|failure| unreachable(failure, &request.info.subresource, &location))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return tunnel(proxy, upgrade, response).map(Answer::Raw);
    }
    if is_log {
        let log = log(response).await?;
        return match upgrade.filter(|_| log_socket::wanted(&request.headers)) {
            Some(client) => log_socket::answer(proxy.registry.stop.clone(), &request.headers, client, log)
                .map(Answer::Raw),
            None => Ok(Answer::Raw(log)),
        };
    }
    let (mut parts, body) = response.into_parts();
    if proxied {
        let authority = location.to.authority();
        let host = request.headers.get(HOST).and_then(|h| h.to_str().ok()).unwrap_or("");
        let hosts = [authority.as_str(), host];
        rewrite::answer(&mut parts.headers, &prefix, &hosts);
        if is_page(&parts.headers) {
            parts.headers.remove(CONTENT_LENGTH);
            parts.headers.remove(TRANSFER_ENCODING);
            let page = page(body, &Links { prefix: &prefix, hosts: &hosts }).await?;
            return Ok(Answer::Raw(Response::from_parts(parts, page)));
        }
    }
    parts.headers.remove(TRANSFER_ENCODING);
    Ok(Answer::Raw(Response::from_parts(parts, stream(body))))
}

/// Returns the Status for an unreachable backend, with upstream's messages. Its reason is empty, except for `proxy`.
fn unreachable(failure: Failure, subresource: &str, location: &Location) -> StatusError {
    let plain = |message: String| StatusError::new(500, "", message);
    match (subresource, failure) {
        ("proxy", Failure::Connecting(why) | Failure::Sending(why)) => {
            StatusError::unavailable(format!("error trying to reach service: {why}"))
        }
        ("log", Failure::Connecting(why) | Failure::Sending(why)) => {
            let url = format!("https://{}{}", location.to.authority(), location.path);
            plain(format!("Get {url:?}: {why}"))
        }
        (_, Failure::Connecting(why)) => plain(format!("error dialing backend: {why}")),
        (_, Failure::Sending(why)) => plain(format!("error sending request: {why}")),
    }
}

/// Checks the permission to create. A WebSocket is opened by GET, which is authorized as `get`, but exec and the like
/// need `create` whatever the method.
async fn may_create(proxy: &Proxy, request: &Request) -> Result<(), StatusError> {
    let info = &request.info;
    if info.verb == "create" || !proxy.upgrades_need_create {
        return Ok(());
    }
    let wanted = authz::Attributes {
        verb: "create".to_owned(),
        ..authz::Attributes::of_request(info, &request.query)
    };
    let decision = proxy.authorizer.authorize(&request.user, &wanted).await;
    if decision.is_allowed() {
        return Ok(());
    }
    let resource = GroupResource::new(&info.group, &info.resource);
    Err(StatusError::forbidden(&resource, &info.name, decision.reason()))
}

fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    kind.starts_with("text/html") && !headers.contains_key(CONTENT_ENCODING)
}

async fn page(body: Incoming, links: &Links<'_>) -> Result<Body, StatusError> {
    let page = Limited::new(body, MAX_PAGE).collect().await;
    let page = page.map_err(|e| StatusError::internal(format!("error reading page: {e}")))?.to_bytes();
    Ok(Body::Full(match std::str::from_utf8(&page) {
        Ok(text) => Bytes::from(links.html(text)),
        Err(_) => page,
    }))
}

/// Forwards a whole request with these headers. Error texts are Go's.
pub async fn pass(
    proxy: &Proxy,
    request: &Request,
    location: &Location,
    set: impl FnOnce(&mut HeaderMap),
) -> Result<Answer, String> {
    let upgrade = request.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (sender, authority) = proxy.dialer.connect(&location.to).await?;
    let sent = send_on(sender, &authority, request, location, upgrade.is_some(), set).await;
    let response = sent.map_err(|failure| match failure {
        Failure::Connecting(why) | Failure::Sending(why) => why,
    })?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return tunnel(proxy, upgrade, response).map(Answer::Raw).map_err(|e| e.to_string());
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(TRANSFER_ENCODING);
    Ok(Answer::Raw(Response::from_parts(parts, stream(body))))
}

/// Redirects a proxied path without a trailing slash to the one with it, so that relative links work.
fn to_root(request: &Request) -> Option<Response<Body>> {
    let rest = rewrite::split(&request.raw_path, &request.info.resource).rest;
    if !rest.is_empty() || !matches!(request.method, Method::GET | Method::HEAD) {
        return None;
    }
    let query = request.raw_query.as_deref().map(|q| format!("?{q}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(&format!("{}/{query}", request.info.path)).ok()?;
    response.headers_mut().insert(LOCATION, to);
    Some(response)
}

/// Runs admission for connects, which are all of these except logs.
async fn admit(proxy: &Proxy, request: &Request) -> Result<(), StatusError> {
    let info = &request.info;
    if info.subresource == "log" {
        return Ok(());
    }
    let served = proxy.registry.table.find(&info.group, &info.version, &info.resource);
    let served = served.ok_or_else(StatusError::path_not_found)?;
    let place = (info.namespace.as_str(), info.name.as_str(), info.subresource.as_str());
    let mut attributes = Attributes::new(request, &served, Operation::Connect, place, Value::Null, false);
    let kind = attributes.kind();
    attributes.object = connect_options(request, &kind.api_version(), &kind.kind);
    proxy.registry.admit(&mut attributes).await.map(|_| ())
}

/// Returns the query as the options object for admission.
fn connect_options(request: &Request, api_version: &str, kind: &str) -> Value {
    let query = &request.query;
    let mut options = json!({"kind": kind, "apiVersion": api_version});
    match request.info.subresource.as_str() {
        "exec" | "attach" => {
            for flag in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|f| query.flag(f)) {
                options[flag] = true.into();
            }
            if let Some(container) = query.non_empty("container") {
                options["container"] = container.into();
            }
            if request.info.subresource == "exec" {
                options["command"] = query.all("command").collect();
            }
        }
        "portforward" => {
            options["ports"] = query.all("ports").filter_map(|p| p.parse::<u16>().ok()).collect();
        }
        _ if !request.info.rest.is_empty() => options["path"] = request.info.rest.clone().into(),
        _ => {}
    }
    options
}

fn stream(body: Incoming) -> Body {
    Body::Stream(Box::pin(body.into_data_stream().map_err(|e| Box::new(e) as BoxError)))
}

async fn log(response: Response<Incoming>) -> Result<Response<Body>, StatusError> {
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let text = match Limited::new(response.into_body(), MAX_ERROR).collect().await {
            Ok(all) => String::from_utf8_lossy(&all.to_bytes()).into_owned(),
            Err(_) => String::new(),
        };
        return Err(match status {
            StatusCode::BAD_REQUEST => StatusError::bad_request(text),
            StatusCode::NOT_FOUND => StatusError::new(404, "NotFound", text),
            _ => StatusError::internal(text),
        });
    }
    let mut answer = Response::new(stream(response.into_body()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(answer)
}

/// Why a backend gave no response, with Go's error texts.
enum Failure {
    Connecting(String),
    Sending(String),
}

async fn send(
    proxy: &Proxy,
    request: &Request,
    location: &Location,
    upgrade: bool,
    set: impl FnOnce(&mut HeaderMap),
) -> Result<Response<Incoming>, Failure> {
    let (sender, authority) = proxy.dialer.connect(&location.to).await.map_err(Failure::Connecting)?;
    send_on(sender, &authority, request, location, upgrade, set).await
}

async fn send_on(
    mut sender: SendRequest<Full<Bytes>>,
    authority: &str,
    request: &Request,
    location: &Location,
    upgrade: bool,
    set: impl FnOnce(&mut HeaderMap),
) -> Result<Response<Incoming>, Failure> {
    let method = if request.info.subresource == "log" { Method::GET } else { request.method.clone() };
    let mut out = http::Request::builder().method(method).uri(&location.path);
    if let Some(headers) = out.headers_mut() {
        copy_headers(&request.headers, headers, upgrade);
        rewrite::forwarded_for(headers, request.peer);
        if let Ok(host) = HeaderValue::from_str(authority) {
            headers.insert(HOST, host);
        }
        set(headers);
    }
    let body = Full::new(if upgrade { Bytes::new() } else { request.body.clone() });
    let out = out.body(body).map_err(|e| Failure::Sending(e.to_string()))?;
    sender.send_request(out).await.map_err(|e| match e.is_incomplete_message() {
        true => Failure::Sending("EOF".into()),
        false => Failure::Sending(e.to_string()),
    })
}

/// Copies the headers, without the hop-by-hop ones unless the connection itself is to be upgraded.
fn copy_headers(from: &HeaderMap, to: &mut HeaderMap, upgrade: bool) {
    for (name, value) in from {
        let of_connection =
            HOP_BY_HOP.contains(name) || (!upgrade && (*name == CONNECTION || *name == UPGRADE));
        if !of_connection && !name.as_str().starts_with("impersonate-") {
            to.append(name, value.clone());
        }
    }
}

/// Copies bytes in both directions once both sides have upgraded.
fn tunnel(
    proxy: &Proxy,
    client: Option<OnUpgrade>,
    mut response: Response<Incoming>,
) -> Result<Response<Body>, StatusError> {
    let Some(client) = client else {
        return Err(StatusError::internal("the backend switched protocols without being asked"));
    };
    let backend = hyper::upgrade::on(&mut response);
    let stop = proxy.registry.stop.clone();
    tokio::spawn(async move {
        let both = async { tokio::try_join!(client, backend) };
        let (client, backend) = match both.await {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "upgrade failed");
                return;
            }
        };
        let (mut client, mut backend) = (IdleMonitor::new(TokioIo::new(client)), TokioIo::new(backend));
        let idle = client.idle_for(TUNNEL_IDLE);
        tokio::select! {
            () = stop.cancelled() => {}
            () = idle => tracing::debug!("tunnel ended: idle for too long"),
            done = tokio::io::copy_bidirectional(&mut client, &mut backend) => {
                if let Err(error) = done {
                    tracing::debug!(%error, "tunnel ended");
                }
            }
        }
    });
    let (parts, _) = response.into_parts();
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    copy_headers(&parts.headers, answer.headers_mut(), true);
    Ok(answer)
}
