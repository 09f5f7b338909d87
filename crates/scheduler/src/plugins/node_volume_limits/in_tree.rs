//! Maps in-tree volume types that CSI drivers serve today to the driver and the disk.

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};

/// A disk as its driver counts it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attached {
    pub driver: String,
    pub handle: String,
}

impl Attached {
    pub fn new(driver: &str, handle: impl Into<String>) -> Self {
        Self { driver: driver.to_owned(), handle: handle.into() }
    }
}

const AWS: &str = "ebs.csi.aws.com";
const GCE: &str = "pd.csi.storage.gke.io";
const AZURE: &str = "disk.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const PORTWORX: &str = "pxd.portworx.com";
const UNSPECIFIED: &str = "UNSPECIFIED";

/// The relation of an in-tree provisioner to CSI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provisioner {
    /// This driver serves it.
    Driver(&'static str),
    /// A driver could serve it, but nodes do not count its disks.
    Uncounted,
    /// Not an in-tree provisioner.
    Other,
}

/// Returns the relation of a provisioner to CSI.
pub fn provisioner(name: &str) -> Provisioner {
    match name {
        "kubernetes.io/aws-ebs" => Provisioner::Driver(AWS),
        "kubernetes.io/gce-pd" => Provisioner::Driver(GCE),
        "kubernetes.io/azure-disk" => Provisioner::Driver(AZURE),
        "kubernetes.io/cinder" => Provisioner::Driver(CINDER),
        "kubernetes.io/portworx-volume" => Provisioner::Driver(PORTWORX),
        "kubernetes.io/azure-file" | "kubernetes.io/vsphere-volume" => Provisioner::Uncounted,
        _ => Provisioner::Other,
    }
}

/// Returns the volume's ID: `aws://zone/vol-1` and `vol-1` are the same disk.
fn aws_handle(id: &str) -> &str {
    id.strip_prefix("aws://").and_then(|rest| rest.rsplit('/').next()).unwrap_or(id)
}

fn gce_handle(zone: &str, disk: &str) -> String {
    format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}")
}

/// Returns the disk of an in-tree volume in the pod's spec.
pub fn of_volume(volume: &Volume) -> Option<Attached> {
    if let Some(disk) = &volume.aws_elastic_block_store {
        return Some(Attached::new(AWS, aws_handle(&disk.volume_id)));
    }
    if let Some(disk) = &volume.gce_persistent_disk {
        return Some(Attached::new(GCE, gce_handle(UNSPECIFIED, &disk.pd_name)));
    }
    if let Some(disk) = &volume.azure_disk {
        return Some(Attached::new(AZURE, &disk.disk_uri));
    }
    if let Some(disk) = &volume.cinder {
        return Some(Attached::new(CINDER, &disk.volume_id));
    }
    let disk = volume.portworx_volume.as_ref()?;
    Some(Attached::new(PORTWORX, &disk.volume_id))
}

/// Returns the disk of an in-tree PersistentVolume.
pub fn of_persistent_volume(volume: &PersistentVolume) -> Option<Attached> {
    let spec = volume.spec.as_ref()?;
    if let Some(disk) = &spec.aws_elastic_block_store {
        return Some(Attached::new(AWS, aws_handle(&disk.volume_id)));
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        return Some(Attached::new(GCE, gce_handle(&zone(volume), &disk.pd_name)));
    }
    if let Some(disk) = &spec.azure_disk {
        return Some(Attached::new(AZURE, &disk.disk_uri));
    }
    if let Some(disk) = &spec.cinder {
        return Some(Attached::new(CINDER, &disk.volume_id));
    }
    let disk = spec.portworx_volume.as_ref()?;
    Some(Attached::new(PORTWORX, &disk.volume_id))
}

fn zone(volume: &PersistentVolume) -> String {
    let labels = volume.metadata.labels.as_ref();
    let keys = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
    let zone = keys.into_iter().find_map(|key| labels?.get(key));
    // With several zones it is no zonal disk. Any stable name is sufficient to count it.
    zone.cloned().unwrap_or_else(|| UNSPECIFIED.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::object;
    use serde_json::json;

    #[test]
    fn disks_are_named_as_their_driver_names_them() {
        let gce = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
        let table = [
            (json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}), AWS, "vol-1"),
            (json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}), AWS, "vol-1"),
            (json!({"gcePersistentDisk": {"pdName": "d"}}), GCE, gce),
            (json!({"azureDisk": {"diskName": "d", "diskURI": "/uri"}}), AZURE, "/uri"),
            (json!({"cinder": {"volumeID": "c"}}), CINDER, "c"),
        ];
        for (mut source, driver, handle) in table {
            let volume = object(json!({"metadata": {"name": "v"}, "spec": source.clone()}));
            assert_eq!(of_persistent_volume(&volume), Some(Attached::new(driver, handle)), "{source}");
            source["name"] = "v".into();
            assert_eq!(of_volume(&object(source.clone())), Some(Attached::new(driver, handle)), "{source}");
        }
        assert_eq!(of_volume(&object(json!({"name": "v", "emptyDir": {}}))), None);
    }
}
