//! The names of CSI volumes: in the node's status, of attachments, and of folders.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::config::PodDirs;

/// The driver and the handle that identify a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeId {
    pub driver: String,
    pub handle: String,
}

impl VolumeId {
    pub fn new(driver: &str, handle: &str) -> Self {
        Self { driver: driver.to_owned(), handle: handle.to_owned() }
    }

    /// Returns the name in `volumesInUse` and `volumesAttached` of a node's status.
    pub fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// Returns the name of the VolumeAttachment for a node.
    pub fn attachment_name(&self, node: &str) -> String {
        format!("csi-{}", hex(&[&self.handle, &self.driver, node]))
    }

    /// Returns the folder of the record of a staged volume; the volume is staged in `globalmount` below it.
    pub fn device_dir(&self, dirs: &PodDirs) -> PathBuf {
        csi_dir(dirs).join(&self.driver).join(hex(&[&self.handle]))
    }

    pub fn global_mount(&self, dirs: &PodDirs) -> PathBuf {
        self.device_dir(dirs).join("globalmount")
    }

    /// Returns whether the driver's name is safe as a part of paths, and the handle is not empty.
    pub fn is_safe(&self) -> bool {
        let plain = !self.driver.is_empty() && self.driver != "." && self.driver != "..";
        plain && !self.driver.contains(['/', '\0']) && !self.handle.is_empty()
    }
}

/// Returns the folder below which drivers stage volumes.
pub fn csi_dir(dirs: &PodDirs) -> PathBuf {
    dirs.root().join("plugins/kubernetes.io/csi")
}

/// Returns the generated handle of an inline volume.
pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", hex(&[pod_uid, volume]))
}

fn hex(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part.as_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let volume = VolumeId::new("d", "h");
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
        // The SHA-256 of "hdn".
        let name = volume.attachment_name("n");
        assert_eq!((name.len(), &name[..4]), (68, "csi-"));
        assert_eq!(name[4..], hex(&["hdn"]));
        let dirs = PodDirs::new("/k");
        let staged = volume.global_mount(&dirs);
        let want = "/k/plugins/kubernetes.io/csi/d/aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123/globalmount";
        assert_eq!(staged.display().to_string(), want);
        assert!(!VolumeId::new("../x", "h").is_safe());
        assert!(!VolumeId::new("d", "").is_safe());
    }
}
