//! Writes a payload into the folder of a pod's volume: what configMap, secret, downwardAPI and projected volumes
//! share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::beneath::Folder;
use super::error::{Error, Result};
use super::payload::{self, Payload};
use super::plugin::{Ready, SetUp, blocking};
use super::{atomic_writer, empty_dir, ownership};
use crate::volume_manager::MountedVolume;

/// Where the files of a volume are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// A tmpfs, so that secrets are never written to disk.
    Memory,
}

/// Writes the payload, unless the volume already holds it.
pub async fn write(
    task: &SetUp<'_>,
    payload: Payload,
    medium: Medium,
    renew_after: Option<Duration>,
) -> Result<Ready> {
    let payload = payload::validated(payload)?;
    let fingerprint = payload::fingerprint(&payload);
    let volume = MountedVolume { host_path: task.dir.clone(), read_only: true, image: None };
    let ready = Ready { volume, written: Some(fingerprint), renew_after, meter: None };
    if task.written == Some(fingerprint) {
        return Ok(ready);
    }
    let nested = nested_mount_points(task.pod, &task.volume.name);
    let (dir, group, now) = (task.dir.clone(), task.fs_group(), task.host.clock.now());
    blocking(move || write_now(&dir, &payload, medium, &nested, group, now)).await?;
    Ok(ready)
}

fn write_now(
    dir: &Path,
    payload: &Payload,
    medium: Medium,
    nested: &[PathBuf],
    group: Option<u32>,
    now: Timestamp,
) -> Result<()> {
    empty_dir::prepare_dir(dir, 0o777)?;
    if medium == Medium::Memory {
        // The tmpfs is mounted once, with room for all later payloads.
        empty_dir::prepare_tmpfs(dir, Some(payload::TMPFS_BYTES))?;
    }
    let volume = Folder::open(dir).map_err(Error::file("open", dir))?;
    for path in nested {
        let made = volume.make_folders_by_links(path);
        made.map_err(Error::file("create", &volume.path_of(path)))?;
    }
    atomic_writer::write(dir, payload, now, |dir| match group {
        Some(group) => ownership::set_ownership(dir, group, true, false),
        None => Ok(()),
    })?;
    Ok(())
}

/// Returns the folders inside this volume on which other volumes of the same container are mounted. The container
/// runtime cannot create them, as it sees this volume read-only.
fn nested_mount_points(pod: &Pod, volume: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Some(spec) = &pod.spec else { return found };
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        for outer in mounts.iter().filter(|m| m.name == volume && m.sub_path.is_none()) {
            for inner in mounts {
                let Ok(path) = Path::new(&inner.mount_path).strip_prefix(&outer.mount_path) else { continue };
                let plain = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
                if inner.name != volume && plain && path.components().next().is_some() {
                    found.push(path.to_owned());
                }
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec, VolumeMount};

    #[test]
    fn mount_points_are_made_inside_the_volume() {
        let root = std::env::temp_dir().join(format!("knarr-content-{:016x}", fastrand::u64(..)));
        let (volume, outside) = (root.join("volume"), root.join("outside"));
        std::fs::create_dir_all(volume.join("real")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("absolute")).unwrap();
        std::os::unix::fs::symlink("../outside", volume.join("relative")).unwrap();
        std::os::unix::fs::symlink("real", volume.join("inside")).unwrap();
        let write = |nested: &str| {
            let nested = [PathBuf::from(nested)];
            write_now(&volume, &Payload::new(), Medium::Disk, &nested, None, Timestamp::UNIX_EPOCH)
        };
        for nested in ["a/b", "inside/c/d", "a/b"] {
            write(nested).unwrap();
        }
        let made = [volume.join("a/b"), volume.join("real/c/d")].map(|path| path.is_dir());
        let refused = ["absolute/made", "relative/made", "relative"].map(|nested| write(nested).is_err());
        let left = std::fs::read_dir(&outside).unwrap().count();
        std::fs::remove_dir_all(root).unwrap();
        assert_eq!((made, refused, left), ([true; 2], [true; 3], 0));
    }

    #[test]
    fn mounts_inside_a_volume() {
        let mount = |name: &str, path: &str| VolumeMount {
            name: name.into(),
            mount_path: path.into(),
            ..VolumeMount::default()
        };
        let container = Container {
            volume_mounts: Some(vec![
                mount("conf", "/etc/app"),
                mount("data", "/etc/app/data"),
                mount("other", "/etc/application"),
                mount("odd", "/etc/app/../x"),
            ]),
            ..Container::default()
        };
        let pod = Pod {
            spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            ..Pod::default()
        };
        assert_eq!(nested_mount_points(&pod, "conf"), [PathBuf::from("data")]);
        assert!(nested_mount_points(&pod, "data").is_empty());
    }
}
