//! The way of a request: authentication, impersonation, authorization, handler, answer.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{AUTHORIZATION, CACHE_CONTROL, HeaderName, HeaderValue, UPGRADE, WARNING};
use http::request::Parts;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use knarr_apimachinery::status::StatusError;

use crate::aggregator;
use crate::authn::{UserInfo, impersonation};
use crate::authz::Attributes;
use crate::discovery;
use crate::http::body::Body;
use crate::http::input::MAX_BODY;
use crate::http::listener::Certificate;
use crate::http::negotiate::{self, Negotiated};
use crate::http::output::{self, Answer};
use crate::http::query::Query;
use crate::http::request_info::RequestInfo;
use crate::registry::{Request, dispatch};
use crate::server::Inner;
use crate::table::IncludeObject;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// How long a request that is not a watch or stream may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of all Warning headers of an answer.
const MAX_WARNING_BYTES: usize = 4096;
const PUBLIC_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// One request that came over the network.
pub async fn serve(
    server: Arc<Inner>,
    mut request: http::Request<Incoming>,
    certificate: Certificate,
) -> Response<Body> {
    let upgrade = request.headers().contains_key(UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    let user = authenticate(&server, &parts, &certificate).await;
    parts.headers.remove(AUTHORIZATION);
    answer(server, parts, Payload::Stream(body), upgrade, user).await
}

/// One request of a component of this process.
pub async fn serve_in_process(
    server: Arc<Inner>,
    request: http::Request<Bytes>,
    user: UserInfo,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    answer(server, parts, Payload::Whole(body), None, Ok(user)).await
}

/// A body that may still have to be read.
enum Payload {
    Stream(Incoming),
    Whole(Bytes),
}

impl Payload {
    async fn read(self) -> Result<Bytes, StatusError> {
        match self {
            Self::Whole(bytes) if bytes.len() > MAX_BODY => {
                Err(StatusError::request_entity_too_large(MAX_BODY))
            }
            Self::Whole(bytes) => Ok(bytes),
            Self::Stream(body) => match Limited::new(body, MAX_BODY).collect().await {
                Ok(all) => Ok(all.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => {
                    Err(StatusError::request_entity_too_large(MAX_BODY))
                }
                Err(error) => Err(StatusError::bad_request(format!("cannot read the request body: {error}"))),
            },
        }
    }
}

/// Who sent the request: by client certificate, else by token; without either, nobody but for the health checks.
async fn authenticate(
    server: &Inner,
    parts: &Parts,
    certificate: &Certificate,
) -> Result<UserInfo, StatusError> {
    let now = server.clock.now();
    if let Some(Ok(identity)) = certificate
        && let Some(user) = identity.user(now)
    {
        return Ok(UserInfo::clone(user));
    }
    if let Some(token) = bearer(&parts.headers) {
        return server.tokens.authenticate(server, token).await.ok_or_else(StatusError::unauthorized);
    }
    let path = parts.uri.path();
    let public =
        PUBLIC_PATHS.iter().any(|p| path.strip_prefix(p).is_some_and(|r| r.is_empty() || r.starts_with('/')));
    if public && certificate.is_none() && !parts.headers.contains_key(AUTHORIZATION) {
        return Ok(UserInfo::anonymous());
    }
    Err(StatusError::unauthorized())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}

async fn answer(
    server: Arc<Inner>,
    parts: Parts,
    body: Payload,
    upgrade: Option<OnUpgrade>,
    user: Result<UserInfo, StatusError>,
) -> Response<Body> {
    let started = server.clock.monotonic();
    let query = Query::parse(parts.uri.query().unwrap_or(""));
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
    let audit_id = parts.headers.get(AUDIT_ID).cloned();
    let lenient = negotiate::negotiate_leniently(&parts.headers, &query);
    let (metrics_info, dry_run) = (info.clone(), query.get("dryRun").is_some());
    let long = info.is_long_running(&query);
    let work = AssertUnwindSafe(work(&server, parts, body, upgrade, user, info, query)).catch_unwind();
    let outcome = if long {
        work.await
    } else {
        let in_turn = async {
            // Never closed, so a failure to get a slot cannot happen.
            let _slot = server.slots.acquire().await;
            work.await
        };
        tokio::select! {
            outcome = in_turn => outcome,
            () = server.clock.sleep(TIMEOUT) => Ok(Err(StatusError::timeout(
                "the server was unable to return a response in the time allotted, but may still be processing the request",
            ))),
        }
    };
    let mut response = match outcome {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => output::write_error(&error, lenient),
        Err(_) => {
            tracing::error!(path = %metrics_info.path, "a handler panicked");
            let message = "This request caused apiserver to panic. Look in the logs for details.";
            output::write_error(&StatusError::new(500, "InternalError", message), lenient)
        }
    };
    let took = server.clock.monotonic().saturating_sub(started);
    if is_served(&server, &metrics_info) {
        server.metrics.observe(&metrics_info, dry_run, response.status().as_u16(), took);
    }
    let audit_id = audit_id.or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
    let headers = response.headers_mut();
    if let Some(audit_id) = audit_id {
        headers.insert(AUDIT_ID, audit_id);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    response
}

fn is_served(server: &Inner, info: &RequestInfo) -> bool {
    let served = server.table.find(&info.group, &info.version, &info.resource);
    served.is_some_and(|s| info.subresource.is_empty() || s.resource.subresource(&info.subresource).is_some())
}

#[allow(clippy::too_many_arguments, reason = "the parts of one request")]
async fn work(
    server: &Arc<Inner>,
    parts: Parts,
    body: Payload,
    upgrade: Option<OnUpgrade>,
    user: Result<UserInfo, StatusError>,
    info: RequestInfo,
    query: Query,
) -> Result<Response<Body>, StatusError> {
    let user = impersonate(server, user?, &parts.headers)?;
    server.authorizer.check(&user, &Attributes::of_request(&info, &query))?;
    let body = body.read().await?;
    let request = Request {
        info,
        query,
        raw_query: parts.uri.query().map(str::to_owned),
        method: parts.method,
        headers: parts.headers,
        body,
        user,
        warnings: Mutex::default(),
        upgrade: Mutex::new(upgrade),
    };
    let answer = if let Some(api_service) = aggregator::service_of(server, &request.info.path) {
        Ok(aggregator::answer(server, &request, &api_service).await)
    } else if request.info.is_resource {
        resource(server, &request).await
    } else {
        discovery::answer(server, &request).await
    };
    let mut response = answer.and_then(|answer| write(server, &request, answer)).unwrap_or_else(|e| {
        output::write_error(&e, negotiate::negotiate_leniently(&request.headers, &request.query))
    });
    add_warnings(&request, response.headers_mut());
    Ok(response)
}

async fn resource(server: &Arc<Inner>, request: &Request) -> Result<Answer, StatusError> {
    if !server.table.has_group_version(&request.info.group, &request.info.version) {
        return Ok(Answer::text(404, "404 page not found\n"));
    }
    // What cannot be written must not be carried out.
    negotiate::negotiate(&request.headers, &request.query, true)?;
    if IncludeObject::parse(request.query.get("includeObject")).is_none() {
        return Err(StatusError::bad_request("unrecognized includeObject value"));
    }
    dispatch::dispatch(server, request).await
}

fn write(server: &Inner, request: &Request, answer: Answer) -> Result<Response<Body>, StatusError> {
    let forms = !matches!(answer, Answer::Value { .. });
    let negotiated = match &answer {
        Answer::Raw(_) => Negotiated::default(),
        Answer::Value { .. } => negotiate::negotiate_leniently(&request.headers, &request.query),
        _ => negotiate::negotiate(&request.headers, &request.query, forms)?,
    };
    let include = IncludeObject::parse(request.query.get("includeObject")).unwrap_or_default();
    Ok(output::write(answer, negotiated, include, &server.clock))
}

/// The user that the request acts as.
fn impersonate(server: &Inner, user: UserInfo, headers: &HeaderMap) -> Result<UserInfo, StatusError> {
    let Some(wanted) = impersonation::requested(headers)? else { return Ok(user) };
    for need in &wanted.needs {
        server.authorizer.check(&user, &need.attributes())?;
    }
    Ok(wanted.user)
}

/// `299 - "text"`, one header a warning.
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
