//! The pipeline of a request: authentication, impersonation, authorization, handler, response.

use std::net::{IpAddr, Ipv4Addr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{
    CACHE_CONTROL, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, UPGRADE, WARNING, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Response, Version};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use knarr_apimachinery::duration;
use knarr_apimachinery::status::StatusError;
use knarr_serving::{CloseConnection, KnownSender};
use serde_json::{Value, json};

use crate::aggregator;
use crate::audit::{self, Annotations, Source, Trail};
use crate::flowcontrol::estimate::Known;
use crate::flowcontrol::{Classified, Seat};
use crate::handlers::{dispatch, paths};
use crate::local_api;
use crate::resource_metrics;
use crate::state::State;
use knarr_auth::authn::impersonation::{self, Mode, Need};
use knarr_auth::authn::x509::Certificate;
use knarr_auth::authn::{ANONYMOUS, MASTERS, UNAUTHENTICATED, UserInfo};
use knarr_auth::authz::Attributes;
use knarr_wire::body::Body;
use knarr_wire::input;
use knarr_wire::metrics::{Metric, Observed};
use knarr_wire::negotiate::{self, Form, Format, Negotiated, Offers};
use knarr_wire::output::{self, Answer, ListAnswer};
use knarr_wire::query::Query;
use knarr_wire::request::Request;
use knarr_wire::request_info::RequestInfo;
use knarr_wire::routes::{self, Writes};
use knarr_wire::table::IncludeObject;
use knarr_wire::unreadable;
use knarr_wire::yaml::Yaml;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// The maximum size of all Warning headers of a response together, in bytes.
const MAX_WARNING_BYTES: usize = 4096;
/// How much of a body that is too large is read and discarded, as a multiple of the limit.
const DISCARDED_LIMITS: usize = 4;

/// The sender of a request.
enum Sender {
    /// A network client, which must authenticate.
    Network(Box<Certificate>),
    /// A component of this process.
    Component(UserInfo),
}

impl Sender {
    fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Network(certificate) => certificate.peer,
            Self::Component(_) => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        }
    }
}

/// Handles one request from the network.
pub async fn serve(
    server: Arc<State>,
    mut request: http::Request<Incoming>,
    certificate: Certificate,
) -> Response<Body> {
    let upgrade = wants_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    answer(server, parts, Payload::Stream(body), upgrade, Sender::Network(Box::new(certificate))).await
}

/// Returns whether the client asks to switch to another protocol, which takes both headers.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    let connection = headers.get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let mut options = connection.flat_map(|value| value.split(',').map(str::trim));
    headers.contains_key(UPGRADE) && options.any(|option| option.eq_ignore_ascii_case("upgrade"))
}

/// Handles one request of a component of this process.
pub async fn serve_in_process(
    server: Arc<State>,
    request: http::Request<Bytes>,
    user: UserInfo,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    answer(server, parts, Payload::Whole(body), None, Sender::Component(user)).await
}

/// The body, which may not have been read yet.
enum Payload {
    Stream(Incoming),
    Whole(Bytes),
}

impl Payload {
    async fn read(self, most: usize) -> Result<Bytes, StatusError> {
        match self {
            Self::Whole(bytes) if bytes.len() > most => Err(StatusError::request_entity_too_large(most)),
            Self::Whole(bytes) => Ok(bytes),
            Self::Stream(mut body) => match Limited::new(&mut body, most).collect().await {
                Ok(all) => Ok(all.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => {
                    discard(body, most.saturating_mul(DISCARDED_LIMITS)).await;
                    Err(StatusError::request_entity_too_large(most))
                }
                Err(error) => Err(StatusError::bad_request(format!("cannot read the request body: {error}"))),
            },
        }
    }
}

/// Reads and discards the rest of the body. Many clients read the response only after they have sent everything; they
/// would find the connection closed otherwise.
async fn discard(mut body: Incoming, most: usize) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > most {
            return;
        }
    }
}

/// A request in progress.
struct Work {
    parts: Parts,
    body: Payload,
    upgrade: Option<OnUpgrade>,
    sender: Sender,
    info: RequestInfo,
    query: Query,
}

async fn answer(
    server: Arc<State>,
    parts: Parts,
    body: Payload,
    upgrade: Option<OnUpgrade>,
    sender: Sender,
) -> Response<Body> {
    let started = server.clock.monotonic();
    let query = Query::parse(parts.uri.query().unwrap_or(""));
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
    if let Some(refusal) = unreadable::answer(&parts, &info) {
        return refusal;
    }
    let audit_id = audit_id(&parts.headers);
    let lenient = negotiate::negotiate_leniently(&parts.headers, &query);
    let known = is_served(&server, &info);
    let observed = Arc::new(Observed::new(&info, &query, known));
    let long = info.is_long_running();
    let path = info.path.clone();
    let running = long.then(|| LongRunning::begin(&server, &observed));
    let http2 = parts.version == Version::HTTP_2;
    let way = Arc::new(Way { audit_id: audit_id.clone(), notes: Annotations::default(), ..Way::default() });
    let asked = query.get("timeout").filter(|text| !text.is_empty());
    let allowed = allowed_time(asked, server.config.request_timeout);
    if !long && allowed.is_err() {
        // The request is refused before authentication, but audited all the same, as upstream does.
        let source = Source { id: &way.audit_id, peer: sender.peer(), parts: &parts, info: &info };
        if let Some(trail) = Trail::begin(&server.audit, &source, UserInfo::default(), &way.notes) {
            // Set once: the request ends here.
            let _ = way.trail.set(trail);
        }
    }
    let work = Work { parts, body, upgrade, sender, info, query };
    let work = audit::collect(Arc::clone(&way.notes), carry_out(&server, work, &way));
    let work = AssertUnwindSafe(work).catch_unwind();
    let outcome = match allowed {
        _ if long => work.await,
        Err(refusal) => Ok(Err(refusal)),
        Ok(allowed) => tokio::select! {
            outcome = work => outcome,
            () = server.clock.sleep(allowed) => {
                server.metrics.terminated(&observed, 504);
                server.metrics.aborted(&observed);
                Ok(Err(StatusError::timeout(
                    "the server was unable to return a response in the time allotted, but may still be processing the request",
                )))
            }
        },
    };
    let panicked = outcome.is_err();
    let mut response = match outcome {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => output::write_error(&error, lenient),
        Err(_) => {
            tracing::error!(path, "a handler panicked");
            server.metrics.aborted(&observed);
            let message = "This request caused apiserver to panic. Look in the logs for details.";
            output::write_error(&StatusError::new(500, "InternalError", message), lenient)
        }
    };
    let took = server.clock.monotonic().saturating_sub(started);
    let code = response.status().as_u16();
    let queued = Duration::from_nanos(way.queued_nanos.load(Ordering::Relaxed));
    server.metrics.observe(&observed, code, took, queued, response.body().length());
    if code == 429 && way.refused.load(Ordering::Relaxed) {
        server.metrics.terminated(&observed, code);
    }
    if let Some(trail) = way.trail.get() {
        response = audited(trail, response, panicked).await;
    }
    if let Some(running) = running {
        response = response.map(|body| body.holding(running));
    }
    let headers = response.headers_mut();
    if let Ok(audit_id) = HeaderValue::from_str(&audit_id) {
        headers.insert(AUDIT_ID, audit_id);
    }
    if let Some(classified) = way.classified.get() {
        for (name, uid) in [(SCHEMA_UID, &classified.schema_uid), (LEVEL_UID, &classified.level_uid)] {
            if let Ok(uid) = HeaderValue::from_str(uid) {
                headers.insert(name, uid);
            }
        }
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    if way.known.load(Ordering::Relaxed) {
        response.extensions_mut().insert(KnownSender);
    }
    if let (true, Some(close)) = (http2, way.unknown.get()) {
        response.extensions_mut().insert(*close);
    }
    response
}

/// Returns the timeout of a request: the one that the client asks for, at most the server's.
fn allowed_time(asked: Option<&str>, most: Duration) -> Result<Duration, StatusError> {
    let Some(asked) = asked else { return Ok(most) };
    let asked = duration::parse(asked).map_err(|why| {
        StatusError::bad_request(format!("invalid timeout specified in the request URL - {why}"))
    })?;
    // Zero and negative values mean the server's timeout.
    Ok(Duration::try_from(asked).ok().filter(|asked| !asked.is_zero()).map_or(most, |asked| asked.min(most)))
}

/// State that is collected during a request and needed at its end, however it ends.
#[derive(Default)]
struct Way {
    audit_id: String,
    notes: Annotations,
    trail: OnceLock<Arc<Trail>>,
    classified: OnceLock<Classified>,
    queued_nanos: AtomicU64,
    /// Whether flow control rejected the request.
    refused: AtomicBool,
    /// How to close the HTTP/2 connection of an unauthenticated sender: it serves this one request only, because
    /// flooding over HTTP/2 is cheap. Source: the gate UnauthenticatedHTTP2DOSMitigation.
    unknown: OnceLock<CloseConnection>,
    /// Whether the sender is authenticated, by whatever credentials.
    known: AtomicBool,
}

/// Returns the client's audit ID, or a new one.
fn audit_id(headers: &HeaderMap) -> String {
    let given = headers.get(AUDIT_ID).and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty());
    given.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned)
}

/// Records the end of the request in the audit log; for a stream, when the stream ends.
async fn audited(trail: &Arc<Trail>, response: Response<Body>, panicked: bool) -> Response<Body> {
    let code = response.status().as_u16();
    let failure = match response.body() {
        Body::Full(bytes) if code >= 400 => serde_json::from_slice::<Value>(bytes).ok(),
        _ => None,
    };
    trail.answered(code, failure);
    if panicked {
        trail.panicked().await;
        return response;
    }
    if matches!(response.body(), Body::Stream(_)) {
        trail.started().await;
        let end = Completes(Arc::clone(trail));
        return response.map(|body| body.holding(end));
    }
    trail.complete().await;
    response
}

struct Completes(Arc<Trail>);

impl Drop for Completes {
    fn drop(&mut self) {
        let trail = Arc::clone(&self.0);
        // The client already has its response, so it does not wait for the audit backend.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { trail.complete().await });
        }
    }
}

/// Counts a long-running request until it is dropped.
struct LongRunning {
    server: Arc<State>,
    observed: Arc<Observed>,
}

impl LongRunning {
    fn begin(server: &Arc<State>, observed: &Arc<Observed>) -> Self {
        server.metrics.long_running(observed, 1.0);
        Self { server: Arc::clone(server), observed: Arc::clone(observed) }
    }
}

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.server.metrics.long_running(&self.observed, -1.0);
    }
}

fn is_served(server: &State, info: &RequestInfo) -> bool {
    let served = server.registry.table.find(&info.group, &info.version, &info.resource);
    served.is_some_and(|s| info.subresource.is_empty() || s.resource.subresource(&info.subresource).is_some())
}

async fn carry_out(server: &Arc<State>, work: Work, way: &Way) -> Result<Response<Body>, StatusError> {
    let Work { mut parts, body, upgrade, sender, info, query } = work;
    let peer = sender.peer();
    let user = match sender {
        Sender::Network(certificate) => {
            server.authentication.request(&server.registry, &mut parts, &certificate).await
        }
        Sender::Component(user) => Ok(user),
    };
    let unknown = match &user {
        Err(_) => Some(CloseConnection::Now),
        Ok(user) if user.name == ANONYMOUS || user.in_group(UNAUTHENTICATED) => {
            Some(CloseConnection::WhenDone)
        }
        Ok(_) => None,
    };
    way.known.store(unknown.is_none(), Ordering::Relaxed);
    if let Some(close) = unknown.filter(|_| server.config.features.is_on("UnauthenticatedHTTP2DOSMitigation"))
    {
        // Set only here.
        let _ = way.unknown.set(close);
    }
    let source = Source { id: &way.audit_id, peer, parts: &parts, info: &info };
    let trail = Trail::begin(&server.audit, &source, user.as_ref().cloned().unwrap_or_default(), &way.notes);
    if let Some(trail) = &trail {
        if user.is_ok() && !trail.received().await {
            return Ok(not_audited(&parts));
        }
        // Set only here.
        let _ = way.trail.set(Arc::clone(trail));
    }
    let trail = trail.as_deref();
    let attributes = Attributes::of_request(&info, &query);
    let user = match impersonate(server, user?, &mut parts.headers, &attributes, trail).await {
        Ok(user) => user,
        Err(refusal) => return Ok(refused(&refusal, &parts.headers, &query)),
    };
    let seat = match take_seat(server, &user, &info, &query, way).await {
        Ok(seat) => seat,
        Err(refusal) => return Ok(refusal),
    };
    if let Err(refusal) = server.authorizer.check_request(&user, &attributes, &info.path).await {
        return Ok(refused(&refusal, &parts.headers, &query));
    }
    let body = body.read(server.config.max_request_body_bytes).await?;
    if !body.is_empty() && is_served(server, &info) {
        let labels = [info.group.as_str(), info.resource.as_str(), info.verb.as_str()];
        server.metrics.record(Metric::BodySizes, &labels, body.len() as f64);
    }
    if let Some(trail) = trail
        && trail.wants_request()
    {
        trail.request_object(requested(server, &info, &parts.headers, &body));
    }
    let request = Request {
        info,
        query,
        raw_path: parts.uri.path().to_owned(),
        raw_query: parts.uri.query().map(str::to_owned),
        peer,
        method: parts.method,
        headers: parts.headers,
        body,
        user,
        warnings: Mutex::default(),
        upgrade: Mutex::new(upgrade),
    };
    let answer = if request.info.malformed {
        Err(StatusError::path_not_found())
    } else if let Some(api_service) = aggregator::service_of(&server.aggregator, &request.info.path) {
        Ok(aggregator::answer(&server.aggregator, &request, &api_service, &way.audit_id).await)
    } else if request.info.is_resource {
        resource(server, &request).await
    } else {
        paths::answer(server, &request).await
    };
    // A watch occupies its seat only until it has started.
    drop(seat);
    if let (Some(trail), Ok(answer)) = (trail, &answer)
        && trail.wants_response()
        && let Some(object) = answered(answer)
    {
        trail.response_object(object);
    }
    let mut response = answer.and_then(|answer| write(server, &request, answer)).unwrap_or_else(|e| {
        output::write_error(&e, negotiate::negotiate_leniently(&request.headers, &request.query))
    });
    add_warnings(&request, response.headers_mut());
    Ok(response)
}

/// Returns the response to a request that is refused because it cannot be audited.
fn not_audited(parts: &Parts) -> Response<Body> {
    let uri = parts.uri.path_and_query().map_or("", |p| p.as_str());
    let text = format!("Internal Server Error: {uri:?}: failed to store audit event\n");
    output::plain(500, text)
}

/// Negotiates the format and form of a response about a resource.
fn wanted(server: &State, request: &Request) -> Result<Negotiated, StatusError> {
    let info = &request.info;
    let served = server.registry.table.find(&info.group, &info.version, &info.resource);
    let custom = served.is_some_and(|served| served.resource.custom().is_some());
    let offers = Offers { forms: has_forms(server, info), messages: !custom };
    negotiate::choose(&request.headers, &request.query, offers)
}

/// Returns the response to an unauthorized request.
fn refused(refusal: &StatusError, headers: &HeaderMap, query: &Query) -> Response<Body> {
    let mut response = output::write_error(refusal, negotiate::negotiate_leniently(headers, query));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn resource(server: &Arc<State>, request: &Request) -> Result<Answer, StatusError> {
    let (group, version) = (request.info.group.as_str(), request.info.version.as_str());
    let elsewhere = group == resource_metrics::GROUP
        || local_api::find(&server.config.local_apis, group, version).is_some();
    if !elsewhere && !server.registry.table.has_group_version(&request.info.group, &request.info.version) {
        if request.info.group.is_empty() {
            return Err(StatusError::path_not_found());
        }
        return Ok(Answer::text(404, "404 page not found\n"));
    }
    if let Some(writes) = writes(server, &request.info) {
        routes::acceptable(&request.headers, writes)?;
    }
    if !negotiates(&request.info) {
        return dispatch::dispatch(server, request).await;
    }
    // A request whose response could not be encoded must not be carried out.
    let wanted = wanted(server, request)?;
    let include = request.query.get("includeObject");
    if wanted.form == Form::Table && IncludeObject::parse(include).is_none() {
        return Err(StatusError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {:?}: must be 'Metadata', \
             'Object', 'None', or empty",
            include.unwrap_or("")
        )));
    }
    dispatch::dispatch(server, request).await
}

/// Returns whether the response is an API object, rather than a stream of a kubelet, pod or service.
fn negotiates(info: &RequestInfo) -> bool {
    !matches!(info.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy")
}

/// Returns which media types the route of a built-in resource produces; `None` if the resource does not have the
/// verb.
fn writes(server: &State, info: &RequestInfo) -> Option<Writes> {
    let served = server.registry.table.find(&info.group, &info.version, &info.resource)?;
    let resource = &served.resource;
    if resource.custom().is_some() {
        return None;
    }
    let verbs = match info.subresource.as_str() {
        "" => resource.verbs,
        name => resource.subresource(name)?.verbs,
    };
    if !verbs.contains(&info.verb.as_str()) {
        return None;
    }
    match (info.subresource.as_str(), info.verb.as_str()) {
        ("log", _) => Some(Writes::Log),
        _ if !negotiates(info) => None,
        (_, "list" | "watch") => Some(Writes::Streams),
        _ => Some(Writes::Objects),
    }
}

/// Returns whether the response may be a Table or metadata only. Objects that are created without being stored have
/// neither form.
fn has_forms(server: &State, info: &RequestInfo) -> bool {
    match info.subresource.as_str() {
        "" if info.verb != "create" => true,
        "" => server
            .registry
            .table
            .find(&info.group, &info.version, &info.resource)
            .is_none_or(|served| served.resource.is_stored()),
        subresource => !matches!(subresource, "binding" | "eviction" | "token"),
    }
}

fn write(server: &State, request: &Request, answer: Answer) -> Result<Response<Body>, StatusError> {
    let forms = !matches!(answer, Answer::Value { .. });
    let negotiated = match &answer {
        Answer::Raw(_) => Negotiated::default(),
        Answer::Value { .. } => negotiate::negotiate_leniently(&request.headers, &request.query),
        Answer::Object { resource, .. } | Answer::List(ListAnswer { resource, .. }) => {
            let offers = Offers { forms, messages: resource.custom().is_none() };
            negotiate::choose(&request.headers, &request.query, offers)?
        }
        Answer::Watch(watch) => {
            let offers = Offers { forms, messages: watch.resource().custom().is_none() };
            negotiate::choose(&request.headers, &request.query, offers)?
        }
    };
    check_metadata_form(&answer, negotiated)?;
    let include = IncludeObject::parse(request.query.get("includeObject")).unwrap_or_default();
    Ok(output::write(answer, negotiated, include, &server.clock))
}

/// Refuses a list as PartialObjectMetadata, and an object as PartialObjectMetadataList.
fn check_metadata_form(answer: &Answer, negotiated: Negotiated) -> Result<(), StatusError> {
    if negotiated.form != Form::Metadata {
        return Ok(());
    }
    let (asked, found, kind, types) = match (answer, negotiated.metadata_list) {
        (Answer::List(list), false) => {
            ("PartialObjectMetadata", "a list", list.resource.list_kind.to_string(), &list.resource.types)
        }
        (Answer::Object { resource, .. }, true) => {
            ("PartialObjectMetadataList", "not a list", resource.types.kind.to_string(), &resource.types)
        }
        _ => return Ok(()),
    };
    let package = types.group.split('.').next().filter(|p| !p.is_empty()).unwrap_or("core");
    let message = format!("you requested {asked}, but the requested object is {found} (*{package}.{kind})");
    Err(StatusError::new(406, "NotAcceptable", message))
}

/// Returns the request body as a value, for the audit log.
fn requested(server: &State, info: &RequestInfo, headers: &HeaderMap, body: &Bytes) -> Option<Value> {
    if body.is_empty() {
        return None;
    }
    match input::format(headers) {
        Ok(Format::Protobuf) => {
            let served = server.registry.table.find(&info.group, &info.version, &info.resource)?;
            input::decode(headers, body, &served.resource.types.gvk(), false).ok().map(|d| d.value)
        }
        _ => serde_json::from_slice(body).ok().or_else(|| Yaml::read(body).ok().map(|y| y.value)),
    }
}

/// Returns the response as a value, for the audit log.
fn answered(answer: &Answer) -> Option<Value> {
    match answer {
        Answer::Object { object, .. } => serde_json::from_slice(&object.json()).ok(),
        Answer::Value { value, .. } => Some(value.clone()),
        Answer::List(list) => {
            let items: Vec<Value> =
                list.items.iter().filter_map(|o| serde_json::from_slice(&o.json()).ok()).collect();
            Some(json!({
                "kind": list.resource.list_kind, "apiVersion": list.resource.types.api_version(),
                "metadata": {"resourceVersion": list.resource_version.to_string()}, "items": items,
            }))
        }
        Answer::Watch(_) | Answer::Raw(_) => None,
    }
}

/// Waits until flow control admits the request; `Err` is the response if it is rejected.
async fn take_seat(
    server: &Arc<State>,
    user: &UserInfo,
    info: &RequestInfo,
    query: &Query,
    way: &Way,
) -> Result<Option<Turn>, Response<Body>> {
    let watch = info.verb == "watch";
    if info.is_long_running() && !watch {
        return Ok(None);
    }
    let mutating = !matches!(info.verb.as_str(), "get" | "list" | "watch" | "head" | "options");
    let Some(fairness) = &server.fairness else {
        let turn = Turn::try_take(server, user, mutating);
        return turn.map(Some).ok_or_else(|| too_many(way, 1));
    };
    let waiting = Gauge::begin(server, Metric::Inqueue, mutating);
    let seat = fairness.admit(user, info, query, known(server, info)).await;
    drop(waiting);
    match seat {
        Ok(seat) => {
            let queued = u64::try_from(seat.queued.as_nanos()).unwrap_or(u64::MAX);
            way.queued_nanos.store(queued, Ordering::Relaxed);
            // Set only here.
            let _ = way.classified.set(seat.classified.clone());
            let seat = if watch { seat.for_watch() } else { seat };
            let executing = Gauge::begin(server, Metric::Inflight, mutating);
            Ok(Some(Turn { _seat: Some(seat), _permit: None, _executing: executing }))
        }
        Err(refused) => {
            let _ = way.classified.set(refused.classified);
            Err(too_many(way, refused.retry_after_seconds))
        }
    }
}

/// The permission to execute, released on drop.
struct Turn {
    _seat: Option<Seat>,
    _permit: Option<tokio::sync::OwnedSemaphorePermit>,
    _executing: Gauge,
}

impl Turn {
    /// Applies the two plain limits that hold without priority and fairness; members of system:masters are exempt.
    fn try_take(server: &Arc<State>, user: &UserInfo, mutating: bool) -> Option<Self> {
        let permit = if user.in_group(MASTERS) {
            None
        } else {
            let limit = if mutating { &server.inflight.1 } else { &server.inflight.0 };
            Some(Arc::clone(limit).try_acquire_owned().ok()?)
        };
        let executing = Gauge::begin(server, Metric::Inflight, mutating);
        Some(Self { _seat: None, _permit: permit, _executing: executing })
    }
}

/// Counts one request in a gauge until it is dropped.
struct Gauge {
    server: Arc<State>,
    metric: Metric,
    kind: &'static str,
}

impl Gauge {
    fn begin(server: &Arc<State>, metric: Metric, mutating: bool) -> Self {
        let kind = if mutating { "mutating" } else { "readOnly" };
        server.metrics.add(metric, &[kind], 1.0);
        Self { server: Arc::clone(server), metric, kind }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.server.metrics.add(self.metric, &[self.kind], -1.0);
    }
}

fn too_many(way: &Way, retry_after_seconds: u64) -> Response<Body> {
    way.refused.store(true, Ordering::Relaxed);
    let text = Bytes::from_static(b"Too many requests, please try again later.\n");
    let mut response = output::raw(429, "text/plain; charset=utf-8", text);
    if let Ok(value) = HeaderValue::from_str(&retry_after_seconds.to_string()) {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

/// Returns the facts about a resource that the cost of some requests depends on.
fn known(server: &State, info: &RequestInfo) -> Option<Known> {
    if info.verb == "get" || !info.is_resource {
        return None;
    }
    let served = server.registry.table.find(&info.group, &info.version, &info.resource)?;
    let (objects, average_bytes, watchers) = served.cache().ok()?.load();
    Some(Known { objects, average_bytes, watchers })
}

/// Returns the user that the request impersonates.
async fn impersonate(
    server: &State,
    user: UserInfo,
    headers: &mut HeaderMap,
    attributes: &Attributes,
    trail: Option<&Trail>,
) -> Result<UserInfo, StatusError> {
    let Some(wanted) = impersonation::requested(headers)? else { return Ok(user) };
    let mut first = None;
    for mode in impersonation::modes(&wanted, &user, attributes) {
        match may_impersonate(server, &mode).await {
            Ok(()) => {
                server.metrics.increment(Metric::ImpersonationAttempts, &["allowed", mode.name]);
                if let Some(trail) = trail {
                    trail.impersonated(&mode.user, &mode.constraint);
                }
                return Ok(mode.user);
            }
            Err(error) => first = first.or(Some(error)),
        }
    }
    server.metrics.increment(Metric::ImpersonationAttempts, &["denied", ""]);
    Err(first.unwrap_or_else(|| StatusError::internal("all impersonation modes failed")))
}

async fn may_impersonate(server: &State, mode: &Mode) -> Result<(), StatusError> {
    for need in &mode.needs {
        match need {
            Need::One(need) => server.authorizer.check(&mode.requester, need).await?,
            Need::Refused(error) => return Err(error.clone()),
            Need::AnyOrEach(any, each) => {
                if !any.verb.is_empty()
                    && server.authorizer.authorize(&mode.requester, any).await.is_allowed()
                {
                    continue;
                }
                for need in each {
                    server.authorizer.check(&mode.requester, need).await?;
                }
            }
        }
    }
    Ok(())
}

/// Adds each warning as a header `299 - "text"`.
fn add_warnings(request: &Request, headers: &mut HeaderMap) {
    let warnings = request.warnings.lock().unwrap_or_else(PoisonError::into_inner);
    let mut left = MAX_WARNING_BYTES;
    for warning in warnings.iter() {
        let clean: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = format!("299 - \"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""));
        if text.len() > left {
            return;
        }
        left -= text.len();
        if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}
