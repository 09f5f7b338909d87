//! The names of CSI volumes in the status of nodes, and of their attachments.

use sha2::{Digest, Sha256};

const PREFIX: &str = "kubernetes.io/csi/";

/// Returns the name of a volume in `volumesInUse` and `volumesAttached` of a node.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PREFIX}{driver}^{handle}")
}

/// Returns the name of the VolumeAttachment of a volume to a node.
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    let mut hash = Sha256::new();
    [handle, driver, node].iter().for_each(|part| hash.update(part.as_bytes()));
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

/// Returns whether a name in a node's status means the volume of this attachment.
pub fn means(unique_name: &str, attachment: &str, node: &str) -> bool {
    let parts = unique_name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('^'));
    parts.is_some_and(|(driver, handle)| attachment_name(driver, handle, node) == attachment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_attachments() {
        let name = unique_name("d", "h^1");
        assert_eq!(name, "kubernetes.io/csi/d^h^1");
        let attachment = attachment_name("d", "h^1", "n");
        assert_eq!(attachment.len(), 68);
        assert!(means(&name, &attachment, "n"));
        assert!(!means(&name, &attachment, "m") && !means("kubernetes.io/nfs/x", &attachment, "n"));
    }
}
