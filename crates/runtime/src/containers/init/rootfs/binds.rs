//! Opens the sources of bind mounts as detached trees, while the host's file system is still accessible.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::super::Failure;
use crate::containers::mount_api::{self, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_RDONLY};
use crate::containers::spec::{Bind, Propagation};
use crate::containers::sys::path_cstring;

/// `ids` is the user namespace to which the files are id-mapped.
pub fn open(
    bind: &Bind,
    destination: &str,
    mountinfo: &str,
    ids: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Failure> {
    let source = &bind.source;
    let what = || format!("error mounting {source:?} to rootfs at {destination:?}");
    let path = path_cstring(source).map_err(Failure::step(what()))?;
    let tree = mount_api::open_tree(&path, true).map_err(Failure::step(what()))?;
    let propagation = match bind.propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::HostToContainer => {
            check_propagation(source, mountinfo, &["shared:", "master:"], "shared or slave")?;
            libc::MS_SLAVE
        }
        Propagation::Bidirectional => {
            check_propagation(source, mountinfo, &["shared:"], "shared")?;
            libc::MS_SHARED
        }
    };
    mount_api::set_attributes(tree.as_fd(), 0, propagation, true).map_err(Failure::step(what()))?;
    if let Some(namespace) = ids.filter(|_| !bind.has_outside_ids) {
        map_ids(&tree, source, namespace)?;
    }
    if bind.read_only {
        let recursive = bind.recursive_read_only;
        mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, recursive)
            .map_err(Failure::step(what()))?;
    }
    if bind.no_exec {
        mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_NOEXEC, 0, false)
            .map_err(Failure::step(what()))?;
    }
    Ok(tree)
}

/// Id-maps a tree to the user namespace; the error has runc's wording.
pub fn map_ids(tree: &OwnedFd, source: &Path, namespace: BorrowedFd<'_>) -> Result<(), Failure> {
    mount_api::map_ids(tree.as_fd(), namespace).map_err(Failure::step(format!(
        "failed to set MOUNT_ATTR_IDMAP on {source:?} (maybe the filesystem used doesn't support idmap mounts on this kernel?)"
    )))
}

/// Refuses a source whose mount does not propagate as requested, because later mounts would silently be missing
/// on the other side. The message is containerd's.
fn check_propagation(source: &Path, mountinfo: &str, kinds: &[&str], wanted: &str) -> Result<(), Failure> {
    let Some(mount_point) = lacking(source, mountinfo, kinds) else { return Ok(()) };
    let message = format!("path {source:?} is mounted on {mount_point:?} but it is not a {wanted} mount");
    Err(Failure { message, exit_code: 128 })
}

/// Returns the mount point of `path` if its mount has none of these kinds of propagation.
fn lacking(path: &Path, mountinfo: &str, kinds: &[&str]) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let mut best: Option<(String, bool)> = None;
    for line in mountinfo.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let Some(point) = fields.get(4) else { continue };
        let point = point.replace("\\040", " ");
        // Of several mounts at one point, the last one hides the others.
        if path.starts_with(&point) && best.as_ref().is_none_or(|(known, _)| point.len() >= known.len()) {
            let optional = fields.iter().skip(6).take_while(|field| **field != "-");
            let found = |field: &&str| kinds.iter().any(|kind| field.starts_with(kind));
            best = Some((point, optional.into_iter().any(found)));
        }
    }
    best.and_then(|(point, has)| (!has).then_some(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mounts_are_recognised() {
        let info = "1 0 1:1 / / rw shared:1 - ext4 a rw\n2 1 1:2 / /tmp rw - tmpfs t rw\n\
                    3 1 1:3 / /var rw master:1 - ext4 b rw\n";
        for (path, shared, either) in
            [("/usr", None, None), ("/tmp", Some("/tmp"), Some("/tmp")), ("/var", Some("/var"), None)]
        {
            let of = |kinds: &[&str]| lacking(Path::new(path), info, kinds);
            assert_eq!(of(&["shared:"]).as_deref(), shared, "{path}");
            assert_eq!(of(&["shared:", "master:"]).as_deref(), either, "{path}");
        }
    }
}
