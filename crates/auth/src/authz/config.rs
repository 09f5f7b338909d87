//! The chain of authorizers: from `--authorization-mode`, or from an `AuthorizationConfiguration` file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::Step;
use super::conditions::Conditions;
use super::options::{Authorization, Mode};
use super::webhook::{Settings, Webhook};
use knarr_reload::Reloaded;
use knarr_wire::keypair::ConfigError;

const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    authorizers: Vec<AuthorizerFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuthorizerFile {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    webhook: Option<WebhookFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookFile {
    #[serde(default, rename = "authorizedTTL")]
    authorized_ttl: Option<String>,
    #[serde(default)]
    cache_authorized_requests: Option<bool>,
    #[serde(default, rename = "unauthorizedTTL")]
    unauthorized_ttl: Option<String>,
    #[serde(default)]
    cache_unauthorized_requests: Option<bool>,
    #[serde(default)]
    timeout: Option<String>,
    #[serde(default)]
    subject_access_review_version: String,
    #[serde(default)]
    match_condition_subject_access_review_version: String,
    #[serde(default)]
    failure_policy: String,
    connection_info: ConnectionFile,
    #[serde(default)]
    match_conditions: Vec<ConditionFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionFile {
    #[serde(default)]
    expression: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConnectionFile {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    kube_config_file: Option<PathBuf>,
}

/// Returns the chain that the options configure.
pub fn steps(options: &Authorization) -> Result<Reloaded<Vec<Step>>, ConfigError> {
    let unusable = |why: String| ConfigError::Unusable { what: "the authorization configuration", why };
    if let Some(path) = &options.config_file {
        let parse = |texts: &[Vec<u8>]| parse(texts.first().map(Vec::as_slice).unwrap_or_default());
        return Reloaded::open(vec![path.clone()], parse).map_err(unusable);
    }
    let step = |mode: &Mode| match mode {
        Mode::AlwaysAllow => Ok(Step::AlwaysAllow),
        Mode::AlwaysDeny => Ok(Step::AlwaysDeny),
        Mode::Node => Ok(Step::Node),
        Mode::Rbac => Ok(Step::Rbac),
        Mode::Webhook => {
            let file = options.webhook_config_file.as_ref();
            let file = file.ok_or_else(|| "authorization-mode's Webhook has no kubeconfig".to_owned())?;
            let settings = Settings {
                name: "default".into(),
                version: options.webhook_version.clone(),
                authorized_ttl: options.webhook_authorized_ttl,
                unauthorized_ttl: options.webhook_unauthorized_ttl,
                timeout: LONGEST_TIMEOUT,
                denies_on_failure: false,
            };
            Webhook::new(file, settings, Conditions::default()).map(|w| Step::Webhook(Arc::new(w)))
        }
    };
    options.modes.iter().map(step).collect::<Result<Vec<_>, _>>().map(Reloaded::fixed).map_err(unusable)
}

fn parse(bytes: &[u8]) -> Result<Vec<Step>, String> {
    let file: File = serde_saphyr::from_str(knarr_reload::text(bytes)?)
        .map_err(|e| format!("failed to decode authorization configuration: {e}"))?;
    if file.kind != "AuthorizationConfiguration" || !VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!("no kind \"{}\" is registered for version \"{}\"", file.kind, file.api_version));
    }
    if file.authorizers.is_empty() {
        return Err("authorizers: Required value: at least one authorization mode must be defined".into());
    }
    let (mut steps, mut kinds, mut names) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (at, authorizer) in file.authorizers.into_iter().enumerate() {
        let path = format!("authorizers[{at}]");
        let mode = Mode::parse(&authorizer.kind).ok_or_else(|| {
            format!("{path}.type: Unsupported value: {:?}: supported values: \"AlwaysAllow\", \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"", authorizer.kind)
        })?;
        if mode != Mode::Webhook && !kinds.insert(authorizer.kind.clone()) {
            return Err(format!("{path}.type: Duplicate value: {:?}", authorizer.kind));
        }
        if authorizer.name.is_empty() {
            return Err(format!("{path}.name: Required value"));
        }
        if !names.insert(authorizer.name.clone()) {
            return Err(format!("{path}.name: Duplicate value: {:?}", authorizer.name));
        }
        steps.push(match (mode, authorizer.webhook) {
            (Mode::Webhook, Some(webhook)) => {
                Step::Webhook(Arc::new(webhook.open(authorizer.name, &format!("{path}.webhook"))?))
            }
            (Mode::Webhook, None) => {
                return Err(format!("{path}.webhook: Required value: required when type=Webhook"));
            }
            (_, Some(_)) => {
                return Err(format!(
                    "{path}.webhook: Invalid value: \"non-null\": may only be specified when type=Webhook"
                ));
            }
            (Mode::AlwaysAllow, None) => Step::AlwaysAllow,
            (Mode::AlwaysDeny, None) => Step::AlwaysDeny,
            (Mode::Node, None) => Step::Node,
            (Mode::Rbac, None) => Step::Rbac,
        });
    }
    Ok(steps)
}

impl WebhookFile {
    fn open(self, name: String, path: &str) -> Result<Webhook, String> {
        let duration = |field: &str, text: &Option<String>, default: u64| match text {
            None => Ok(Duration::from_secs(default)),
            Some(text) => seconds(text).ok_or_else(|| format!("{path}.{field}: Invalid value: {text:?}")),
        };
        let timeout = match &self.timeout {
            None => return Err(format!("{path}.timeout: Required value")),
            Some(_) => duration("timeout", &self.timeout, 0)?,
        };
        if timeout.is_zero() || timeout > LONGEST_TIMEOUT {
            return Err(format!("{path}.timeout: Invalid value: must be > 0s and <= 30s"));
        }
        let denies_on_failure = match self.failure_policy.as_str() {
            "Deny" => true,
            "NoOpinion" => false,
            "" => return Err(format!("{path}.failurePolicy: Required value")),
            other => {
                return Err(format!(
                    "{path}.failurePolicy: Unsupported value: {other:?}: supported values: \"Deny\", \"NoOpinion\""
                ));
            }
        };
        if self.subject_access_review_version.is_empty() {
            return Err(format!("{path}.subjectAccessReviewVersion: Required value"));
        }
        let file = match (self.connection_info.kind.as_str(), &self.connection_info.kube_config_file) {
            ("KubeConfigFile", Some(file)) => file.clone(),
            ("KubeConfigFile", None) => {
                return Err(format!("{path}.connectionInfo.kubeConfigFile: Required value"));
            }
            (other, _) => {
                return Err(format!(
                    "{path}.connectionInfo.type: Unsupported value: {other:?}: supported values: \"KubeConfigFile\""
                ));
            }
        };
        let texts: Vec<String> = self.match_conditions.into_iter().map(|c| c.expression).collect();
        let conditions = Conditions::compile(&texts, path)?;
        if !texts.is_empty() && self.match_condition_subject_access_review_version != "v1" {
            return Err(format!(
                "{path}.matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified"
            ));
        }
        let kept =
            |wanted: Option<bool>, ttl: Duration| if wanted.unwrap_or(true) { ttl } else { Duration::ZERO };
        let settings = Settings {
            name,
            version: self.subject_access_review_version.clone(),
            authorized_ttl: kept(
                self.cache_authorized_requests,
                duration("authorizedTTL", &self.authorized_ttl, 300)?,
            ),
            unauthorized_ttl: kept(
                self.cache_unauthorized_requests,
                duration("unauthorizedTTL", &self.unauthorized_ttl, 30)?,
            ),
            timeout,
            denies_on_failure,
        };
        Webhook::new(&file, settings, conditions)
            .map_err(|e| format!("{path}.connectionInfo.kubeConfigFile: Invalid value: {e}"))
    }
}

/// Parses a duration such as `5m0s` or `30s`.
fn seconds(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let (unit, length) = match rest {
            r if r.starts_with("ms") => (Duration::from_millis(number), 2),
            r if r.starts_with('h') => (Duration::from_secs(number.checked_mul(3600)?), 1),
            r if r.starts_with('m') => (Duration::from_secs(number.checked_mul(60)?), 1),
            r if r.starts_with('s') => (Duration::from_secs(number), 1),
            _ => return None,
        };
        total = total.checked_add(unit)?;
        rest = &rest[length..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(authorizers: &str) -> Result<Vec<Step>, String> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{authorizers}"
        );
        parse(text.as_bytes())
    }

    #[test]
    fn files_make_chains_or_say_why_not() {
        let chain = file("- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n").unwrap();
        assert!(matches!(chain.as_slice(), [Step::Node, Step::Rbac]));
        let webhook = |more: &str| {
            format!(
                "- {{type: Webhook, name: w, webhook: {{timeout: 3s, failurePolicy: Deny, subjectAccessReviewVersion: v1, connectionInfo: {{type: KubeConfigFile, kubeConfigFile: /nowhere}}{more}}}}}"
            )
        };
        for (text, why) in [
            ("- {type: Other, name: a}".to_owned(), "Unsupported value: \"Other\""),
            ("- {type: Node, name: a}\n- {type: Node, name: b}".to_owned(), "Duplicate value: \"Node\""),
            ("- {type: Node, name: a}\n- {type: RBAC, name: a}".to_owned(), "name: Duplicate value"),
            ("- {type: Webhook, name: a}".to_owned(), "required when type=Webhook"),
            (webhook(""), "/nowhere"),
            (webhook(", matchConditions: [{expression: request.nope}]"), "undefined field 'nope'"),
            (
                webhook(", matchConditions: [{expression: 'true'}]"),
                "required if match conditions are specified",
            ),
            (webhook(", timeout: 40s").replace("timeout: 3s, ", ""), "must be > 0s and <= 30s"),
        ] {
            let error = file(&text).err().unwrap();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(seconds("5m30s"), Some(Duration::from_secs(330)));
        assert_eq!(seconds("5"), None);
    }
}
