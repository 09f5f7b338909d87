//! Routes requests to aggregated API servers.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderValue};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use super::Aggregator;
use super::availability::is_available_in;
use super::remote::{backend, set_user, user_headers};
use crate::proxy::{self, Location};
use knarr_wire::output::Answer;
use knarr_wire::query::decode_bytes;
use knarr_wire::request::Request;

/// Returns the APIService whose server answers requests for this path; `None` if this server answers them.
pub fn service_of(aggregator: &Aggregator, path: &str) -> Option<Arc<APIService>> {
    let mut parts = path.trim_start_matches('/').split('/');
    let name = match (parts.next()?, parts.next()?) {
        ("api", version) => format!("{version}."),
        ("apis", group) => format!("{}.{group}", parts.next()?),
        _ => return None,
    };
    let object = aggregator.registry.caches.get("apiregistration.k8s.io/apiservices")?.get(&name)?;
    let api_service = object.typed::<APIService>().ok()?;
    api_service.spec.as_ref()?.service.as_ref()?;
    Some(api_service)
}

fn unavailable() -> Answer {
    Answer::text(503, "service unavailable\n")
}

/// Forwards the request with this audit ID, which both servers then record.
pub async fn answer(
    aggregator: &Arc<Aggregator>,
    request: &Request,
    api_service: &APIService,
    audit_id: &str,
) -> Answer {
    let query = request.raw_query.as_deref().map(|q| format!("?{q}")).unwrap_or_default();
    let path = proxy::escape(&decode_bytes(&request.raw_path, false));
    pass(aggregator, request, api_service, format!("{path}{query}"), audit_id).await
}

/// Answers the OpenAPI v3 document of a group version of an aggregated server; `rest` is `apis/GROUP/VERSION`.
pub async fn answer_document(aggregator: &Arc<Aggregator>, request: &Request, rest: &str) -> Option<Answer> {
    let api_service = service_of(aggregator, rest)?;
    let query = request.raw_query.as_deref().map(|q| format!("?{q}")).unwrap_or_default();
    let path = proxy::escape(format!("/openapi/v3/{rest}").as_bytes());
    Some(pass(aggregator, request, &api_service, format!("{path}{query}"), "").await)
}

async fn pass(
    aggregator: &Arc<Aggregator>,
    request: &Request,
    api_service: &APIService,
    path: String,
    audit_id: &str,
) -> Answer {
    if !is_available_in(api_service) {
        return unavailable();
    }
    let to = match backend(aggregator, api_service) {
        Ok(to) => to,
        Err(error) => {
            tracing::warn!(?error, name = ?api_service.metadata.name, "cannot reach an aggregated API server");
            return unavailable();
        }
    };
    let user = match user_headers(&request.user) {
        Ok(user) => user,
        Err(error) => return Answer::text(500, format!("cannot pass the user on: {error}\n")),
    };
    let host = to.authority();
    let location = Location { to, path };
    let set_headers = |headers: &mut HeaderMap| {
        set_user(headers, user);
        for (name, value) in [
            ("audit-id", audit_id),
            ("x-forwarded-host", &host),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-uri", location.path.split('?').next().unwrap_or("")),
        ] {
            if let Ok(value) = HeaderValue::from_str(value)
                && !value.is_empty()
            {
                headers.insert(name, value);
            }
        }
    };
    let passed = proxy::pass(&aggregator.proxy, request, &location, set_headers).await;
    passed.unwrap_or_else(|error| Answer::text(503, format!("error trying to reach service: {error}\n")))
}
