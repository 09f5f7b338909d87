//! `EncryptionConfiguration`: which resources are encrypted, and by which providers.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use super::kms::Kms;
use super::provider::{CipherError, Provider};

const MAX_KMS_SECONDS: u64 = 3;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceFile {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<ProviderFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderFile {
    aesgcm: Option<KeysFile>,
    aescbc: Option<KeysFile>,
    secretbox: Option<KeysFile>,
    identity: Option<IdentityFile>,
    kms: Option<KmsFile>,
}

#[derive(Deserialize)]
struct IdentityFile {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    #[serde(default)]
    keys: Vec<KeyFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    name: String,
    secret: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KmsFile {
    #[serde(default)]
    api_version: String,
    name: String,
    endpoint: String,
    #[serde(default)]
    timeout: Option<String>,
    #[serde(default)]
    #[allow(dead_code, reason = "only KMS v1 uses it; unknown fields are refused")]
    cachesize: Option<i32>,
}

/// The providers of some resources. The first one encrypts; all of them can decrypt.
pub struct Rule {
    resources: Vec<String>,
    pub providers: Vec<Provider>,
}

pub struct EncryptionConfig {
    rules: Vec<Rule>,
}

impl EncryptionConfig {
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: File = serde_saphyr::from_str(knarr_reload::text(bytes)?)
            .map_err(|e| format!("error decoding encryption provider configuration file: {e}"))?;
        if file.kind != "EncryptionConfiguration" || file.api_version != "apiserver.config.k8s.io/v1" {
            return Err(format!(
                "no kind \"{}\" is registered for version \"{}\"",
                file.kind, file.api_version
            ));
        }
        if file.resources.is_empty() {
            return Err("resources: Required value: must provide at least one resource configuration".into());
        }
        let mut rules: Vec<Rule> = Vec::new();
        for (at, resource) in file.resources.into_iter().enumerate() {
            let path = format!("resources[{at}]");
            if resource.resources.is_empty() {
                return Err(format!("{path}.resources: Required value: must provide at least one resource"));
            }
            for name in &resource.resources {
                check_resource(&path, name)?;
            }
            if resource.providers.is_empty() {
                return Err(format!("{path}.providers: Required value: must provide at least one provider"));
            }
            let mut providers = Vec::new();
            for (n, provider) in resource.providers.into_iter().enumerate() {
                let path = format!("{path}.providers[{n}]");
                providers.extend(provider.open(&path)?);
            }
            rules.push(Rule { resources: resource.resources, providers });
        }
        Ok(Self { rules })
    }

    /// Returns the key services (KMS), one for each mention in the configuration.
    pub fn key_services(&self) -> impl Iterator<Item = &Kms> {
        self.rules.iter().flat_map(|rule| &rule.providers).filter_map(Provider::key_service)
    }

    /// Returns the rule for a key below `/registry/` and the name of its resource; `None` if its values are stored in
    /// plain text.
    pub fn rule(&self, key: &[u8]) -> Option<(&Rule, String)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix("/registry/")?;
        let mut parts = rest.split('/');
        let (group, resource) = (parts.next()?, parts.next()?);
        let group = if group == "core" { "" } else { group };
        let full = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let any = format!("*.{group}");
        let matches = |r: &&Rule| r.resources.iter().any(|w| *w == full || *w == any || w == "*.*");
        self.rules.iter().find(matches).map(|rule| (rule, full))
    }
}

fn check_resource(path: &str, name: &str) -> Result<(), String> {
    if name == "*" {
        return Err(format!(
            "{path}.resources: Invalid value: \"*\": use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
        ));
    }
    if name.contains("events.k8s.io") {
        return Err(format!(
            "{path}.resources: Invalid value: {name:?}: 'events.*' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
        ));
    }
    if name.starts_with("*.") || !name.contains('*') {
        return Ok(());
    }
    Err(format!("{path}.resources: Invalid value: {name:?}: wildcard is only allowed in the beginning"))
}

impl ProviderFile {
    fn open(self, path: &str) -> Result<Vec<Provider>, String> {
        let given = [
            self.aesgcm.is_some(),
            self.aescbc.is_some(),
            self.secretbox.is_some(),
            self.identity.is_some(),
            self.kms.is_some(),
        ];
        match given.iter().filter(|g| **g).count() {
            1 => {}
            0 => {
                return Err(format!(
                    "{path}: Invalid value: provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"
                ));
            }
            _ => {
                return Err(format!(
                    "{path}: Invalid value: more than one provider specified in a single element, should split into different list elements"
                ));
            }
        }
        type Make = fn(&str, &[u8]) -> Result<Provider, CipherError>;
        for (name, keys, make) in [
            ("aesgcm", self.aesgcm, Provider::aes_gcm as Make),
            ("aescbc", self.aescbc, Provider::aes_cbc),
            ("secretbox", self.secretbox, Provider::secretbox),
        ] {
            let Some(keys) = keys else { continue };
            if keys.keys.is_empty() {
                return Err(format!("{path}.{name}.keys: Required value: must provide at least one key"));
            }
            let open = |(n, key): (usize, KeyFile)| {
                let path = format!("{path}.{name}.keys[{n}].secret");
                if key.name.is_empty() {
                    return Err(format!("{path}: Required value: key name is required"));
                }
                let secret = BASE64.decode(key.secret.trim()).map_err(|_| {
                    format!("{path}: Invalid value: \"REDACTED\": secret must be base64 encoded")
                })?;
                make(&key.name, &secret).map_err(|e| format!("{path}: Invalid value: \"REDACTED\": {e}"))
            };
            return keys.keys.into_iter().enumerate().map(open).collect();
        }
        match self.kms {
            Some(kms) => Ok(vec![Provider::kms(kms.open(path)?)]),
            None => Ok(vec![Provider::identity()]),
        }
    }
}

impl KmsFile {
    fn open(self, path: &str) -> Result<Kms, String> {
        if self.api_version != "v2" {
            return Err(format!(
                "{path}.kms.apiVersion: Invalid value: {:?}: only v2 is supported",
                self.api_version
            ));
        }
        let Some(socket) = self.endpoint.strip_prefix("unix://") else {
            return Err(format!(
                "{path}.kms.endpoint: Invalid value: {:?}: unsupported scheme, must be unix",
                self.endpoint
            ));
        };
        let seconds = match &self.timeout {
            None => MAX_KMS_SECONDS,
            Some(text) => {
                text.strip_suffix('s').and_then(|t| t.parse().ok()).filter(|s| *s > 0).ok_or_else(|| {
                    format!("{path}.kms.timeout: Invalid value: {text:?}: should be a positive value")
                })?
            }
        };
        Ok(Kms::new(self.name, PathBuf::from(socket), Duration::from_secs(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(resources: &str) -> Result<EncryptionConfig, String> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{resources}"
        );
        EncryptionConfig::parse(text.as_bytes())
    }

    #[test]
    fn the_first_rule_for_a_resource_counts() {
        let key = BASE64.encode([7; 32]);
        let config = config(&format!(
            "- resources: [secrets, deployments.apps]\n  providers: [{{secretbox: {{keys: [{{name: a, secret: {key}}}]}}}}, {{identity: {{}}}}]\n\
             - resources: ['*.apps']\n  providers: [{{identity: {{}}}}]\n\
             - resources: ['*.']\n  providers: [{{aescbc: {{keys: [{{name: b, secret: {key}}}]}}}}]\n"
        ))
        .unwrap();
        let writer = |key: &str| config.rule(key.as_bytes()).map(|(r, _)| r.providers[0].name);
        assert_eq!(writer("/registry/core/secrets/default/s"), Some("secretbox"));
        assert_eq!(writer("/registry/apps/deployments/default/d"), Some("secretbox"));
        assert_eq!(writer("/registry/apps/statefulsets/default/d"), Some("identity"));
        assert_eq!(writer("/registry/core/configmaps/default/c"), Some("aescbc"));
        assert_eq!(writer("/registry/batch/jobs/default/j"), None);
        assert_eq!(writer("/other"), None);
    }

    #[test]
    fn wrong_configurations_are_refused_and_keep_secrets() {
        for (resources, why) in [
            ("- resources: []\n  providers: [{identity: {}}]", "at least one resource"),
            ("- resources: [secrets]\n  providers: []", "at least one provider"),
            ("- resources: [secrets]\n  providers: [{}]", "does not contain any"),
            ("- resources: ['*']\n  providers: [{identity: {}}]", "use '*.'"),
            (
                "- resources: [secrets]\n  providers: [{aesgcm: {keys: [{name: a, secret: c2hvcnQ=}]}}]",
                "got 5, expected one of",
            ),
            (
                "- resources: [secrets]\n  providers: [{aesgcm: {keys: [{name: a, secret: '!'}]}}]",
                "must be base64",
            ),
            (
                "- resources: [secrets]\n  providers: [{kms: {apiVersion: v2, name: k, endpoint: tcp://x}}]",
                "must be unix",
            ),
        ] {
            let error = config(resources).err().unwrap();
            assert!(error.contains(why) && !error.contains("c2hvcnQ="), "{error}");
        }
    }
}
