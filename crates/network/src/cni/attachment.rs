//! The record of a sandbox that plugins connected, one file each: disconnecting needs the same input again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::CniError;

/// A pod, and one of its sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub sandbox_id: String,
}

impl PodRef {
    /// Returns the value of `CNI_ARGS`.
    pub fn arguments(&self) -> String {
        let Self { namespace, name, uid, sandbox_id } = self;
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};\
             K8S_POD_INFRA_CONTAINER_ID={sandbox_id};K8S_POD_UID={uid}"
        )
    }
}

/// A port of the node that is forwarded to one of the pod, in the form of the capability `portMappings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    /// One of `tcp`, `udp` and `sctp`.
    pub protocol: String,
    #[serde(rename = "hostIP", default, skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

/// A connected sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attachment {
    /// The configuration that the sandbox was connected with.
    pub list: String,
    pub pod: PodRef,
    pub netns: PathBuf,
    pub ports: Vec<PortMapping>,
    /// The last plugin's result; `None` until all of them have run.
    pub result: Option<Value>,
}

impl Attachment {
    /// Reads the record of a sandbox; `None` if there is none.
    pub fn read(folder: &Path, sandbox_id: &str) -> Result<Option<Self>, CniError> {
        let path = file(folder, sandbox_id);
        let state = |source| CniError::State { path: path.clone(), source };
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| state(e.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(state(error)),
        }
    }

    /// Writes the record atomically, also if the machine stops meanwhile.
    pub fn write(&self, folder: &Path) -> Result<(), CniError> {
        let path = file(folder, &self.pod.sandbox_id);
        let unfinished = path.with_extension("new");
        let write = || {
            let text = serde_json::to_vec(self)?;
            std::fs::write(&unfinished, text)?;
            std::fs::File::open(&unfinished)?.sync_all()?;
            std::fs::rename(&unfinished, &path)
        };
        write().map_err(|source| CniError::State { path: path.clone(), source })
    }

    /// Removes the record of a sandbox; succeeds if there is none.
    pub fn remove(folder: &Path, sandbox_id: &str) -> Result<(), CniError> {
        let path = file(folder, sandbox_id);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(CniError::State { path, source: error })
            }
            _ => Ok(()),
        }
    }

    /// Returns the ids of all recorded sandboxes.
    pub fn all(folder: &Path) -> Result<Vec<String>, CniError> {
        let state = |source| CniError::State { path: folder.to_owned(), source };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(state)? {
            let name = entry.map_err(state)?.file_name();
            found.extend(name.to_string_lossy().strip_suffix(".json").map(str::to_owned));
        }
        found.sort();
        Ok(found)
    }
}

fn file(folder: &Path, sandbox_id: &str) -> PathBuf {
    folder.join(format!("{sandbox_id}.json"))
}
