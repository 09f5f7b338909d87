//! Usage of a volume as its driver reports it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_apimachinery::clock::Clock;

use super::super::error::{Error, Result};
use super::Csi;
use super::identity::VolumeId;
use crate::csi::messages::{NodeGetVolumeStatsRequest, VolumeUsage};
use crate::volume_manager::Room;

const BYTES: i32 = 1;
const INODES: i32 = 2;

/// A volume whose driver reports its usage.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    pub(super) volume: VolumeId,
    pub(super) staged: Option<PathBuf>,
}

fn room(usage: &[VolumeUsage], unit: i32) -> Room {
    let amount = |n: i64| u64::try_from(n).unwrap_or(0);
    let found = usage.iter().find(|u| u.unit == unit);
    found.map_or(Room::default(), |u| Room {
        available: amount(u.available),
        capacity: amount(u.total),
        used: amount(u.used),
    })
}

impl Csi {
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.client.clock()
    }

    /// Returns the usage in bytes and in inodes.
    pub(in crate::volumes) async fn measure(&self, what: &Measured, path: &Path) -> Result<(Room, Room)> {
        let client = self.drivers.client(&what.volume.driver).map_err(Error::failed)?;
        let request = NodeGetVolumeStatsRequest {
            volume_id: what.volume.handle.clone(),
            volume_path: path.display().to_string(),
            staging_target_path: what.staged.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
        };
        let answer = client.stats(&request).await.map_err(|e| Error::failed(e.to_string()))?;
        Ok((room(&answer.usage, BYTES), room(&answer.usage, INODES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_found_by_their_unit() {
        let usage = |unit, total| VolumeUsage { available: -1, total, used: 3, unit };
        let all = [usage(BYTES, 10), usage(INODES, 20)];
        assert_eq!(room(&all, BYTES), Room { available: 0, capacity: 10, used: 3 });
        assert_eq!(room(&all, INODES).capacity, 20);
        assert_eq!(room(&[], BYTES), Room::default());
    }
}
