//! `AuthenticationConfiguration`, and the same from `--oidc-*` flags.

use serde::Deserialize;

use crate::authn::options::{Anonymous, Oidc};
use crate::reload;

/// What tokens may be signed with.
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

/// One issuer, as the file has it.
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
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerFile {
    pub url: String,
    #[serde(default, rename = "discoveryURL")]
    pub discovery_url: Option<String>,
    /// PEM.
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
    #[allow(dead_code, reason = "goes with an expression")]
    pub message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UserRule {
    #[serde(default)]
    pub expression: String,
    #[serde(default)]
    #[allow(dead_code, reason = "goes with an expression")]
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
    #[allow(dead_code, reason = "goes with an expression")]
    pub key: String,
    #[serde(default)]
    #[allow(dead_code, reason = "goes with an expression")]
    pub value_expression: String,
}

/// Issuers, and who may come anonymously if the file says so.
pub struct Parsed {
    pub issuers: Vec<Jwt>,
    pub anonymous: Option<Anonymous>,
}

pub fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let file: File = serde_saphyr::from_str(reload::text(bytes)?)
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
        check(&issuers[at], &format!("jwt[{at}]"))?;
    }
    Ok(Parsed { issuers, anonymous })
}

fn check(jwt: &Jwt, path: &str) -> Result<(), String> {
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
    let mappings = &jwt.claim_mappings;
    let named = [("username", &mappings.username), ("groups", &mappings.groups), ("uid", &mappings.uid)];
    for (name, mapping) in named {
        let path = format!("{path}.claimMappings.{name}");
        if !mapping.claim.is_empty() && !mapping.expression.is_empty() {
            return Err(format!("{path}: Invalid value: \"\": claim and expression can't both be set"));
        }
        no_expression(&mapping.expression, &path)?;
        if !mapping.claim.is_empty() && mapping.prefix.is_none() && name != "uid" {
            return Err(format!(
                "{path}.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing"
            ));
        }
    }
    if mappings.username.claim.is_empty() {
        return Err(format!(
            "{path}.claimMappings.username: Required value: claim or expression is required"
        ));
    }
    if !mappings.extra.is_empty() {
        no_expression("extra", &format!("{path}.claimMappings.extra"))?;
    }
    for (at, rule) in jwt.claim_validation_rules.iter().enumerate() {
        let path = format!("{path}.claimValidationRules[{at}]");
        no_expression(&rule.expression, &path)?;
        if rule.claim.is_empty() {
            return Err(format!("{path}: Required value: claim or expression is required"));
        }
    }
    for (at, rule) in jwt.user_validation_rules.iter().enumerate() {
        no_expression(&rule.expression, &format!("{path}.userValidationRules[{at}]"))?;
    }
    Ok(())
}

fn no_expression(expression: &str, path: &str) -> Result<(), String> {
    if expression.is_empty() {
        return Ok(());
    }
    Err(format!("{path}: Forbidden: CEL expressions are not supported here"))
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

/// The issuer of the flags.
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
    let jwt = Jwt {
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
    };
    check(&jwt, "oidc")?;
    Ok(jwt)
}
