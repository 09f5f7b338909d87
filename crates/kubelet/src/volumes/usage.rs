//! Usage of the volumes behind claims.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Volume};
use knarr_api::kind::Kind;
use nix::sys::statvfs::statvfs;

use super::csi::Csi;
use super::error::Error;
use super::meter::Meter;
use super::plugin::{Ready, blocking};
use crate::volume_manager::{Room, VolumeUsage};

/// How long a driver may take to return statistics.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the name of the claim behind a volume.
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    named.or_else(|| volume.ephemeral.is_some().then(|| format!("{}-{}", pod.name(), volume.name)))
}

/// Returns the usage of one volume; `None` if it has no claim or cannot be measured.
pub async fn of_volume(csi: &Csi, pod: &Pod, volume: &Volume, ready: &Ready) -> Option<VolumeUsage> {
    let claim = claim_name(pod, volume)?;
    let path = &ready.volume.host_path;
    let measured = match ready.meter.as_ref()? {
        Meter::FileSystem => {
            let path = path.clone();
            blocking(move || of_file_system(&path)).await
        }
        Meter::Driver(measured) => tokio::select! {
            room = csi.measure(measured, path) => room,
            () = csi.clock().sleep(TIMEOUT) => Err(Error::failed("the driver does not answer")),
        },
    };
    match measured {
        Ok((bytes, inodes)) => Some(VolumeUsage { volume: volume.name.clone(), claim, bytes, inodes }),
        Err(error) => {
            tracing::debug!(pod = %pod.key(), volume = volume.name, %error, "a volume cannot be measured");
            None
        }
    }
}

fn of_file_system(path: &Path) -> Result<(Room, Room), Error> {
    let stat = statvfs(path).map_err(|errno| Error::file("measure", path)(errno.into()))?;
    let block = stat.fragment_size();
    let total = stat.blocks().saturating_mul(block);
    let bytes = Room {
        available: stat.blocks_available().saturating_mul(block),
        capacity: total,
        used: total.saturating_sub(stat.blocks_free().saturating_mul(block)),
    };
    let inodes = Room {
        available: stat.files_free(),
        capacity: stat.files(),
        used: stat.files().saturating_sub(stat.files_free()),
    };
    Ok((bytes, inodes))
}
