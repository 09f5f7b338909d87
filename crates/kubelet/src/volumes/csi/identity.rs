//! The names of CSI volumes: in node status, as attachments, and as folders.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::config::PodDirs;

/// A volume as its driver knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeId {
    pub driver: String,
    pub handle: String,
}

impl VolumeId {
    pub fn new(driver: &str, handle: &str) -> Self {
        Self { driver: driver.to_owned(), handle: handle.to_owned() }
    }

    /// As `volumesInUse` and `volumesAttached` of a node name it.
    pub fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// The VolumeAttachment to a node.
    pub fn attachment_name(&self, node: &str) -> String {
        format!("csi-{}", hex(&[&self.handle, &self.driver, node]))
    }

    /// The folder of the volume's own record; it is staged in `globalmount` below.
    pub fn device_dir(&self, dirs: &PodDirs) -> PathBuf {
        csi_dir(dirs).join(&self.driver).join(hex(&[&self.handle]))
    }

    pub fn global_mount(&self, dirs: &PodDirs) -> PathBuf {
        self.device_dir(dirs).join("globalmount")
    }

    /// Names become parts of paths.
    pub fn is_safe(&self) -> bool {
        let plain = !self.driver.is_empty() && self.driver != "." && self.driver != "..";
        plain && !self.driver.contains(['/', '\0']) && !self.handle.is_empty()
    }
}

/// Where drivers' volumes are staged.
pub fn csi_dir(dirs: &PodDirs) -> PathBuf {
    dirs.root().join("plugins/kubernetes.io/csi")
}

/// What an inline volume is called, which has no handle of its own.
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
        // sha256 of "hdn".
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
