//! The former in-tree provisioners and the CSI drivers that replace them.
//!
//! Source: `pkg/controller/volume` with `csi-translation-lib` of Kubernetes 1.37.

const DRIVERS: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// Returns the CSI driver that replaces this provisioner.
pub fn driver_of(provisioner: &str) -> Option<&'static str> {
    DRIVERS.iter().find(|(old, _)| *old == provisioner).map(|(_, driver)| *driver)
}

/// Returns whether a provisioner was in-tree, so that no external provisioner serves it.
pub fn is_of_kubernetes(provisioner: &str) -> bool {
    provisioner.starts_with("kubernetes.io/")
}
