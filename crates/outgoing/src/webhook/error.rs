//! Errors of webhook calls, with the texts of upstream's HTTP and REST clients.

use std::{fmt, io};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use knarr_apimachinery::status::StatusError;

/// How much of a response that is not a Status an error shows, in bytes.
const MAX_SHOWN: usize = 2048;

/// A failed call.
#[derive(Debug, Clone)]
pub enum CallError {
    /// The target is invalid.
    Target(String),
    /// No usable response was received: `Post "https://…": why`.
    Transport { url: String, why: String },
    /// The webhook answered with an HTTP error.
    Status(StatusError),
}

impl CallError {
    /// Returns the HTTP error that the webhook answered with.
    pub fn status(&self) -> Option<&StatusError> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(why) => f.write_str(why),
            Self::Transport { url, why } => write!(f, "Post {url:?}: {why}"),
            Self::Status(status) => f.write_str(status.message()),
        }
    }
}

impl std::error::Error for CallError {}

/// A [`CallError`] without the URL.
pub enum Failure {
    Connect(String),
    Timeout,
    TooLarge(usize),
    Status(StatusError),
}

impl Failure {
    /// Returns the failure of a connection that ended before a response.
    pub fn broken(error: &hyper::Error) -> Self {
        if error.is_incomplete_message() {
            return Self::Connect("EOF".into());
        }
        let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<io::Error>());
        Self::Connect(match source.map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => "EOF".into(),
            Some(io::ErrorKind::ConnectionReset) => "read: connection reset by peer".into(),
            _ => error.to_string(),
        })
    }

    pub fn about(self, url: String) -> CallError {
        let why = match self {
            Self::Connect(why) => why,
            Self::Timeout => "context deadline exceeded".into(),
            Self::TooLarge(limit) => format!("the response is larger than {limit} bytes"),
            Self::Status(status) => return CallError::Status(status),
        };
        CallError::Transport { url, why }
    }

    /// Returns an HTTP error: the Status in the body, or one created from the code as upstream's client does.
    pub fn status(code: u16, body: &[u8]) -> Self {
        if let Ok(value) = serde_json::from_slice::<serde_json::Value>(body)
            && value["kind"] == "Status"
            && value["apiVersion"] == "v1"
            && value["status"] != "Success"
            && let Ok(status) = serde_json::from_value::<Status>(value)
        {
            return Self::Status(StatusError(Box::new(status)));
        }
        let text = String::from_utf8_lossy(&body[..body.len().min(MAX_SHOWN)]);
        Self::Status(of_code(code, text.trim()))
    }
}

/// Returns the Status for a code. Source: `k8s.io/apimachinery/pkg/api/errors.NewGenericServerResponse`, for a POST.
fn of_code(code: u16, text: &str) -> StatusError {
    let (reason, message) = match code {
        400 => ("BadRequest", "the server rejected our request for an unknown reason"),
        401 => ("Unauthorized", "the server has asked for the client to provide credentials"),
        403 => ("Forbidden", text),
        404 => ("NotFound", "the server could not find the requested resource"),
        405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
        406 => ("NotAcceptable", if text.is_empty() { "unknown" } else { text }),
        409 => ("AlreadyExists", "the server reported a conflict"),
        415 => ("UnsupportedMediaType", if text.is_empty() { "unknown" } else { text }),
        422 => ("Invalid", "the server rejected our request due to an error in our request"),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later",
        ),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        code if code >= 500 => {
            let message =
                format!("an error on the server ({text:?}) has prevented the request from succeeding");
            return StatusError::new(code, "InternalError", message);
        }
        code => {
            let message = format!(
                "the server responded with the status code {code} but did not return more information"
            );
            return StatusError::new(code, "", message);
        }
    };
    StatusError::new(code, reason, message)
}
