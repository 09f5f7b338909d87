//! `--admission-control-config-file`: an AdmissionConfiguration with the configuration of each plugin.
//!
//! Source: `k8s.io/apiserver/pkg/admission/config.go`. Upstream ignores the name of an unknown plugin; here it is
//! refused, because a misspelt name would silently disable the policy that the operator wrote.

mod event_rate_limit;
mod pod_node_selector;
mod pod_security;
mod policies;
mod resource_quota;
mod strict;
mod webhooks;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::AdmissionConfig;
use super::chain::{self, ChainError};
use strict::Shape;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error(
        "failed to read plugin config: unable to read admission control configuration from {path:?} [{source}]"
    )]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to read plugin config: {why} (in {path:?})")]
    File { path: PathBuf, why: String },
    #[error("couldn't init admission plugin {name:?}: {why}")]
    Plugin { name: String, why: String },
    #[error("unknown admission plugin: {0}")]
    UnknownPlugin(String),
    #[error(transparent)]
    Names(#[from] ChainError),
}

const KINDS: &[(&str, &str)] = &[
    ("apiserver.config.k8s.io/v1", "AdmissionConfiguration"),
    ("apiserver.k8s.io/v1alpha1", "AdmissionConfiguration"),
];

const SHAPE: Shape = Shape::Object(&[(
    "plugins",
    Shape::List(&Shape::Object(&[("name", Shape::Any), ("path", Shape::Any), ("configuration", Shape::Any)])),
)]);

/// Plugins whose legacy configuration has no version: a file with that configuration alone is accepted as well.
const UNVERSIONED: [(&str, &str); 2] =
    [("imagePolicy", "ImagePolicyWebhook"), ("podNodeSelectorPluginConfig", "PodNodeSelector")];

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    plugins: Option<Vec<PluginFile>>,
}

#[derive(Deserialize)]
struct PluginFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    path: Option<PathBuf>,
    #[serde(default)]
    configuration: Option<Value>,
}

/// Reads one plugin's configuration into the settings; `None` if the file has no configuration for it.
type Load = fn(Option<&Value>, &mut AdmissionConfig) -> Result<(), String>;

/// The plugins that can be configured.
const LOADERS: &[(&str, Load)] = &[
    ("EventRateLimit", event_rate_limit::load),
    ("MutatingAdmissionPolicy", policies::load_mutating),
    ("MutatingAdmissionWebhook", webhooks::load_mutating),
    ("PodNodeSelector", pod_node_selector::load),
    ("PodSecurity", pod_security::load),
    ("ResourceQuota", resource_quota::load),
    ("ValidatingAdmissionPolicy", policies::load_validating),
    ("ValidatingAdmissionWebhook", webhooks::load_validating),
];

/// Parses a plugin's `staticManifestsDir`, which must be an absolute path of a directory.
fn manifests_folder(text: &str) -> Result<Option<PathBuf>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let invalid = |why: &str| {
        let path = knarr_apimachinery::field::Path::new("staticManifestsDir");
        Err(knarr_apimachinery::field::Error::invalid(&path, text, why).to_string())
    };
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return invalid("must be an absolute file path");
    }
    match std::fs::metadata(&path) {
        Err(error) => invalid(&format!("unable to read: {error}")),
        Ok(metadata) if !metadata.is_dir() => invalid("must be a directory"),
        Ok(_) => Ok(Some(path)),
    }
}

/// Returns the settings with the content of their configuration file applied.
pub fn read(mut settings: AdmissionConfig) -> Result<AdmissionConfig, ConfigurationError> {
    chain::check_names(&settings.enabled, &settings.disabled)?;
    let plugins = match &settings.control_config_file {
        Some(path) => file(path)?,
        None => Vec::new(),
    };
    for (name, _) in &plugins {
        match chain::is_enabled(name, &settings.enabled, &settings.disabled) {
            None => return Err(ConfigurationError::UnknownPlugin(name.clone())),
            Some(false) => tracing::warn!(plugin = name, "configured, but the admission plugin is disabled"),
            Some(true) if LOADERS.iter().all(|(known, _)| known != name) => {
                tracing::warn!(
                    plugin = name,
                    "the admission plugin has no configuration, the file's entry is ignored"
                );
            }
            Some(true) => {}
        }
    }
    for (name, load) in LOADERS {
        if chain::is_enabled(name, &settings.enabled, &settings.disabled) == Some(true) {
            let found = plugins.iter().find(|(n, _)| n == name).and_then(|(_, value)| value.as_ref());
            load(found, &mut settings)
                .map_err(|why| ConfigurationError::Plugin { name: (*name).to_owned(), why })?;
        }
    }
    Ok(settings)
}

/// Returns the plugins that the file names, each with its configuration if it has one.
fn file(path: &Path) -> Result<Vec<(String, Option<Value>)>, ConfigurationError> {
    let wrong = |why| ConfigurationError::File { path: path.to_owned(), why };
    let bytes =
        std::fs::read(path).map_err(|source| ConfigurationError::Read { path: path.to_owned(), source })?;
    let value = strict::parse(&bytes).map_err(wrong)?;
    let unversioned = UNVERSIONED.iter().any(|(field, _)| !value[*field].is_null());
    if unversioned && value["kind"].is_null() && value["apiVersion"].is_null() {
        let legacy = UNVERSIONED.iter().filter(|(field, _)| !value[*field].is_null());
        return Ok(legacy.map(|(_, name)| ((*name).to_owned(), Some(value.clone()))).collect());
    }
    let file: File = strict::decode(&value, KINDS, &SHAPE).map_err(wrong)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    file.plugins.unwrap_or_default().into_iter().map(|plugin| plugin.open(folder)).collect()
}

impl PluginFile {
    /// Returns the configuration. An inline configuration takes precedence over a path; a relative path starts at the
    /// file's directory.
    fn open(self, folder: &Path) -> Result<(String, Option<Value>), ConfigurationError> {
        if self.configuration.is_some() {
            return Ok((self.name, self.configuration));
        }
        let Some(path) = self.path.filter(|p| !p.as_os_str().is_empty()) else {
            return Ok((self.name, None));
        };
        let path = folder.join(path);
        let name = self.name;
        let wrong = |why: String| ConfigurationError::Plugin { name: name.clone(), why };
        let bytes = std::fs::read(&path).map_err(|e| {
            wrong(format!("Couldn't open admission plugin configuration {}: {e}", path.display()))
        })?;
        let value = strict::parse(&bytes).map_err(wrong)?;
        Ok((name, Some(value)))
    }
}

#[cfg(test)]
mod tests;
