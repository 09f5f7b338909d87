//! TokenReview and SelfSubjectReview: return the user of a token, and the current user.

use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::state::State;
use knarr_registry::metadata;
use knarr_registry::options::WriteParams;
use knarr_registry::served::Served;
use knarr_registry::subresources::body_of;
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

const GROUP: &str = "authentication.k8s.io";

pub async fn token_review(server: &State, request: &Request, served: &Served) -> Result<Answer, StatusError> {
    let params = WriteParams::parse(request, "CreateOptions")?;
    let mut review = body_of(request, GROUP, "v1", "TokenReview", &params)?;
    if review["spec"]["token"].as_str().is_none_or(str::is_empty) {
        return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
    }
    review = server.registry.admit_review(request, served, review, &params).await?;
    let token = review["spec"]["token"].as_str().unwrap_or("").to_owned();
    let mut audiences: Vec<String> =
        serde_json::from_value(review["spec"]["audiences"].clone()).unwrap_or_default();
    if audiences.is_empty() {
        audiences.clone_from(&server.authentication.tokens.audiences);
    }
    review["metadata"] = json!({});
    review["status"] = match server.authentication.token(&server.registry, &token, &audiences).await {
        Ok(Some(found)) => {
            json!({"authenticated": true, "user": found.user.to_value(), "audiences": found.audiences})
        }
        Ok(None) => json!({"user": {}, "error": "invalid bearer token"}),
        Err(error) => json!({"user": {}, "error": format!("[invalid bearer token, {error}]")}),
    };
    Ok(Answer::Value { code: 201, value: review })
}

pub async fn self_subject_review(
    server: &State,
    request: &Request,
    served: &Served,
) -> Result<Answer, StatusError> {
    let params = WriteParams::parse(request, "CreateOptions")?;
    let mut review: Value = body_of(request, GROUP, "v1", "SelfSubjectReview", &params)?;
    review = server.registry.admit_review(request, served, review, &params).await?;
    review["metadata"] = json!({"creationTimestamp": metadata::rfc3339(server.clock.now())});
    review["status"] = json!({"userInfo": request.user.to_value()});
    Ok(Answer::Value { code: 201, value: review })
}
