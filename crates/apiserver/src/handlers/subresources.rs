//! Dispatches requests for subresources and reviews.

use std::sync::Arc;

use http::Method;
use knarr_apimachinery::status::StatusError;

use super::{access_review, token, token_review};
use crate::proxy;
use crate::state::State;
use knarr_registry::served::Served;
use knarr_registry::subresources::{binding, component_status, eviction, part, scale};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

/// Answers a request for a subresource.
pub async fn dispatch(
    server: &Arc<State>,
    request: &Request,
    served: &Arc<Served>,
) -> Result<Answer, StatusError> {
    let info = &request.info;
    let Some(subresource) = served.resource.subresource(&info.subresource) else {
        if served.resource.custom().is_some() {
            return Err(served.not_found(&info.name));
        }
        return Err(StatusError::path_not_found());
    };
    if info.name.is_empty() {
        return Err(StatusError::bad_request("name must be provided"));
    }
    // Only the paths of `proxy` may have further segments.
    let longer = !info.rest.is_empty() && subresource.name != "proxy";
    if longer || served.resource.types.namespaced != info.in_namespace {
        return Err(StatusError::path_not_found());
    }
    // A proxied request may have a method that maps to no verb.
    let passed_on = subresource.name == "proxy" && info.verb.is_empty();
    let headless = request.method == Method::HEAD && subresource.name != "proxy";
    if headless || !passed_on && !subresource.verbs.contains(&info.verb.as_str()) {
        return Err(StatusError::no_such_method());
    }
    match subresource.name {
        "scale" => scale::answer(&server.registry, request, served).await,
        "binding" => binding::answer(&server.registry, request).await,
        "eviction" => eviction::answer(&server.registry, request, served).await,
        "token" => token::answer(server, request, served).await,
        "log" | "exec" | "attach" | "portforward" | "proxy" => proxy::answer(&server.proxy, request).await,
        name => part::answer(&server.registry, request, served, name).await,
    }
}

/// Answers a POST to a resource whose objects are answered but not stored.
pub async fn review(
    server: &Arc<State>,
    request: &Request,
    served: &Arc<Served>,
) -> Result<Answer, StatusError> {
    match served.resource.types.kind {
        "ComponentStatus" => component_status::answer(&server.registry, request, served).await,
        "Binding" => binding::answer(&server.registry, request).await,
        "TokenReview" => token_review::token_review(server, request, served).await,
        "SelfSubjectReview" => token_review::self_subject_review(server, request, served).await,
        kind => access_review::answer(server, request, served, kind).await,
    }
}
