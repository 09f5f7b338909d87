//! TokenRequest, the body of `serviceaccounts/token`: its default lifetime and its bounds.

use k8s_openapi::api::authentication::v1::TokenRequest;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::defaults::{child, unset};
use crate::prepare::object;

/// The lifetime in seconds if the request specifies none.
pub const DEFAULT_SECONDS: i64 = 3600;
/// The shortest lifetime in seconds.
pub const MIN_SECONDS: i64 = 600;

pub fn default(request: &mut Value) {
    unset(child(object(request), "spec"), "expirationSeconds", DEFAULT_SECONDS);
}

pub fn validate(request: &TokenRequest) -> ErrorList {
    let mut errors = ErrorList::new();
    let seconds = request.spec.as_ref().and_then(|s| s.expiration_seconds).unwrap_or(DEFAULT_SECONDS);
    let path = Path::new("spec").child("expirationSeconds");
    if seconds < MIN_SECONDS {
        errors.push(Error::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > 1 << 32 {
        errors.push(Error::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bounds() {
        let mut bare = json!({"spec": {"audiences": []}});
        default(&mut bare);
        assert_eq!(bare["spec"]["expirationSeconds"], 3600);
        for (seconds, fine) in [(599, false), (600, true), (1 << 32, true), ((1 << 32) + 1, false)] {
            let mut request = TokenRequest::default();
            request.spec.get_or_insert_default().expiration_seconds = Some(seconds);
            assert_eq!(validate(&request).is_empty(), fine, "{seconds}");
        }
    }
}
