//! Paths below the data folder.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The hidden first argument with which this program runs as a pod's shim.
pub const SHIM: &str = "shim";
pub const DEFAULT_DATA_DIR: &str = "/var/lib/knarr";
pub const DEFAULT_CGROUP_ROOT: &str = "/kubepods";

/// The data folder and the paths in it.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Creates the folder if it is missing, readable by root alone. An existing folder is closed to other
    /// users if it is empty or a data folder already; any other folder that was named, such as /srv, keeps
    /// its mode.
    pub fn create(root: &Path) -> Result<Self> {
        let in_words = || format!("cannot use {} as data folder", root.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root).with_context(in_words)?;
        let layout = Self { root: root.canonicalize().with_context(in_words)? };
        layout.check_whole()?;
        layout.close_to_others().with_context(in_words)?;
        Ok(layout)
    }

    /// Refuses a folder into which a backup is being restored, or was restored only in part.
    pub fn check_whole(&self) -> Result<()> {
        if self.restoring().exists() {
            anyhow::bail!(
                "{} holds a backup that is being restored or was not restored whole: wait for it, or remove all but the \
                 folder backups and restore it again",
                self.root.display()
            );
        }
        Ok(())
    }

    fn close_to_others(&self) -> std::io::Result<()> {
        let mode = std::fs::metadata(&self.root)?.permissions().mode() & 0o7777;
        if mode & 0o077 == 0 {
            return Ok(());
        }
        let marks = [self.store(), self.pki(), self.kubelet_dir_file(), self.cgroup_root_file()];
        let own = marks.iter().any(|path| path.exists()) || std::fs::read_dir(&self.root)?.next().is_none();
        if own {
            std::fs::set_permissions(&self.root, std::fs::Permissions::from_mode(mode & 0o700))?;
        } else {
            tracing::warn!(folder = %self.root.display(), "the data folder is open to other users");
        }
        Ok(())
    }

    /// Returns the paths of a data folder that may not exist.
    pub fn at(root: &Path) -> Self {
        Self { root: root.canonicalize().unwrap_or_else(|_| root.to_owned()) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.root.join("admin.kubeconfig")
    }

    /// The socket at which a running server hands out backups.
    pub fn admin_socket(&self) -> PathBuf {
        self.root.join("admin.sock")
    }

    /// The mark of a restore that is not finished.
    pub fn restoring(&self) -> PathBuf {
        self.root.join(".restoring")
    }

    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// Sockets, mounts and exit codes of the container runtime. None of it is valid after a reboot, so it is
    /// in /run, in a folder that belongs to this data folder alone.
    pub fn runtime(&self) -> PathBuf {
        let path = self.root.as_os_str().as_encoded_bytes();
        let hash = path
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        Path::new("/run/knarr").join(format!("{hash:016x}"))
    }

    pub fn network(&self) -> PathBuf {
        self.root.join("network")
    }

    /// The folders of volumes that the built-in provisioner made.
    pub fn local_path(&self) -> PathBuf {
        self.root.join("storage")
    }

    /// Pod folders and container logs.
    pub fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    /// The file that records where the kubelet's folder was when the node was started, so that `reset` finds
    /// it.
    pub fn kubelet_dir_file(&self) -> PathBuf {
        self.root.join("kubelet-dir")
    }

    /// The file that records the cgroup root of the node's start, so that `reset` finds it.
    pub fn cgroup_root_file(&self) -> PathBuf {
        self.root.join("cgroup-root")
    }
}

/// Returns the cgroup of the shims, a sibling of the pods' cgroup root: `/kubepods` gives `/kubepods-shims`.
pub fn shim_cgroup(cgroup_root: &str) -> String {
    format!("{}-shims", cgroup_root.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    #[test]
    fn data_folders_are_closed_to_others_and_no_other_folders() {
        let root = std::env::temp_dir().join(format!("knarr-layout-{}", std::process::id()));
        for (name, inside, expected) in
            [("empty", "", 0o700), ("own", "store", 0o700), ("other", "www", 0o755)]
        {
            let dir = root.join(name);
            fs::create_dir_all(dir.join(inside)).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
            let layout = Layout::create(&dir).unwrap();
            let mode = fs::metadata(layout.root()).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, expected, "{name}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
