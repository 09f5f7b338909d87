//! Maps the claims of a token to a user.

use std::collections::BTreeMap;

use serde_json::Value;

use super::config::{Jwt, Mapping};
use super::expressions;
use crate::authn::UserInfo;

pub fn user(rules: &Jwt, claims: &Value) -> Result<UserInfo, String> {
    let (mappings, expressions) = (&rules.claim_mappings, &*rules.expressions);
    let seen = expressions::seen(claims);
    let name = match &expressions.username {
        Some(username) => username.text(&seen, "username")?,
        None => name(&mappings.username, claims)?,
    };
    if name.is_empty() {
        return Err("oidc: empty username via CEL expression is not allowed".into());
    }
    let groups = match &expressions.groups {
        Some(groups) => groups
            .texts(&seen)
            .map_err(|why| format!("oidc: error evaluating group claim expression: {why}"))?,
        None => groups(&mappings.groups, claims)?,
    };
    let claim = &mappings.uid.claim;
    let uid = match &expressions.uid {
        Some(uid) => uid.text(&seen, "uid")?,
        None if claim.is_empty() => String::new(),
        None => {
            text(claims, claim).ok_or_else(|| format!("oidc: error getting uid claim: {claim:?}"))?.to_owned()
        }
    };
    let mut extra = BTreeMap::new();
    if let Some(id) = text(claims, "jti").filter(|id| !id.is_empty()) {
        extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &expressions.extra {
        let values = expression.texts(&seen).map_err(|why| {
            format!("oidc: error evaluating extra claim expression: {}: {why}", expression.source())
        })?;
        if !values.is_empty() {
            extra.insert(key.clone(), values);
        }
    }
    check_required(rules, claims)?;
    expressions.check_claims(&seen)?;
    let user = UserInfo { name, uid, groups, extra };
    expressions.check_user(&user)?;
    Ok(user.authenticated())
}

fn name(mapping: &Mapping, claims: &Value) -> Result<String, String> {
    let claim = &mapping.claim;
    let name = text(claims, claim)
        .ok_or_else(|| format!("oidc: parse username claims {claim:?}: claim not present"))?;
    // An unverified address may belong to another person.
    if claim == "email" && claims.get("email_verified").is_some_and(|v| v != &Value::Bool(true)) {
        return Err("oidc: email not verified".into());
    }
    Ok(format!("{}{name}", mapping.prefix.as_deref().unwrap_or("")))
}

fn groups(mapping: &Mapping, claims: &Value) -> Result<Vec<String>, String> {
    let claim = &mapping.claim;
    if claim.is_empty() {
        return Ok(Vec::new());
    }
    let all: Vec<&str> = match claims.get(claim) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        Some(_) => return Err(format!("oidc: parse groups claim {claim:?}: json: cannot unmarshal")),
    };
    let prefix = mapping.prefix.as_deref().unwrap_or("");
    Ok(all.iter().map(|g| format!("{prefix}{g}")).collect())
}

fn check_required(rules: &Jwt, claims: &Value) -> Result<(), String> {
    for rule in rules.claim_validation_rules.iter().filter(|r| !r.claim.is_empty()) {
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
    Ok(())
}

fn text<'a>(claims: &'a Value, claim: &str) -> Option<&'a str> {
    claims.get(claim)?.as_str()
}
