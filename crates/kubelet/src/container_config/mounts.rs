//! The mounts of a container: its volumes, /etc/hosts, the termination message file.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use knarr_api::kind::Kind;

use super::dns::hosts_file;
use super::expansion::expand;
use crate::config::{Config, PodDirs};
use crate::runtime::{ImageMount, Mount, Propagation};
use crate::volume_manager::MountedVolumes;
use crate::volumes::subpath::{self, SubPath};

const HOSTS: &str = "/etc/hosts";
const MAX_HOSTS_BYTES: u64 = 4 << 20;

/// The inputs of a container's mounts.
pub struct Given<'a> {
    pub volumes: &'a MountedVolumes,
    /// Whether the runtime can make mounts read-only recursively.
    pub recursive_read_only: bool,
}

/// Prepares the container's mounts on disk, and returns them. Blocks. `value_of` returns the values of variables
/// in `subPathExpr`.
pub fn mounts(
    config: &Config,
    pod: &Pod,
    container: &Container,
    restart_count: u32,
    pod_ips: &[String],
    given: &Given<'_>,
    value_of: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Mount>, String> {
    let dirs = config.dirs();
    let wanted = container.volume_mounts.as_deref().unwrap_or_default();
    let mut mounts = Vec::with_capacity(wanted.len() + 2);
    for (at, mount) in wanted.iter().enumerate() {
        mounts.push(volume_mount(&dirs, pod, container, at, mount, given, &value_of)?);
    }
    if !wanted.iter().any(|m| m.mount_path == HOSTS)
        && (!pod_ips.is_empty() || crate::pod::is_host_network(pod))
    {
        let path = dirs.pod_dir(pod.uid()).join("etc-hosts");
        write_hosts(&path, pod, pod_ips, &config.cluster_domain)
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        mounts.push(Mount { container_path: HOSTS.to_owned(), host_path: path, ..Mount::default() });
    }
    if let Some(container_path) = container.termination_message_path.clone().filter(|p| !p.is_empty()) {
        let folder = dirs.container_dir(pod.uid(), &container.name);
        let path = folder.join(restart_count.to_string());
        make_message_file(&folder, &path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        mounts.push(Mount { container_path, host_path: path, ..Mount::default() });
    }
    Ok(mounts)
}

/// Returns whether a mount is recursively read-only, given whether the runtime supports that (`can`).
///
/// Source: `resolveRecursiveReadOnly` of `k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go`.
pub fn recursive_read_only(mount: &VolumeMount, can: bool) -> Result<bool, String> {
    match mount.recursive_read_only.as_deref() {
        Some("Enabled") if !can => Err(format!(
            "volume {:?} requested recursive read-only mode, but it is not supported by the runtime",
            mount.name
        )),
        Some("Enabled" | "IfPossible") => Ok(can),
        _ => Ok(false),
    }
}

fn volume_mount(
    dirs: &PodDirs,
    pod: &Pod,
    container: &Container,
    at: usize,
    mount: &VolumeMount,
    given: &Given<'_>,
    value_of: &impl Fn(&str) -> Option<String>,
) -> Result<Mount, String> {
    let volume = given.volumes.get(&mount.name).ok_or_else(|| {
        format!("cannot find volume {:?} to mount into container {:?}", mount.name, container.name)
    })?;
    let mut host_path = volume.host_path.clone();
    let sub_path = match mount.sub_path_expr.as_deref().filter(|s| !s.is_empty()) {
        Some(expression) => Some(resolved_expression(expression, value_of)?),
        None => mount.sub_path.clone().filter(|s| !s.is_empty()),
    };
    let image = volume.image.clone();
    let image = image.map(|image| ImageMount { image, sub_path: sub_path.clone().unwrap_or_default() });
    if let Some(sub_path) = sub_path.filter(|_| image.is_none()) {
        let place =
            SubPath { pod_uid: pod.uid(), volume: &mount.name, container: &container.name, index: at };
        host_path = subpath::prepare(dirs, place, &host_path, &sub_path).map_err(|e| e.to_string())?;
    }
    let read_only = mount.read_only == Some(true) || volume.read_only;
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    Ok(Mount {
        container_path,
        host_path,
        image,
        read_only,
        recursive_read_only: read_only && recursive_read_only(mount, given.recursive_read_only)?,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            _ => Propagation::Private,
        },
    })
}

/// Expands a `subPathExpr`. An unknown variable is an error, as an empty path would be the volume's root.
fn resolved_expression(
    expression: &str,
    value_of: &impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let missing = std::cell::Cell::new(false);
    let text = expand(expression, |name| {
        let value = value_of(name).filter(|v| !v.is_empty());
        missing.set(missing.get() || value.is_none());
        value
    })?;
    if missing.get() {
        return Err(format!("missing value for {expression:?}"));
    }
    Ok(text)
}

fn write_hosts(path: &Path, pod: &Pod, pod_ips: &[String], cluster_domain: &str) -> io::Result<()> {
    let node = match crate::pod::is_host_network(pod) {
        true => {
            let mut text = String::new();
            fs::File::open(HOSTS)?.take(MAX_HOSTS_BYTES).read_to_string(&mut text)?;
            text
        }
        false => String::new(),
    };
    let content = hosts_file(pod, pod_ips, cluster_domain, &node);
    // The file is written in place: running containers have this very file mounted.
    if fs::File::open(path).is_ok_and(|now| holds(now, &content)) {
        return Ok(());
    }
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(content.as_bytes())
}

/// Returns whether the file has this content. Containers may have made the file very long, so no more is read than
/// needed.
fn holds(now: impl Read, content: &str) -> bool {
    let mut found = Vec::with_capacity(content.len() + 1);
    now.take(content.len() as u64 + 1).read_to_end(&mut found).is_ok() && found == content.as_bytes()
}

fn make_message_file(folder: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    // Any user in the container may write the file, whatever the kubelet's umask.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file without an end, which counts the bytes that were read.
    struct Endless(usize);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 += buffer.len();
            assert!(self.0 < 1 << 20, "read on");
            buffer.fill(b'x');
            Ok(buffer.len())
        }
    }

    #[test]
    fn no_more_is_read_of_a_containers_file_than_it_should_have() {
        assert!(holds("127.0.0.1 localhost\n".as_bytes(), "127.0.0.1 localhost\n"));
        for other in ["", "127.0.0.1 localhost", "127.0.0.1 localhost\n\n"] {
            assert!(!holds(other.as_bytes(), "127.0.0.1 localhost\n"), "{other:?}");
        }
        assert!(!holds(Endless(0), &"x".repeat(1000)));
    }
}
