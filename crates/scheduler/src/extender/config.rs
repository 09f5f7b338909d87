//! `extenders` of the configuration file: the URL, the verbs and the options of each extender.

use std::collections::BTreeSet;
use std::time::Duration;

use knarr_api::validate::problems;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde::Deserialize;

use crate::config::go_duration::GoDuration;

const TIMEOUT: GoDuration = GoDuration::from_secs(5);

/// One extender.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
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
    pub http_timeout: GoDuration,
    /// The extender caches nodes, so it only needs their names.
    pub node_cache_capable: bool,
    /// If empty, the extender is called for every pod.
    pub managed_resources: Vec<ManagedResource>,
    /// When the extender fails, pods are scheduled without it.
    pub ignorable: bool,
}

/// `tlsConfig` of an extender.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    /// These three fields are PEM, encoded as base64.
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

/// An extended resource that an extender manages.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedResource {
    pub name: String,
    pub ignored_by_scheduler: bool,
}

impl ExtenderConfig {
    /// The time limit of a call, or upstream's default.
    pub fn timeout(&self) -> Duration {
        self.http_timeout.or(TIMEOUT).get()
    }
}

/// The resources managed by extenders that the scheduler ignores.
pub fn ignored(extenders: &[ExtenderConfig]) -> Vec<String> {
    let all = extenders.iter().flat_map(|e| &e.managed_resources);
    all.filter(|r| r.ignored_by_scheduler).map(|r| r.name.clone()).collect()
}

/// Validates the extenders by upstream's rules.
pub fn validate(extenders: &[ExtenderConfig]) -> ErrorList {
    let (mut errors, mut seen) = (ErrorList::new(), BTreeSet::new());
    let path = Path::new("extenders");
    for (at, extender) in extenders.iter().enumerate() {
        let path = path.index(at);
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let why = "must have a positive weight applied to it";
            errors.push(Error::invalid(&path.child("weight"), extender.weight, why));
        }
        for (at, resource) in extender.managed_resources.iter().enumerate() {
            let (path, name) =
                (path.child("managedResources").index(at).child("name"), resource.name.as_str());
            let wrong = names::label_key(name);
            if wrong.is_empty() && !is_extended(name) {
                errors.push(Error::invalid(&path, name, "is an invalid extended resource name"));
            }
            problems(&mut errors, &path, name, wrong);
            if !seen.insert(name) {
                errors.push(Error::invalid(&path, name, "duplicate extender managed resource name"));
            }
        }
    }
    let binders = extenders.iter().filter(|e| !e.bind_verb.is_empty()).count();
    if binders > 1 {
        let value = format!("found {binders} extenders implementing bind");
        errors.push(Error::invalid(&path, value, "only one extender can implement bind"));
    }
    errors
}

fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    !name.starts_with("requests.")
        && domain.is_some_and(|d| !d.is_empty() && d != "kubernetes.io" && !d.ends_with(".kubernetes.io"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn extenders_are_read() {
        let gpu = json!({"name": "example.com/gpu", "ignoredByScheduler": true});
        let extenders = json!([{"urlPrefix": "http://x", "filterVerb": "filter", "httpTimeout": "1m30s",
            "managedResources": [gpu]}, {"urlPrefix": "http://y"}]);
        let good: Vec<ExtenderConfig> = serde_json::from_value(extenders).unwrap();
        assert!(validate(&good).is_empty());
        assert_eq!((good[0].timeout().as_secs(), good[1].timeout().as_secs()), (90, 5));
        assert_eq!(ignored(&good), ["example.com/gpu"]);
    }
}
