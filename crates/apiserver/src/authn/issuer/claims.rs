//! From a token's claims to a user.

use serde_json::Value;

use super::config::Jwt;
use crate::authn::UserInfo;

pub fn user(rules: &Jwt, claims: &Value) -> Result<UserInfo, String> {
    let mappings = &rules.claim_mappings;
    let claim = &mappings.username.claim;
    let name = text(claims, claim)
        .ok_or_else(|| format!("oidc: parse username claims {claim:?}: claim not present"))?;
    // An address that its owner has not confirmed may be anybody's.
    if claim == "email" && claims.get("email_verified").is_some_and(|v| v != &Value::Bool(true)) {
        return Err("oidc: email not verified".into());
    }
    let prefix = |p: &Option<String>| p.clone().unwrap_or_default();
    let name = format!("{}{name}", prefix(&mappings.username.prefix));
    if name.is_empty() {
        return Err("oidc: error evaluating username claim expression: the username is empty".into());
    }
    let mut groups = Vec::new();
    let claim = &mappings.groups.claim;
    if !claim.is_empty() {
        let all: Vec<&str> = match claims.get(claim) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
            Some(_) => return Err(format!("oidc: parse groups claim {claim:?}: json: cannot unmarshal")),
        };
        groups = all.iter().map(|g| format!("{}{g}", prefix(&mappings.groups.prefix))).collect();
    }
    let claim = &mappings.uid.claim;
    let uid = if claim.is_empty() {
        String::new()
    } else {
        text(claims, claim).ok_or_else(|| format!("oidc: error getting uid claim: {claim:?}"))?.to_owned()
    };
    for rule in &rules.claim_validation_rules {
        let (claim, wanted) = (&rule.claim, &rule.required_value);
        let found = claims
            .get(claim)
            .ok_or_else(|| format!("oidc: required claim {claim} not present in ID token"))?;
        let found = found.as_str().ok_or_else(|| format!("oidc: parse claim {claim}: not a string"))?;
        if found != wanted {
            return Err(format!(
                "oidc: required claim {claim} value does not match. Got = {found}, want = {wanted}"
            ));
        }
    }
    let mut extra = std::collections::BTreeMap::new();
    if let Some(id) = text(claims, "jti").filter(|id| !id.is_empty()) {
        extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    Ok(UserInfo { name, uid, groups, extra }.authenticated())
}

fn text<'a>(claims: &'a Value, claim: &str) -> Option<&'a str> {
    claims.get(claim)?.as_str()
}
