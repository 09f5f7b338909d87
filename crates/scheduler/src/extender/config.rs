//! `extenders` of the configuration file: what each is asked, where, and in which form.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::config::ConfigError;

const TIMEOUT: Duration = Duration::from_secs(5);

/// One extender.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExtenderConfig {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub weight: i64,
    pub bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: Option<TlsConfig>,
    #[serde(deserialize_with = "go_duration")]
    pub http_timeout: Duration,
    /// It knows the nodes: their names are enough.
    pub node_cache_capable: bool,
    /// Without any it is asked about every pod.
    pub managed_resources: Vec<ManagedResource>,
    /// Pods are scheduled without it when it fails.
    pub ignorable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct TlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    /// These three are base64 of PEM.
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManagedResource {
    pub name: String,
    #[serde(default)]
    pub ignored_by_scheduler: bool,
}

fn go_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let parsed = knarr_apimachinery::duration::parse(&text).map_err(serde::de::Error::custom)?;
    let wrong = |_| serde::de::Error::custom(format!("time: invalid duration {text:?}"));
    Duration::try_from(parsed).map_err(wrong)
}

impl ExtenderConfig {
    pub fn timeout(&self) -> Duration {
        if self.http_timeout.is_zero() { TIMEOUT } else { self.http_timeout }
    }
}

fn invalid(path: String, value: impl ToString, why: &str) -> ConfigError {
    ConfigError::Invalid { path, value: value.to_string(), why: why.to_owned() }
}

/// The resources of the extenders that the scheduler leaves to them.
pub fn ignored(extenders: &[ExtenderConfig]) -> Vec<String> {
    let all = extenders.iter().flat_map(|e| &e.managed_resources);
    all.filter(|r| r.ignored_by_scheduler).map(|r| r.name.clone()).collect()
}

/// Upstream's rules.
pub fn validate(extenders: &[ExtenderConfig]) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for (at, extender) in extenders.iter().enumerate() {
        let path = format!("extenders[{at}]");
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let why = "must have a positive weight applied to it";
            return Err(invalid(format!("{path}.weight"), extender.weight, why));
        }
        for (at, resource) in extender.managed_resources.iter().enumerate() {
            let path = format!("{path}.managedResources[{at}].name");
            if !is_extended(&resource.name) {
                return Err(invalid(path, &resource.name, "is an invalid extended resource name"));
            }
            if !names.insert(&resource.name) {
                return Err(invalid(path, &resource.name, "duplicate extender managed resource name"));
            }
        }
    }
    let binders = extenders.iter().filter(|e| !e.bind_verb.is_empty()).count();
    if binders > 1 {
        let value = format!("found {binders} extenders implementing bind");
        return Err(invalid("extenders".to_owned(), value, "only one extender can implement bind"));
    }
    Ok(())
}

fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    !name.starts_with("requests.")
        && domain.is_some_and(|d| !d.is_empty() && d != "kubernetes.io" && !d.ends_with(".kubernetes.io"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(extenders: Value) -> Result<Vec<ExtenderConfig>, String> {
        let extenders: Vec<ExtenderConfig> = serde_json::from_value(extenders).map_err(|e| e.to_string())?;
        validate(&extenders).map_err(|e| e.to_string())?;
        Ok(extenders)
    }

    #[test]
    fn extenders_are_read_and_checked() {
        let gpu = json!({"name": "example.com/gpu", "ignoredByScheduler": true});
        let good = read(json!([{"urlPrefix": "http://x", "filterVerb": "filter", "httpTimeout": "1m30s",
            "managedResources": [gpu]}, {"urlPrefix": "http://y"}]))
        .unwrap();
        assert_eq!((good[0].timeout().as_secs(), good[1].timeout().as_secs()), (90, 5));
        assert_eq!(ignored(&good), ["example.com/gpu"]);
        let wrong = [
            (
                json!([{"prioritizeVerb": "p"}]),
                "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
            ),
            (
                json!([{"bindVerb": "a"}, {"bindVerb": "b"}]),
                "extenders: Invalid value: found 2 extenders implementing bind: only one extender can implement bind",
            ),
            (
                json!([{"managedResources": [gpu, gpu]}]),
                "extenders[0].managedResources[1].name: Invalid value: example.com/gpu: duplicate extender managed resource name",
            ),
            (
                json!([{"managedResources": [{"name": "cpu"}]}]),
                "extenders[0].managedResources[0].name: Invalid value: cpu: is an invalid extended resource name",
            ),
        ];
        for (extenders, expected) in wrong {
            assert_eq!(read(extenders).unwrap_err(), expected);
        }
        assert!(read(json!([{"httpTimeout": "soon"}])).unwrap_err().contains("invalid duration"));
        assert!(read(json!([{"urlprefix": "x"}])).unwrap_err().contains("unknown field"));
    }
}
