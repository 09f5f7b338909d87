//! WebhookAdmissionConfiguration: the API server's credentials for webhooks, by host, and the directory of webhooks
//! from files.

use std::path::PathBuf;
use std::sync::Arc;

use knarr_apimachinery::field::{Error, Path};
use knarr_client::kubeconfig::Users;
use serde::Deserialize;
use serde_json::Value;

use super::manifests_folder;
use super::strict::{self, Shape};
use crate::AdmissionConfig;

const KINDS: &[(&str, &str)] = &[("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration")];
const SHAPE: Shape = Shape::Object(&[("kubeConfigFile", Shape::Any), ("staticManifestsDir", Shape::Any)]);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    kube_config_file: PathBuf,
    #[serde(default)]
    static_manifests_dir: String,
}

pub fn load_mutating(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    (settings.mutating_webhook_users, settings.manifests.mutating_webhooks) = read(value)?;
    Ok(())
}

pub fn load_validating(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    (settings.validating_webhook_users, settings.manifests.validating_webhooks) = read(value)?;
    Ok(())
}

fn read(value: Option<&Value>) -> Result<(Option<Arc<Users>>, Option<PathBuf>), String> {
    let Some(value) = value else { return Ok((None, None)) };
    let file: File = strict::decode(value, KINDS, &SHAPE)?;
    let path = file.kube_config_file;
    if !path.as_os_str().is_empty() && !path.is_absolute() {
        let shown = path.display().to_string();
        let error = Error::invalid(&Path::new("kubeConfigFile"), shown, "must be an absolute file path");
        return Err(error.to_string());
    }
    let manifests = manifests_folder(&file.static_manifests_dir)?;
    if path.as_os_str().is_empty() {
        return Ok((None, manifests));
    }
    let users = Users::load(&path).map_err(|e| e.to_string())?;
    Ok((Some(Arc::new(users)), manifests))
}
