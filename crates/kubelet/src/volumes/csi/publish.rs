//! Publishes a volume to a pod: the last step for persistent and inline volumes.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use super::super::error::{Error, Result};
use super::super::ownership;
use super::super::plugin::{SetUp, blocking};
use super::Csi;
use super::identity::VolumeId;
use super::record::{self, Record};
use super::request::{Form, Policy, pod_info};
use crate::csi::messages::NodePublishVolumeRequest;
use crate::csi::{Capabilities, DriverClient, is_final};

const DIR_MODE: u32 = 0o750;
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The parameters of a publication.
pub(super) struct Publication {
    pub volume: VolumeId,
    /// The name of the PersistentVolume, or of the inline volume in the pod.
    pub spec_name: String,
    pub ephemeral: bool,
    pub read_only: bool,
    pub form: Form,
    pub attributes: BTreeMap<String, String>,
    pub publish_context: BTreeMap<String, String>,
    /// The namespace and name of the secret.
    pub secret: Option<(String, String)>,
    pub staged: Option<PathBuf>,
}

/// A registered driver, with its capabilities and policy.
pub(super) struct Driver<'a> {
    pub client: &'a DriverClient,
    pub can: &'a Capabilities,
    pub policy: &'a Policy,
}

/// Creates a folder and its parents.
pub(super) fn make_dir(path: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
        .map_err(Error::file("create", path))
}

impl Csi {
    /// Publishes the volume below the pod's folder; returns the path. Error texts follow upstream's prefix
    /// `MountVolume.SetUp failed for volume "x" : `.
    pub(super) async fn publish(
        &self,
        task: &SetUp<'_>,
        driver: &Driver<'_>,
        what: Publication,
    ) -> Result<PathBuf> {
        let folder =
            self.dirs.volume_dir(task.pod.metadata.uid.as_deref().unwrap_or(""), "csi", &what.spec_name);
        let target = folder.join("mount");
        let secrets = match &what.secret {
            None => BTreeMap::new(),
            Some((namespace, name)) => self.secret(namespace, name).await.map_err(|e| {
                Error::failed(format!("fetching NodePublishSecretRef {namespace}/{name} failed: {e}"))
            })?,
        };
        let request = self.publish_request(task, driver, &what, secrets, &target).await?;
        let record = Record {
            volume: what.volume.clone(),
            spec_name: Some(what.spec_name.clone()),
            node_name: self.node_name.clone(),
            ephemeral: what.ephemeral,
        };
        blocking(move || {
            make_dir(&folder)?;
            record.save(&folder)
        })
        .await?;
        if let Err(error) = driver.client.publish(&request).await {
            // If the pod has the volume already, it keeps it.
            if is_final(&error) && !task.again {
                let target = target.clone();
                if let Err(error) = blocking(move || record::remove(&target)).await {
                    tracing::debug!(%error, "cannot clean up after a failed publish");
                }
            }
            return Err(Error::failed(error.to_string()));
        }
        let policy = &driver.policy.fs_group_policy;
        let ours =
            !driver.can.mount_group() && what.form.applies_fs_group(policy, what.read_only, what.ephemeral);
        if let Some(group) = task.fs_group().filter(|_| ours) {
            let (path, lazily) = (target.clone(), task.change_on_root_mismatch());
            let applied = blocking(move || ownership::set_ownership(&path, group, false, lazily)).await;
            let handle = &what.volume.handle;
            applied.map_err(|e| Error::failed(format!("applyFSGroup failed for vol {handle}: {e}")))?;
        }
        Ok(target)
    }

    async fn publish_request(
        &self,
        task: &SetUp<'_>,
        driver: &Driver<'_>,
        what: &Publication,
        mut secrets: BTreeMap<String, String>,
        target: &Path,
    ) -> Result<NodePublishVolumeRequest> {
        let mut attributes = what.attributes.clone();
        if driver.policy.pod_info {
            attributes.extend(pod_info(task.pod, what.ephemeral));
        }
        if let Some(tokens) = tokens(task, driver.policy).await? {
            driver.policy.place_of_tokens(&mut secrets, &mut attributes).insert(TOKENS.to_owned(), tokens);
        }
        let group = task.fs_group().filter(|_| driver.can.mount_group());
        Ok(NodePublishVolumeRequest {
            volume_id: what.volume.handle.clone(),
            publish_context: what.publish_context.clone(),
            staging_target_path: what.staged.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
            target_path: target.display().to_string(),
            volume_capability: Some(what.form.capability(driver.can, group)),
            readonly: what.read_only,
            secrets,
            volume_context: attributes,
        })
    }

    /// Returns the data of a secret as text.
    pub(super) async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        let secret: Secret = self.client.get(namespace, name).await.map_err(|e| {
            format!(
                "kubernetes.io/csi: failed to find the secret {name} in the namespace {namespace} with error: {e}"
            )
        })?;
        let data = secret.data.unwrap_or_default();
        Ok(data.into_iter().map(|(key, v)| (key, String::from_utf8_lossy(&v.0).into_owned())).collect())
    }
}

/// Returns the service account tokens that the driver requests, as JSON by audience.
async fn tokens(task: &SetUp<'_>, policy: &Policy) -> Result<Option<String>> {
    if policy.token_requests.is_empty() {
        return Ok(None);
    }
    let mut all = serde_json::Map::new();
    for (audience, seconds) in &policy.token_requests {
        let wanted = Some(audience.as_str()).filter(|a| !a.is_empty());
        let token = task.host.tokens.get(task.pod, wanted, *seconds).await.map_err(|e| {
            Error::failed(format!(
                "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {e}"
            ))
        })?;
        let status = json!({"token": token.token, "expirationTimestamp": token.expires});
        all.insert(audience.clone(), status);
    }
    Ok(Some(serde_json::Value::Object(all).to_string()))
}
