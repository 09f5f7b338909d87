//! `fsGroup`: gives a volume's files to the pod's group.
//!
//! Source: `k8s.io/kubernetes/pkg/volume`, SetVolumeOwnership.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use super::error::{Error, Result};

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const TRAVERSE: u32 = 0o110;
const SETGID: u32 = 0o2000;
/// Deeper trees than this are not followed.
const MAX_DEPTH: usize = 512;

/// The mode a file gets.
fn new_mode(mode: u32, is_dir: bool, read_only: bool) -> u32 {
    let mask = if read_only { READ_ONLY } else { READ_WRITE };
    mode | mask | if is_dir { SETGID | TRAVERSE } else { 0 }
}

/// Whether the root of a volume is already as [`set_ownership`] leaves it.
fn root_matches(mode: u32, gid: u32, is_dir: bool, group: u32, read_only: bool) -> bool {
    let wanted = if read_only { READ_ONLY } else { READ_WRITE } | TRAVERSE | SETGID;
    is_dir && gid == group && mode & wanted == wanted
}

/// Gives everything in the volume to the group; with `on_root_mismatch` only if its root is not yet right.
pub fn set_ownership(dir: &Path, group: u32, read_only: bool, on_root_mismatch: bool) -> Result<()> {
    if on_root_mismatch {
        let root = fs::metadata(dir).map_err(Error::file("read", dir))?;
        if root_matches(root.mode(), root.gid(), root.is_dir(), group, read_only) {
            return Ok(());
        }
    }
    walk(dir, group, read_only, 0)
}

/// The root comes last, so that it shows whether all was done.
fn walk(path: &Path, group: u32, read_only: bool, depth: usize) -> Result<()> {
    let meta = fs::symlink_metadata(path).map_err(Error::file("read", path))?;
    if meta.is_dir() && depth < MAX_DEPTH {
        for entry in fs::read_dir(path).map_err(Error::file("read", path))? {
            let entry = entry.map_err(Error::file("read", path))?;
            walk(&entry.path(), group, read_only, depth + 1)?;
        }
    }
    // As upstream: a file that cannot be changed (a read-only file system) does not fail the volume.
    if meta.gid() != group
        && let Err(error) = lchown(path, None, Some(group))
    {
        tracing::warn!(path = %path.display(), %error, "cannot change the group");
    }
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = new_mode(meta.mode() & 0o7777, meta.is_dir(), read_only);
    if (mode != meta.mode() & 0o7777 || meta.gid() != group)
        && let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(mode))
    {
        tracing::warn!(path = %path.display(), %error, "cannot change the mode");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let table = [
            (0o644, false, false, 0o664),
            (0o600, false, false, 0o660),
            (0o400, false, true, 0o440),
            (0o755, true, false, 0o2775),
            (0o700, true, true, 0o2750),
        ];
        for (mode, is_dir, read_only, want) in table {
            assert_eq!(new_mode(mode, is_dir, read_only), want, "{mode:o}");
        }
    }

    #[test]
    fn root_that_matches_is_left() {
        assert!(root_matches(0o2775, 7, true, 7, false));
        assert!(root_matches(0o2750, 7, true, 7, true));
        for (mode, gid, is_dir) in
            [(0o775, 7, true), (0o2750, 7, true), (0o2775, 8, true), (0o2775, 7, false)]
        {
            assert!(!root_matches(mode, gid, is_dir, 7, false));
        }
    }
}
