//! Subresources and reviews: what is not an object of its own.

mod access_review;
mod binding;
mod component_status;
mod eviction;
mod part;
mod scale;
mod scale_managers;
mod token;
mod token_review;

use std::sync::Arc;

use http::Method;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::Request;
use super::options::{FieldValidation, WriteParams};
use super::served::Served;
use crate::admission::{self, Attributes, Operation};
use crate::http::input;
use crate::http::output::Answer;
use crate::proxy;
use crate::server::Inner;

/// A request for a subresource.
pub async fn dispatch(
    server: &Arc<Inner>,
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
    // Only what is passed on goes further.
    let longer = !info.rest.is_empty() && subresource.name != "proxy";
    if longer || served.resource.types.namespaced != info.in_namespace {
        return Err(StatusError::path_not_found());
    }
    // What is passed on may have a method that has no verb.
    let passed_on = subresource.name == "proxy" && info.verb.is_empty();
    let headless = request.method == Method::HEAD && subresource.name != "proxy";
    if headless || !passed_on && !subresource.verbs.contains(&info.verb.as_str()) {
        return Err(StatusError::no_such_method());
    }
    match subresource.name {
        "scale" => scale::answer(server, request, served).await,
        "binding" => binding::answer(server, request).await,
        "eviction" => eviction::answer(server, request, served).await,
        "token" => token::answer(server, request, served).await,
        "log" | "exec" | "attach" | "portforward" | "proxy" => proxy::answer(server, request).await,
        name => part::answer(server, request, served, name).await,
    }
}

/// A POST to a resource that is answered and forgotten.
pub async fn review(
    server: &Arc<Inner>,
    request: &Request,
    served: &Arc<Served>,
) -> Result<Answer, StatusError> {
    match served.resource.types.kind {
        "ComponentStatus" => component_status::answer(server, request, served).await,
        "Binding" => binding::answer(server, request).await,
        "TokenReview" => token_review::token_review(server, request, served).await,
        "SelfSubjectReview" => token_review::self_subject_review(server, request, served).await,
        kind => access_review::answer(server, request, served, kind).await,
    }
}

/// A review after admission, which sees it as it sees all that is created.
async fn admitted(
    server: &Inner,
    request: &Request,
    served: &Served,
    review: Value,
    params: &WriteParams,
) -> Result<Value, StatusError> {
    let place = (request.info.namespace.as_str(), "", "");
    let mut attributes = Attributes::new(request, served, Operation::Create, place, review, params.dry_run);
    admission::admit(&mut attributes, server).await
}

/// Decodes the body as this kind.
fn body_of(
    request: &Request,
    group: &str,
    version: &str,
    kind: &str,
    params: &WriteParams,
) -> Result<Value, StatusError> {
    let strict = params.field_validation == FieldValidation::Strict;
    let expected = GroupVersionKind::new(group, version, kind);
    let decoded = input::decode(&request.headers, &request.body, &expected, strict)?;
    if params.field_validation == FieldValidation::Warn {
        decoded.strict_errors.iter().for_each(|e| request.warn(e.clone()));
    }
    Ok(decoded.value)
}
