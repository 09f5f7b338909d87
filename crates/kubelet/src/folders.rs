//! The kubelet's folders: they contain the data of pods, and only root may access them.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use crate::config::PodDirs;

/// Upstream's mode: secrets are readable files in readable folders, so that containers of any user can read them.
const MODE: u32 = 0o750;

/// Creates a folder and its missing parents, without access for others.
pub fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(dir)
}

/// Creates the parents of the pods' folders and logs. Folders that an earlier version left accessible are closed;
/// the root may be a folder that others use as well, and keeps its mode.
pub fn make_all(dirs: &PodDirs) -> io::Result<()> {
    make(dirs.root())?;
    for dir in [dirs.pods(), dirs.logs()] {
        make(&dir)?;
        let mode = std::fs::symlink_metadata(&dir)?.permissions().mode() & 0o7777;
        if mode & !MODE != 0 {
            std::fs::set_permissions(&dir, Permissions::from_mode(mode & MODE))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_folders_are_closed_to_others() {
        let parent = std::env::temp_dir().join(format!("knarr-kubelet-{:016x}", fastrand::u64(..)));
        let dirs = PodDirs::new(parent.join("lib/kubelet"));
        let mode = |dir: &Path| std::fs::metadata(dir).unwrap().permissions().mode() & 0o7777;
        let open = |dir: &Path, mode| std::fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
        make_all(&dirs).unwrap();
        // A stricter umask may remove more bits.
        let closed = |dir: &Path| mode(dir) & !MODE == 0;
        assert!(closed(dirs.root()) && closed(&dirs.pods()) && closed(&dirs.logs()));
        for dir in [dirs.root().to_owned(), dirs.pods(), dirs.logs()] {
            open(&dir, 0o755);
        }
        make_all(&dirs).unwrap();
        let modes = [mode(dirs.root()), mode(&dirs.pods()), mode(&dirs.logs())];
        std::fs::remove_dir_all(&parent).unwrap();
        assert_eq!(modes, [0o755, 0o750, 0o750]);
    }
}
