//! Bootstrap tokens: `id.secret`, stored as Secrets in kube-system, with which new nodes authenticate.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value;

use super::UserInfo;

pub const SECRET_PREFIX: &str = "bootstrap-token-";
pub const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const DEFAULT_GROUP: &str = "system:bootstrappers";

/// Splits a token of the valid form: six and sixteen lower-case letters and digits.
pub fn parse(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fits = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
    };
    (fits(id, 6) && fits(secret, 16)).then_some((id, secret))
}

/// Returns the user of a token according to the Secret of its id; `None` if the Secret does not confirm the token.
pub fn user(secret: &Value, id: &str, token_secret: &str, now: Timestamp) -> Option<UserInfo> {
    if !secret["metadata"]["deletionTimestamp"].is_null() || secret["type"] != SECRET_TYPE {
        return None;
    }
    let data = |key: &str| -> String {
        let bytes = secret["data"][key].as_str().and_then(|t| BASE64.decode(t).ok()).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    if digest(&data("token-secret")).as_ref() != digest(token_secret).as_ref() || data("token-id") != id {
        return None;
    }
    let expiration = data("expiration");
    if !expiration.is_empty() {
        // An unparsable expiration counts as expired.
        let ends: Timestamp = expiration.parse().ok()?;
        if now >= ends {
            return None;
        }
    }
    if data("usage-bootstrap-authentication") != "true" {
        return None;
    }
    let mut groups = vec![DEFAULT_GROUP.to_owned()];
    for group in data("auth-extra-groups").split(',').filter(|g| !g.is_empty()) {
        if !is_bootstrap_group(group) {
            return None;
        }
        groups.push(group.to_owned());
    }
    groups.sort();
    groups.dedup();
    let name = format!("system:bootstrap:{id}");
    Some(UserInfo { name, uid: String::new(), groups, extra: BTreeMap::new() }.authenticated())
}

/// Returns whether the group is valid: `system:bootstrappers:` and up to 255 letters, digits, colons and dashes that
/// end in a letter or digit.
pub fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let plain = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    !rest.is_empty()
        && rest.len() <= 256
        && rest.bytes().all(|b| plain(b) || b == b':' || b == b'-')
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(changes: &[(&str, &str)]) -> Value {
        let mut secret =
            json!({"type": SECRET_TYPE, "metadata": {"name": "bootstrap-token-abcdef"}, "data": {}});
        let usual = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
        ];
        for (key, value) in usual.iter().chain(changes) {
            secret["data"][*key] = BASE64.encode(value).into();
        }
        secret
    }

    #[test]
    fn secrets_vouch_for_tokens() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (name, secret, accepted) in [
            ("usual", secret(&[]), true),
            ("other secret", secret(&[("token-secret", "0123456789abcdeX")]), false),
            ("other id", secret(&[("token-id", "abcdeg")]), false),
            ("for signing only", secret(&[("usage-bootstrap-authentication", "false")]), false),
            ("over", secret(&[("expiration", "2025-12-31T23:59:59Z")]), false),
            ("not yet over", secret(&[("expiration", "2026-01-01T00:00:01Z")]), true),
            ("unreadable end", secret(&[("expiration", "soon")]), false),
            ("foreign group", secret(&[("auth-extra-groups", "system:masters")]), false),
            ("own group", secret(&[("auth-extra-groups", "system:bootstrappers:a-b")]), true),
        ] {
            let found = user(&secret, "abcdef", "0123456789abcdef", now);
            assert_eq!(found.is_some(), accepted, "{name}");
            if let Some(found) = found {
                assert_eq!(found.name, "system:bootstrap:abcdef");
                assert!(found.in_group("system:bootstrappers") && found.in_group("system:authenticated"));
            }
        }
        let mut opaque = secret(&[]);
        opaque["type"] = "Opaque".into();
        assert!(user(&opaque, "abcdef", "0123456789abcdef", now).is_none());
    }

    #[test]
    fn tokens_have_a_form() {
        assert_eq!(parse("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for wrong in ["", "abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123", "abcdef.0123456789abcdef.x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert!(is_bootstrap_group("system:bootstrappers:kubeadm:default-node-token"));
        assert!(
            !is_bootstrap_group("system:bootstrappers:") && !is_bootstrap_group("system:bootstrappers:a-")
        );
    }
}
