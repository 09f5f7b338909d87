//! The errors that API clients get: `Status` objects with upstream's reasons, codes and messages.

mod in_order;

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusCause, StatusDetails};
use serde_json::{Value, json};

use crate::field::ErrorList;
use crate::gvk::GroupResource;
use crate::schema::validate::quote;

pub use in_order::InOrder;

/// An API error: an HTTP code, a reason, and the `Status` body that carries them.
///
/// Source: `k8s.io/apimachinery/pkg/api/errors`.
#[derive(Clone, PartialEq)]
pub struct StatusError(pub Box<Status>);

pub type Result<T, E = StatusError> = std::result::Result<T, E>;

impl StatusError {
    /// Creates an error with this HTTP code, reason and message.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self(Box::new(Status {
            code: Some(code.into()),
            message: Some(message.into()),
            reason: (!reason.is_empty()).then(|| reason.to_owned()),
            status: Some("Failure".to_owned()),
            ..Status::default()
        }))
    }

    /// Returns the `Status` object as upstream writes it.
    pub fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(&*self.0).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.entry("metadata").or_insert_with(|| json!({}));
        }
        value
    }

    fn about(mut self, resource: &GroupResource, name: &str) -> Self {
        self.0.details = Some(StatusDetails {
            group: (!resource.group.is_empty()).then(|| resource.group.clone()),
            kind: Some(resource.resource.clone()),
            name: (!name.is_empty()).then(|| name.to_owned()),
            ..StatusDetails::default()
        });
        self
    }

    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found")).about(resource, name)
    }

    /// Returns 404 for a path that is not a resource.
    pub fn path_not_found() -> Self {
        let mut e = Self::new(404, "NotFound", "the server could not find the requested resource");
        e.0.details = Some(StatusDetails::default());
        e
    }

    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists")).about(resource, name)
    }

    pub fn conflict(resource: &GroupResource, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"))
            .about(resource, name)
    }

    /// Returns 409 for an optimistic-lock conflict, with the message that client libraries know.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Returns 422 with one cause per field error. `kind` is the bare kind (`Pod`), `group` its API group.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &ErrorList) -> Self {
        let message = format!("{} \"{}\" is invalid: {}", GroupResource::new(group, kind), name, errors);
        let mut e = Self::new(422, "Invalid", message);
        e.0.details = Some(StatusDetails {
            group: (!group.is_empty()).then(|| group.to_owned()),
            kind: Some(kind.to_owned()),
            name: (!name.is_empty()).then(|| name.to_owned()),
            causes: (!errors.is_empty()).then(|| errors.causes()),
            ..StatusDetails::default()
        });
        e
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// Returns 403 with upstream's message: `pods "x" is forbidden: why`.
    pub fn forbidden(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = if resource.group.is_empty() && resource.resource.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {} is forbidden: {why}", quote(name))
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    pub fn method_not_allowed(resource: &GroupResource, verb: &str) -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            format!("{verb} is not supported on resources of kind \"{resource}\""),
        )
        .about(resource, "")
    }

    /// Returns 405 for a method that the path does not support.
    pub fn no_such_method() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut e = Self::new(405, "MethodNotAllowed", message);
        e.0.details = Some(StatusDetails::default());
        e
    }

    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        Self::new(406, "NotAcceptable", format!("only the following media types are accepted: {list}"))
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {list}"
            ),
        )
    }

    pub fn request_entity_too_large(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// Returns 410 for a resourceVersion or continue token that has expired.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let mut e = Self::new(429, "TooManyRequests", message);
        e.0.details = Some(StatusDetails {
            retry_after_seconds: Some(retry_after_seconds),
            ..StatusDetails::default()
        });
        e
    }

    pub fn internal(message: impl fmt::Display) -> Self {
        let mut e = Self::new(500, "InternalError", format!("Internal error occurred: {message}"));
        e.0.details = Some(StatusDetails {
            causes: Some(vec![StatusCause { message: Some(message.to_string()), ..StatusCause::default() }]),
            ..StatusDetails::default()
        });
        e
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    /// Returns the HTTP status code.
    pub fn code(&self) -> u16 {
        self.0.code.and_then(|c| u16::try_from(c).ok()).unwrap_or(500)
    }

    /// Returns the machine-readable reason, or the empty string.
    pub fn reason(&self) -> &str {
        self.0.reason.as_deref().unwrap_or("")
    }

    pub fn message(&self) -> &str {
        self.0.message.as_deref().unwrap_or("")
    }

    pub fn is_not_found(&self) -> bool {
        self.reason() == "NotFound"
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    pub fn is_expired(&self) -> bool {
        matches!(self.reason(), "Expired" | "Gone")
    }
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code(), self.reason(), self.message())
    }
}

impl std::error::Error for StatusError {}
