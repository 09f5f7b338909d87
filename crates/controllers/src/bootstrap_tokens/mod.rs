//! Bootstrap tokens: the secrets with which new nodes join, the signatures made with them, and their expiry.

pub mod cleaner;
pub mod signer;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use knarr_api::kind::Kind;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";

fn is_token(secret: &Secret) -> bool {
    secret.namespace() == NAMESPACE && secret.type_.as_deref() == Some(TYPE)
}

fn field(secret: &Secret, name: &str) -> String {
    let found = secret.data.as_ref().and_then(|d| d.get(name));
    found.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

/// Returns when the token expires; an expiration that does not parse counts as past.
fn expiration(secret: &Secret) -> Option<Timestamp> {
    let text = field(secret, "expiration");
    (!text.is_empty()).then(|| text.parse().unwrap_or(Timestamp::MIN))
}

/// Returns whether the text is six lowercase letters or digits.
fn is_token_id(id: &str) -> bool {
    id.len() == 6 && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Returns the token's id and secret, if signatures may be made with it.
fn for_signing(secret: &Secret, now: Timestamp) -> Option<(String, String)> {
    let suffix = secret.name().strip_prefix(PREFIX).filter(|id| is_token_id(id))?;
    let (id, token) = (field(secret, "token-id"), field(secret, "token-secret"));
    let usable = id == suffix
        && !token.is_empty()
        && expiration(secret).is_none_or(|end| end > now)
        && field(secret, "usage-bootstrap-signing") == "true";
    usable.then_some((id, token))
}

#[cfg(test)]
fn token(id: &str, fields: &[(&str, &str)]) -> Secret {
    let mut data = std::collections::BTreeMap::new();
    let all = [("token-id", id), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
    for (name, value) in all.iter().chain(fields) {
        data.insert((*name).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec()));
    }
    let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some(format!("{PREFIX}{id}")),
        namespace: Some(NAMESPACE.into()),
        ..Default::default()
    };
    Secret { metadata, data: Some(data), type_: Some(TYPE.into()), ..Secret::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn which_tokens_sign() {
        for (fields, usable) in [
            (&[][..], true),
            (&[("expiration", "2026-01-02T00:00:00Z")][..], true),
            (&[("expiration", "2025-12-31T00:00:00Z")][..], false),
            (&[("expiration", "soon")][..], false),
            (&[("usage-bootstrap-signing", "false")][..], false),
            (&[("token-id", "other1")][..], false),
            (&[("token-secret", "")][..], false),
        ] {
            assert_eq!(for_signing(&token("abcdef", fields), at(0)).is_some(), usable, "{fields:?}");
        }
    }
}
