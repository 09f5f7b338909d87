//! Paths that name no resource: discovery, version, OpenAPI, health, metrics, token issuer.

mod aggregated;
mod custom_openapi;
mod health;
mod legacy;
mod log_check;
mod openapi;
mod openapi_v2;
mod sample;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Response, StatusCode};
use knarr_apimachinery::schema::openapi::hash;
use knarr_apimachinery::schema::protobuf;
use knarr_apimachinery::status::StatusError;
use knarr_apimachinery::zpages::Asked;
use serde_json::{Value, json};

use crate::aggregator;
use crate::config::Config;
use crate::http::body::Body;
use crate::http::negotiate::{self, Format};
use crate::http::output::{self, Answer, raw, to_json};
use crate::http::routes::{self, Writes};
use crate::local_api;
use crate::metrics::Metric;
use crate::registry::Request;
use crate::registry::table::Table;
use crate::resource_metrics;
use crate::server::Inner;
pub use health::Pace as HealthPace;
pub use log_check::LogCheck;

/// What discovery answers, made once for each state of the table of resources.
pub struct Discovery {
    aggregated: Mutex<Option<Arc<Aggregated>>>,
    version: Value,
    openapi: openapi::Documents,
    openapi_v2: openapi_v2::DocumentV2,
}

/// The two documents of aggregated discovery, and the table that they show.
struct Aggregated {
    table: Arc<Table>,
    /// Of what other servers contribute.
    generation: u64,
    core: Document,
    groups: Document,
}

/// A body with its ETag.
pub struct Document {
    body: Bytes,
    etag: String,
}

impl Document {
    fn new(value: &Value) -> Self {
        let body = to_json(value);
        let etag = format!("\"{}\"", hash(&body));
        Self { body, etag }
    }

    /// Aggregated discovery in this format, which anybody may keep: its ETag tells when it is old.
    fn aggregated(&self, request: &Request, format: Format) -> Result<Answer, StatusError> {
        let value = || serde_json::from_slice::<Value>(&self.body).map_err(StatusError::internal);
        let (content_type, body) = match format {
            Format::Json => ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", None),
            Format::Yaml => {
                let text = serde_saphyr::to_string(&value()?).map_err(StatusError::internal)?;
                ("application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", Some(text.into()))
            }
            Format::Protobuf => {
                let message = protobuf::encode_object(&value()?).map_err(StatusError::internal)?;
                let media =
                    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
                (media, Some(message.into()))
            }
        };
        let mut response = self.answer(request, content_type);
        if let Some(body) = body.filter(|_| response.status() == StatusCode::OK) {
            *response.body_mut() = Body::Full(body);
        }
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        Ok(Answer::Raw(response))
    }

    /// The document, or 304 if the client has it.
    fn answer(&self, request: &Request, content_type: &'static str) -> Response<Body> {
        let known = request.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok());
        let mut response = if known == Some(self.etag.as_str()) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            raw(200, content_type, self.body.clone())
        };
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            response.headers_mut().insert(ETAG, etag);
        }
        response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
        response
    }
}

impl Discovery {
    pub fn new(config: &Config) -> Self {
        Self {
            aggregated: Mutex::default(),
            version: version(config),
            openapi: openapi::Documents::default(),
            openapi_v2: openapi_v2::DocumentV2::default(),
        }
    }

    fn aggregated(&self, server: &Inner, table: &Arc<Table>) -> Arc<Aggregated> {
        let generation = server.aggregator.generation();
        let mut made = self.aggregated.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*made
            && Arc::ptr_eq(&made.table, table)
            && made.generation == generation
        {
            return Arc::clone(made);
        }
        server.metrics.increment(Metric::DiscoveryAggregations, &[]);
        let fresh = Arc::new(Aggregated {
            table: Arc::clone(table),
            generation,
            core: Document::new(&aggregated::list(table, true)),
            groups: Document::new(&aggregator::merge_discovery(server, aggregated::list(table, false))),
        });
        *made = Some(Arc::clone(&fresh));
        fresh
    }
}

fn version(config: &Config) -> Value {
    let version = &config.version;
    let (major, minor) = version
        .git_version
        .trim_start_matches('v')
        .split_once('.')
        .map(|(major, rest)| (major, rest.split('.').next().unwrap_or("")))
        .unwrap_or(("1", ""));
    let before = minor.parse().unwrap_or(1u32).saturating_sub(1).to_string();
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": before, "gitVersion": version.git_version, "gitCommit": version.git_commit,
        "gitTreeState": "clean", "buildDate": version.build_date, "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{arch}", std::env::consts::OS),
    })
}

/// Whether the path is another one with a slash at its end: rules about paths are, and grant either alone. Web services
/// upstream (`/api`, `/apis`, `/version`) take the slash.
fn is_exact(parts: &[&str]) -> bool {
    matches!(
        parts,
        [] | ["healthz" | "livez" | "readyz" | "metrics", ..] | ["statusz" | "flagz"] | ["openapi", "v2"]
    )
}

/// Answers an authorized request that is about no resource.
pub async fn answer(server: &Arc<Inner>, request: &Request) -> Result<Answer, StatusError> {
    let path = request.info.path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if request.info.path.len() > 1 && request.info.path.ends_with('/') && is_exact(&parts) {
        return Ok(nothing_here());
    }
    let table = &server.table.snapshot();
    if let Some(writes) = routed(&parts, table) {
        routes::read_only(&request.method, &request.headers, writes)?;
    }
    let aggregated = negotiate::wants_aggregated_discovery(&request.headers);
    let value = |value: Value| {
        negotiate::negotiate(&request.headers, &request.query, false)?;
        Ok(Answer::Value { code: 200, value })
    };
    match (parts.as_slice(), aggregated) {
        (["api"], Some(format)) => {
            return server.discovery.aggregated(server, table).core.aggregated(request, format);
        }
        (["apis"], Some(format)) => {
            return server.discovery.aggregated(server, table).groups.aggregated(request, format);
        }
        _ => {}
    }
    match parts.as_slice() {
        [] => Ok(Answer::Raw(raw_json(&json!({"paths": paths(table)})))),
        ["api"] => value(legacy::versions(server)),
        ["apis"] => value(aggregator::merge_groups(server, legacy::groups(table))),
        ["api", version] if table.has_group_version("", version) => {
            value(legacy::resources(table, "", version))
        }
        ["apis", group] if !group.is_empty() => {
            let groups = aggregator::merge_groups(server, legacy::groups(table));
            match aggregator::merge_group(&groups, group) {
                Some(group) => value(group),
                None => Ok(nothing_here()),
            }
        }
        ["apis", resource_metrics::GROUP, resource_metrics::VERSION] => value(resource_metrics::resources()),
        ["apis", group, version] if let Some(api) = local_api::find(server, group, version) => {
            value(local_api::resources(&**api))
        }
        ["apis", group, version] if table.has_group_version(group, version) => {
            value(legacy::resources(table, group, version))
        }
        ["version"] => Ok(Answer::Raw(raw_json(&server.discovery.version))),
        ["openapi", "v2"] => Ok(openapi_v2::answer(server, table, request)),
        ["openapi", "v3"] if request.info.path.ends_with('/') => Ok(nothing_here()),
        ["openapi", "v3"] => {
            let index = aggregator::merge_openapi_index(server, server.discovery.openapi.index(table));
            Ok(Answer::Raw(raw(200, "text/plain; charset=utf-8", to_json(&index))))
        }
        ["openapi", "v3", rest @ ..] => {
            let rest = rest.join("/");
            match aggregator::answer_document(server, request, &rest).await {
                Some(answer) => Ok(answer),
                None => Ok(openapi::document(server, table, request, &rest)),
            }
        }
        ["healthz" | "livez" | "readyz", ..] => Ok(health::answer(server, request, &parts).await),
        ["metrics", "slis"] => Ok(Answer::Raw(metrics_text(server.metrics.render_health()))),
        ["metrics"] => {
            sample::sample(server).await;
            let mut text = server.metrics.render() + &server.admission.metrics.text();
            text.push_str(&knarr_client::metrics::render());
            let others = server.other_metrics.lock().unwrap_or_else(PoisonError::into_inner);
            others.values().for_each(|source| text.push_str(&source()));
            drop(others);
            let text = metrics_text(text);
            let gzip = negotiate::negotiate_leniently(&request.headers, &request.query).gzip;
            Ok(Answer::Raw(if gzip { output::compressed(text) } else { text }))
        }
        ["flagz"] => Ok(Answer::Raw(server.zpages.flagz(asked(request)).map(|text| Body::Full(text.into())))),
        ["statusz"] => {
            let paths = paths(table);
            let page = server.zpages.statusz(asked(request), paths.iter().map(String::as_str));
            Ok(Answer::Raw(page.map(|text| Body::Full(text.into()))))
        }
        ["debug", "api_priority_and_fairness", what] => {
            let details = request.query.non_empty("includeRequestDetails").is_some();
            let dump = server.fairness.as_ref().and_then(|f| f.dump(what, details));
            Ok(dump.map_or_else(nothing_here, |text| Answer::text(200, text)))
        }
        [".well-known", "openid-configuration"] => Ok(Answer::Raw(issuer(server))),
        ["openid", "v1", "jwks"] => {
            let body = to_json(&server.tokens.jwks());
            Ok(Answer::Raw(raw(200, "application/jwk-set+json", body)))
        }
        // The router has these paths for itself.
        ["api", ..] => Err(StatusError::path_not_found()),
        _ => Ok(nothing_here()),
    }
}

fn asked(request: &Request) -> Asked<'_> {
    Asked { headers: &request.headers, query: request.raw_query.as_deref().unwrap_or("") }
}

fn metrics_text(text: String) -> Response<Body> {
    raw(200, "text/plain; version=0.0.4; charset=utf-8", text.into())
}

fn nothing_here() -> Answer {
    Answer::text(404, "404 page not found\n")
}

/// What paths are written as that upstream's router answers; all others take any method and any client.
fn routed(parts: &[&str], table: &Table) -> Option<Writes> {
    match *parts {
        ["api"] => Some(Writes::Objects),
        ["api", version] if table.has_group_version("", version) => Some(Writes::Objects),
        ["apis", group, version] => {
            let mut own = table.iter().map(|s| &s.resource).filter(|r| r.custom().is_none());
            own.any(|r| r.types.group == group && r.types.version == version).then_some(Writes::Objects)
        }
        ["version"] | [".well-known", "openid-configuration"] => Some(Writes::Only("application/json")),
        ["openid", "v1", "jwks"] => Some(Writes::Only("application/jwk-set+json")),
        _ => None,
    }
}

/// JSON for people, whatever was asked for.
fn raw_json(value: &Value) -> Response<Body> {
    raw(200, "application/json", serde_json::to_vec_pretty(value).unwrap_or_default().into())
}

fn paths(table: &Table) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/flagz",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/statusz",
        "/version",
    ]
    .map(str::to_owned)
    .to_vec();
    for served in table.iter() {
        let (group, version) = (served.resource.types.group, served.resource.types.version);
        if group.is_empty() {
            paths.push(format!("/api/{version}"));
        } else {
            paths.push(format!("/apis/{group}"));
            paths.push(format!("/apis/{group}/{version}"));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}

/// The provider configuration of our service-account tokens.
fn issuer(server: &Inner) -> Response<Body> {
    let given = &server.config.service_account_jwks_uri;
    let jwks_uri = if given.is_empty() {
        format!("https://{}/openid/v1/jwks", server.config.advertise)
    } else {
        given.clone()
    };
    let value = json!({
        "issuer": server.tokens.issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": server.tokens.algorithms(),
    });
    let mut response = raw(200, "application/json", to_json(&value));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}
