//! Authentication and authorization of requests: client certificates, TokenReview and SubjectAccessReview.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/server/auth.go`.

use std::sync::Arc;
use std::time::Duration;

use knarr_client::Client;
use knarr_client::reviews::{Asked, Lasting, MASTERS, Reviews, UserInfo, bearer_token};

/// How long answers of the API server are cached; upstream's defaults.
const LASTING: Lasting = Lasting {
    token: Duration::from_secs(120),
    allowed: Duration::from_secs(300),
    denied: Duration::from_secs(30),
};

/// The request is refused; the text is the body of the response (401, 403 or 500).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("Unauthorized")]
    Unauthorized,
    #[error("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])\n", subresources.join(" "))]
    Forbidden { user: String, verb: &'static str, subresources: Vec<&'static str> },
    #[error("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})")]
    Unavailable { user: String, verb: &'static str, subresource: &'static str },
}

/// Asks the API server, and caches its answers.
pub struct Auth {
    client: Client,
    node_name: String,
    reviews: Reviews,
}

impl Auth {
    pub fn new(client: Client, node_name: &str) -> Self {
        let reviews = Reviews::new(Arc::clone(client.clock()), LASTING);
        Self { client, node_name: node_name.to_owned(), reviews }
    }

    /// Returns the user of the client certificate if there is one, else of the bearer token.
    pub async fn authenticate(
        &self,
        certificate: Option<&UserInfo>,
        headers: &http::HeaderMap,
    ) -> Result<UserInfo, AuthError> {
        if let Some(user) = certificate {
            return Ok(user.clone());
        }
        let token = bearer_token(headers).ok_or(AuthError::Unauthorized)?;
        let holder = self.reviews.holder(&self.client, token).await;
        let holder = holder.inspect_err(|error| tracing::debug!(%error, "TokenReview failed"));
        holder.ok().flatten().ok_or(AuthError::Unauthorized)
    }

    /// Checks that the user may use any of these subresources of this node.
    pub async fn authorize(
        &self,
        user: &UserInfo,
        verb: &'static str,
        subresources: &[&'static str],
    ) -> Result<(), AuthError> {
        // Members of system:masters are allowed without a review: administrators, and the API server. The API
        // server is not recognised by its usual user name, as others may get a certificate or token with that
        // name.
        if user.is_in(MASTERS) {
            return Ok(());
        }
        for subresource in subresources.iter().copied() {
            let asked = Asked::Node { verb, name: self.node_name.clone(), subresource };
            let may = self.reviews.may(&self.client, user, asked).await;
            let may = may.inspect_err(|error| tracing::debug!(%error, "SubjectAccessReview failed"));
            let unknown = |_| AuthError::Unavailable { user: user.name.clone(), verb, subresource };
            if may.map_err(unknown)? {
                return Ok(());
            }
        }
        Err(AuthError::Forbidden { user: user.name.clone(), verb, subresources: subresources.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_refusal() {
        let error =
            AuthError::Forbidden { user: "eve".into(), verb: "get", subresources: vec!["pods", "proxy"] };
        assert_eq!(
            error.to_string(),
            "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
    }
}
