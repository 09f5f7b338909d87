//! Handlers of non-resource paths: discovery, version, OpenAPI, health, metrics, token issuer.

use std::sync::{Arc, PoisonError};

use http::Response;
use http::header::{CACHE_CONTROL, HeaderValue};
use knarr_apimachinery::status::StatusError;
use knarr_apimachinery::zpages::Asked;
use serde_json::{Value, json};

use super::sample;
use crate::aggregator;
use crate::discovery::legacy;
use crate::health;
use crate::local_api;
use crate::resource_metrics;
use crate::state::State;
use knarr_registry::table::Table;
use knarr_wire::body::Body;
use knarr_wire::negotiate;
use knarr_wire::output::{self, Answer, raw, to_json};
use knarr_wire::request::Request;
use knarr_wire::routes::{self, Writes};

/// Returns whether the path must not end with a slash. Rules for non-resource paths distinguish the two forms and may
/// grant only one of them. Upstream's web services (`/api`, `/apis`, `/version`) accept the slash.
fn is_exact(parts: &[&str]) -> bool {
    matches!(
        parts,
        [] | ["healthz" | "livez" | "readyz" | "metrics", ..] | ["statusz" | "flagz"] | ["openapi", "v2"]
    )
}

/// Answers an authorized request for a non-resource path.
pub async fn answer(server: &Arc<State>, request: &Request) -> Result<Answer, StatusError> {
    let path = request.info.path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if request.info.path.len() > 1 && request.info.path.ends_with('/') && is_exact(&parts) {
        return Ok(nothing_here());
    }
    let table = &server.registry.table.snapshot();
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
            return server.discovery.aggregated(table, true, request, format);
        }
        (["apis"], Some(format)) => {
            return server.discovery.aggregated(table, false, request, format);
        }
        _ => {}
    }
    match parts.as_slice() {
        [] => Ok(Answer::Raw(raw_json(&json!({"paths": paths(table)})))),
        ["api"] => value(legacy::versions(server.config.advertise)),
        ["apis"] => value(server.discovery.groups(table)),
        ["api", version] if table.has_group_version("", version) => {
            value(legacy::resources(table, "", version))
        }
        ["apis", group] if !group.is_empty() => {
            let groups = server.discovery.groups(table);
            match aggregator::merge_group(&groups, group) {
                Some(group) => value(group),
                None => Ok(nothing_here()),
            }
        }
        ["apis", resource_metrics::GROUP, resource_metrics::VERSION] => value(resource_metrics::resources()),
        ["apis", group, version]
            if let Some(api) = local_api::find(&server.config.local_apis, group, version) =>
        {
            value(local_api::resources(&**api))
        }
        ["apis", group, version] if table.has_group_version(group, version) => {
            value(legacy::resources(table, group, version))
        }
        ["version"] => Ok(Answer::Raw(raw_json(&server.discovery.version))),
        ["openapi", "v2"] => Ok(server.discovery.openapi_v2(table, request)),
        ["openapi", "v3"] if request.info.path.ends_with('/') => Ok(nothing_here()),
        ["openapi", "v3"] => {
            let index = server.discovery.openapi_index(table);
            Ok(Answer::Raw(raw(200, "text/plain; charset=utf-8", to_json(&index))))
        }
        ["openapi", "v3", rest @ ..] => {
            let rest = rest.join("/");
            match aggregator::answer_document(&server.aggregator, request, &rest).await {
                Some(answer) => Ok(answer),
                None => Ok(server.discovery.openapi(table, request, &rest)),
            }
        }
        ["healthz" | "livez" | "readyz", ..] => Ok(health::answer(&server.health, request, &parts).await),
        ["metrics", "slis"] => Ok(Answer::Raw(metrics_text(server.metrics.render_health()))),
        ["metrics"] => {
            sample::sample(&server.registry).await;
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
            let body = to_json(&server.authentication.tokens.jwks());
            Ok(Answer::Raw(raw(200, "application/jwk-set+json", body)))
        }
        // Upstream's router owns these paths.
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

/// Returns the media types of paths that upstream's router handles; all other paths accept any method and any Accept
/// header.
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

/// Answers pretty-printed JSON, whatever the Accept header asks for.
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

/// Answers the OpenID provider configuration of our service-account tokens.
fn issuer(server: &State) -> Response<Body> {
    let given = &server.config.service_accounts.jwks_uri;
    let jwks_uri = if given.is_empty() {
        format!("https://{}/openid/v1/jwks", server.config.advertise)
    } else {
        given.clone()
    };
    let value = json!({
        "issuer": server.authentication.tokens.issuer,
        "jwks_uri": jwks_uri,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": server.authentication.tokens.algorithms(),
    });
    let mut response = raw(200, "application/json", to_json(&value));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    response
}
