//! The record of a pod's allocated resources, in memory and on disk.
//!
//! ```text
//! DIR/pods/<uid>/allocated_resources
//! ```
//!
//! The record is in the pod's folder: it survives a restart of the server, and is removed with the pod. The format
//! is that of one pod in upstream's checkpoint of all pods (`allocated_pods_state`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::{Deserialize, Serialize};

use crate::config::PodDirs;
use crate::folders;
use crate::pod;
use crate::resources::{Amounts, amounts};

const FILE: &str = "allocated_resources";
/// A record has some hundred bytes per container; a larger file was not written by the kubelet.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot parse {}: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    move |source| RecordError::File { what, path: path.to_owned(), source }
}

/// The requests and limits of a pod and of its containers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Allocated {
    #[serde(default)]
    container_resources: BTreeMap<String, ResourceRequirements>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod_level_resources: Option<ResourceRequirements>,
}

/// The content of a pod's record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Record {
    #[serde(flatten)]
    pub allocated: Allocated,
    /// The ids of containers that were asked to stop for the allocation, or are about to be: each is replaced by
    /// another one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaced: BTreeSet<String>,
}

impl Allocated {
    pub fn of(pod: &Pod) -> Self {
        let containers = pod::init_containers(pod).iter().chain(&pod::spec(pod).containers);
        Self {
            container_resources: containers
                .map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default()))
                .collect(),
            pod_level_resources: pod::spec(pod).resources.clone(),
        }
    }

    /// Returns the allocated resources in the pod's status, and those of its spec where the status has none.
    pub fn of_status(pod: &Pod) -> Self {
        let mut allocated = Self::of(pod);
        let Some(status) = &pod.status else { return allocated };
        let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        for container in containers {
            let Some(given) = &container.allocated_resources else { continue };
            if let Some(resources) = allocated.container_resources.get_mut(&container.name) {
                resources.requests = Some(given.clone());
                if let Some(has) = &container.resources {
                    resources.limits.clone_from(&has.limits);
                }
            }
        }
        allocated
    }

    /// Returns whether the pod's spec has other resources than these.
    pub fn differs(&self, pod: &Pod) -> bool {
        let mut containers = pod::init_containers(pod).iter().chain(&pod::spec(pod).containers);
        let other = |c: &Container| {
            let given = self.container_resources.get(&c.name);
            given.is_some_and(|given| !same(Some(given), c.resources.as_ref()))
        };
        containers.any(other) || !same(self.pod_level_resources.as_ref(), pod::spec(pod).resources.as_ref())
    }

    /// Returns the pod with these resources in its spec.
    pub fn applied_to(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        let Some(spec) = &mut pod.spec else { return pod };
        let given = |c: &mut Container| {
            if let Some(resources) = self.container_resources.get(&c.name) {
                c.resources = Some(resources.clone());
            }
        };
        spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(given);
        spec.resources.clone_from(&self.pod_level_resources);
        pod
    }
}

/// Returns whether both have the same amounts, in whatever units.
fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    let of = |r: Option<&ResourceRequirements>| -> (Amounts, Amounts) {
        (amounts(r.and_then(|r| r.requests.as_ref())), amounts(r.and_then(|r| r.limits.as_ref())))
    };
    of(a) == of(b)
}

/// Reads the record of a pod; `None` if there is none. Blocks.
pub fn read(dirs: &PodDirs, uid: &str) -> Result<Option<Record>, RecordError> {
    let path = dirs.pod_dir(uid).join(FILE);
    let opened = match fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
        Ok(opened) => opened,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(file("open", &path)(error)),
    };
    let mut text = Vec::new();
    opened.take(MAX_BYTES).read_to_end(&mut text).map_err(file("read", &path))?;
    serde_json::from_slice(&text).map(Some).map_err(|source| RecordError::Parse { path, source })
}

/// Writes the record under another name and renames it, so that a crash leaves no partial file. `durable` waits
/// for the disk; it is needed for records that the API does not have: without a record, the pod's status supplies
/// the allocation. Blocks.
pub fn write(dirs: &PodDirs, uid: &str, record: &Record, durable: bool) -> Result<(), RecordError> {
    let folder = dirs.pod_dir(uid);
    folders::make(&folder).map_err(file("create", &folder))?;
    let (path, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
    let text =
        serde_json::to_vec(record).map_err(|source| RecordError::Parse { path: path.clone(), source })?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut opened = options.open(&new).map_err(file("create", &new))?;
    opened.write_all(&text).map_err(file("write", &new))?;
    if durable {
        opened.sync_all().map_err(file("sync", &new))?;
    }
    fs::rename(&new, &path).map_err(file("create", &path))?;
    if durable {
        let opened = fs::File::open(&folder).map_err(file("open", &folder))?;
        opened.sync_all().map_err(file("sync", &folder))?;
    }
    Ok(())
}
