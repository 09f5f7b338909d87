//! `AuthenticationConfiguration`, and its equivalent from `--oidc-*` flags.

use std::collections::BTreeSet;
use std::sync::Arc;

use knarr_apimachinery::names;
use serde::Deserialize;

use super::expressions::Expressions;
use crate::authn::options::{Anonymous, Oidc};

/// The accepted signature algorithms.
pub const ALGORITHMS: [&str; 8] = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "PS384", "PS512"];
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    jwt: Vec<Jwt>,
    anonymous: Option<AnonymousFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousFile {
    #[serde(default)]
    enabled: bool,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    path: String,
}

/// One issuer, as in the file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Jwt {
    pub issuer: IssuerFile,
    #[serde(default)]
    pub claim_validation_rules: Vec<ClaimRule>,
    #[serde(default)]
    pub claim_mappings: Mappings,
    #[serde(default)]
    pub user_validation_rules: Vec<UserRule>,
    #[serde(skip)]
    pub signing_algs: Vec<String>,
    #[serde(skip)]
    pub expressions: Arc<Expressions>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerFile {
    pub url: String,
    #[serde(default, rename = "discoveryURL")]
    pub discovery_url: Option<String>,
    /// The CA certificates in PEM.
    #[serde(default)]
    pub certificate_authority: String,
    #[serde(default)]
    pub audiences: Vec<String>,
    #[serde(default)]
    pub audience_match_policy: String,
    #[serde(default)]
    pub egress_selector_type: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRule {
    #[serde(default)]
    pub claim: String,
    #[serde(default)]
    pub required_value: String,
    #[serde(default)]
    pub expression: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserRule {
    #[serde(default)]
    pub expression: String,
    #[serde(default)]
    pub message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mappings {
    #[serde(default)]
    pub username: Mapping,
    #[serde(default)]
    pub groups: Mapping,
    #[serde(default)]
    pub uid: Mapping,
    #[serde(default)]
    pub extra: Vec<Extra>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    #[serde(default)]
    pub claim: String,
    #[serde(default)]
    pub prefix: Option<String>,
    #[serde(default)]
    pub expression: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extra {
    pub key: String,
    #[serde(default)]
    pub value_expression: String,
}

/// The issuers, and the anonymous conditions if the file has any.
pub struct Parsed {
    pub issuers: Vec<Jwt>,
    pub anonymous: Option<Anonymous>,
}

pub fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let file: File = serde_saphyr::from_str(knarr_reload::text(bytes)?)
        .map_err(|e| format!("failed to decode authentication configuration: {e}"))?;
    if file.kind != "AuthenticationConfiguration" || !VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!("no kind \"{}\" is registered for version \"{}\"", file.kind, file.api_version));
    }
    let anonymous = match file.anonymous {
        None => None,
        Some(a) if !a.enabled && !a.conditions.is_empty() => {
            return Err("anonymous.conditions: Invalid value: enabled should be set to true when conditions are defined".into());
        }
        Some(a) if !a.enabled => Some(Anonymous::Off),
        Some(a) if a.conditions.is_empty() => Some(Anonymous::On),
        Some(a) => Some(Anonymous::Paths(a.conditions.into_iter().map(|c| c.path).collect())),
    };
    let mut issuers = file.jwt;
    for at in 0..issuers.len() {
        let url = issuers[at].issuer.url.clone();
        if issuers[..at].iter().any(|i| i.issuer.url == url) {
            return Err(format!("jwt[{at}].issuer.url: Duplicate value: {url:?}"));
        }
        issuers[at].signing_algs = ALGORITHMS.map(str::to_owned).to_vec();
        check(&mut issuers[at], &format!("jwt[{at}]"))?;
    }
    Ok(Parsed { issuers, anonymous })
}

fn check(jwt: &mut Jwt, path: &str) -> Result<(), String> {
    check_url(&jwt.issuer.url, &format!("{path}.issuer.url"))?;
    if let Some(url) = &jwt.issuer.discovery_url {
        check_url(url, &format!("{path}.issuer.discoveryURL"))?;
        if url.trim_end_matches('/') == jwt.issuer.url.trim_end_matches('/') {
            return Err(format!(
                "{path}.issuer.discoveryURL: Invalid value: {url:?}: discoveryURL must be different from URL"
            ));
        }
    }
    if jwt.issuer.audiences.is_empty() {
        return Err(format!(
            "{path}.issuer.audiences: Required value: at least one {path}.issuer.audiences is required"
        ));
    }
    let policy = jwt.issuer.audience_match_policy.as_str();
    if jwt.issuer.audiences.len() > 1 && policy != "MatchAny" || !matches!(policy, "" | "MatchAny") {
        return Err(format!(
            "{path}.issuer.audienceMatchPolicy: Invalid value: {policy:?}: audienceMatchPolicy must be MatchAny for multiple audiences"
        ));
    }
    if !jwt.issuer.egress_selector_type.is_empty() {
        return Err(format!("{path}.issuer.egressSelectorType: Invalid value: there is no egress selector"));
    }
    check_mappings(&jwt.claim_mappings, path)?;
    check_rules(jwt, path)?;
    jwt.expressions = Arc::new(Expressions::of(jwt, path)?);
    Ok(())
}

fn check_mappings(mappings: &Mappings, path: &str) -> Result<(), String> {
    let named = [("username", &mappings.username), ("groups", &mappings.groups), ("uid", &mappings.uid)];
    for (name, mapping) in named {
        let path = format!("{path}.claimMappings.{name}");
        match (mapping.claim.is_empty(), mapping.expression.is_empty()) {
            (false, false) => {
                return Err(format!("{path}: Invalid value: \"\": claim and expression can't both be set"));
            }
            (true, true) if name == "username" => {
                return Err(format!("{path}: Required value: claim or expression is required"));
            }
            (true, false) => {
                if let Some(prefix) = &mapping.prefix {
                    return Err(format!(
                        "{path}.prefix: Invalid value: {prefix:?}: may not be specified when expression is set"
                    ));
                }
            }
            (false, true) if mapping.prefix.is_none() && name != "uid" => {
                return Err(format!(
                    "{path}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"
                ));
            }
            _ => {}
        }
    }
    let mut seen = BTreeSet::new();
    for (at, extra) in mappings.extra.iter().enumerate() {
        let path = format!("{path}.claimMappings.extra[{at}]");
        check_extra_key(&extra.key).map_err(|why| format!("{path}.key: {why}"))?;
        if !seen.insert(&extra.key) {
            return Err(format!("{path}.key: Duplicate value: {:?}", extra.key));
        }
        if extra.value_expression.is_empty() {
            return Err(format!("{path}.valueExpression: Required value"));
        }
    }
    Ok(())
}

/// Checks that the key is a path in a domain outside of Kubernetes.
fn check_extra_key(key: &str) -> Result<(), String> {
    let invalid = |why: &str| Err(format!("Invalid value: {key:?}: {why}"));
    if key.is_empty() {
        return Err("Required value".to_owned());
    }
    let Some((domain, rest)) = key.split_once('/').filter(|(d, r)| !d.is_empty() && !r.is_empty()) else {
        return invalid("must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    let problems = names::dns1123_subdomain(domain);
    if let Some(problem) = problems.first() {
        return invalid(problem);
    }
    if !rest.bytes().all(|c| c.is_ascii_alphanumeric() || b"/_-.~!$&'()*+,;=%:@".contains(&c)) {
        return invalid("Invalid path");
    }
    if key.to_lowercase() != key {
        return invalid("must be lowercase");
    }
    let reserved = ["k8s.io", "kubernetes.io"];
    if reserved.iter().any(|r| domain.strip_suffix(r).is_some_and(|d| d.is_empty() || d.ends_with('.'))) {
        return invalid("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
    Ok(())
}

fn check_rules(jwt: &Jwt, path: &str) -> Result<(), String> {
    let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
    for (at, rule) in jwt.claim_validation_rules.iter().enumerate() {
        let path = format!("{path}.claimValidationRules[{at}]");
        match (rule.claim.as_str(), rule.expression.as_str()) {
            ("", "") => return Err(format!("{path}: Required value: claim or expression is required")),
            ("", expression) => {
                if !rule.required_value.is_empty() {
                    let value = &rule.required_value;
                    return Err(format!(
                        "{path}.requiredValue: Invalid value: {value:?}: may not be specified when expression is set"
                    ));
                }
                if !expressions.insert(expression) {
                    return Err(format!("{path}.expression: Duplicate value: {expression:?}"));
                }
            }
            (claim, "") => {
                if !rule.message.is_empty() {
                    let message = &rule.message;
                    return Err(format!(
                        "{path}.message: Invalid value: {message:?}: may not be specified when claim is set"
                    ));
                }
                if !claims.insert(claim) {
                    return Err(format!("{path}.claim: Duplicate value: {claim:?}"));
                }
            }
            (claim, _) => {
                return Err(format!(
                    "{path}: Invalid value: {claim:?}: claim and expression can't both be set"
                ));
            }
        }
    }
    let mut expressions = BTreeSet::new();
    for (at, rule) in jwt.user_validation_rules.iter().enumerate() {
        let path = format!("{path}.userValidationRules[{at}].expression");
        if rule.expression.is_empty() {
            return Err(format!("{path}: Required value"));
        }
        if !expressions.insert(&rule.expression) {
            return Err(format!("{path}: Duplicate value: {:?}", rule.expression));
        }
    }
    Ok(())
}

fn check_url(url: &str, path: &str) -> Result<(), String> {
    if url.is_empty() {
        return Err(format!("{path}: Required value: URL is required"));
    }
    if !url.starts_with("https://") {
        return Err(format!("{path}: Invalid value: {url:?}: URL scheme must be https"));
    }
    if url.contains(['?', '#', '@']) {
        return Err(format!(
            "{path}: Invalid value: {url:?}: URL must not contain a username or password, a query or a fragment"
        ));
    }
    Ok(())
}

/// Returns the issuer that the flags describe.
pub fn of_flags(flags: &Oidc) -> Result<Jwt, String> {
    let ca = match &flags.ca_file {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| format!("Failed to read the CA file: {e}"))?
        }
        None => String::new(),
    };
    for algorithm in &flags.signing_algs {
        if !ALGORITHMS.contains(&algorithm.as_str()) {
            return Err(format!("oidc: unsupported signing alg: {algorithm:?}"));
        }
    }
    let claim = if flags.username_claim.is_empty() { "sub" } else { &flags.username_claim };
    let prefix = match flags.username_prefix.as_deref() {
        Some("-") => String::new(),
        Some(given) if !given.is_empty() => given.to_owned(),
        _ if claim == "email" => String::new(),
        _ => format!("{}#", flags.issuer_url),
    };
    let mut jwt = Jwt {
        issuer: IssuerFile {
            url: flags.issuer_url.clone(),
            certificate_authority: ca,
            audiences: vec![flags.client_id.clone()],
            ..IssuerFile::default()
        },
        claim_validation_rules: flags
            .required_claims
            .iter()
            .map(|(claim, value)| ClaimRule {
                claim: claim.clone(),
                required_value: value.clone(),
                ..ClaimRule::default()
            })
            .collect(),
        claim_mappings: Mappings {
            username: Mapping { claim: claim.to_owned(), prefix: Some(prefix), ..Mapping::default() },
            groups: Mapping {
                claim: flags.groups_claim.clone(),
                prefix: Some(flags.groups_prefix.clone()),
                ..Mapping::default()
            },
            ..Mappings::default()
        },
        user_validation_rules: Vec::new(),
        signing_algs: if flags.signing_algs.is_empty() {
            vec!["RS256".to_owned()]
        } else {
            flags.signing_algs.clone()
        },
        expressions: Arc::default(),
    };
    check(&mut jwt, "oidc")?;
    Ok(jwt)
}
