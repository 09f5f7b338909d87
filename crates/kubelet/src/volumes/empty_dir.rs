//! `emptyDir` volumes: an empty folder that lives as long as the pod, on disk or in memory.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use knarr_apimachinery::quantity::Quantity;

use super::error::{Error, Result};
use super::plugin::{Ready, SetUp, VolumePlugin, blocking};
use super::{mounts, ownership};

const MODE: u32 = 0o777;

pub struct EmptyDirPlugin;

#[async_trait]
impl VolumePlugin for EmptyDirPlugin {
    fn name(&self) -> &'static str {
        "empty-dir"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let source = task.volume.empty_dir.clone().unwrap_or_default();
        let size = match source.medium.as_deref().unwrap_or("") {
            "" => None,
            "Memory" => {
                let limit = source.size_limit.as_ref().and_then(|q| Quantity::try_from(q).ok());
                let node = task.host.options.allocatable.get("memory");
                let node = node.and_then(|q| Quantity::try_from(q).ok());
                Some(memory_size(node.as_ref(), pod_memory_limit(task.pod).as_ref(), limit.as_ref()))
            }
            other => return Err(Error::failed(format!("unknown storage medium {other:?}"))),
        };
        let (dir, group, lazily) = (task.dir.clone(), task.fs_group(), task.change_on_root_mismatch());
        blocking(move || {
            prepare_dir(&dir, MODE)?;
            if let Some(size) = size {
                prepare_tmpfs(&dir, size)?;
            }
            match group {
                Some(group) => ownership::set_ownership(&dir, group, false, lazily),
                None => Ok(()),
            }
        })
        .await?;
        Ok(Ready::at(&task.dir))
    }
}

/// Creates the folder with this mode; an existing folder keeps its mode, which fsGroup may have extended.
pub fn prepare_dir(dir: &Path, mode: u32) -> Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
    }
    match fs::create_dir(dir) {
        // The mode must not depend on the umask.
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(mode))
            .map_err(Error::file("change the mode of", dir)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::file("create", dir)(error)),
    }
}

/// Mounts a tmpfs on the folder, unless one is mounted there.
pub fn prepare_tmpfs(dir: &Path, size_bytes: Option<u64>) -> Result<()> {
    match mounts::mounted_at(dir)?.as_deref() {
        Some("tmpfs") => Ok(()),
        _ => mounts::mount_tmpfs(dir, size_bytes),
    }
}

/// Returns the smallest of the node's memory, the pod's memory limit and the volume's size limit, in bytes.
fn memory_size(node: Option<&Quantity>, pod: Option<&Quantity>, volume: Option<&Quantity>) -> Option<u64> {
    let sizes = [node, pod, volume].into_iter().flatten().map(Quantity::value);
    sizes.filter(|size| *size > 0).min().and_then(|size| u64::try_from(size).ok())
}

/// Returns the memory limit of the pod, if all of its containers have one.
fn pod_memory_limit(pod: &Pod) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    let limit_in = |limits: &Option<std::collections::BTreeMap<String, _>>| {
        limits.as_ref().and_then(|l| l.get("memory")).and_then(|q| Quantity::try_from(q).ok())
    };
    if let Some(limit) = spec.resources.as_ref().and_then(|r| limit_in(&r.limits)) {
        return Some(limit);
    }
    let limit_of =
        |c: &Container| c.resources.as_ref().and_then(|r| limit_in(&r.limits)).filter(|q| !q.is_zero());
    let always = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let mut total = Quantity::default();
    for container in spec.containers.iter().chain(init.iter().filter(always)) {
        total.add(&limit_of(container)?);
    }
    for container in init.iter().filter(|c| !always(c)) {
        total = total.max(limit_of(container)?);
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_size_counts() {
        let q = |text: &str| Quantity::parse(text).ok();
        let table = [
            (q("1Gi"), None, None, Some(1 << 30)),
            (q("1Gi"), q("512Mi"), None, Some(512 << 20)),
            (q("1Gi"), q("512Mi"), q("64Mi"), Some(64 << 20)),
            (q("1Gi"), None, q("2Gi"), Some(1 << 30)),
            (q("1Gi"), None, q("0"), Some(1 << 30)),
            (None, None, None, None),
        ];
        for (node, pod, volume, want) in table {
            assert_eq!(memory_size(node.as_ref(), pod.as_ref(), volume.as_ref()), want);
        }
    }
}
