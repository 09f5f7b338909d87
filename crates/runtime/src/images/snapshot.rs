//! Snapshots: the writable root file systems of containers, kept on disk under `snapshots/<name>/`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::content::create_unique;
use super::digest::Digest;
use super::error::ImageError;
use super::layers::{self, LayerStore};
use super::overlay::{MappedIds, OverlayMount};
use super::usage::{DiskUsage, disk_usage};

const MAX_NAME: usize = 128;

/// A container's root file system: the layers that it shares, and one that it writes to. It survives restarts.
/// Its mount does not survive a reboot, and [`Snapshot::mount`] creates it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The container's id, or another name that the caller chose.
    pub name: String,
    /// The image's id.
    pub image: Digest,
    /// Chain ids of the layers, bottom first.
    pub layers: Vec<Digest>,
    /// The folders of the layers in overlayfs order: topmost first.
    pub lowerdirs: Vec<PathBuf>,
    pub upperdir: PathBuf,
    pub workdir: PathBuf,
    /// The mount point, which is the container's root.
    pub target: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Record {
    image: Digest,
    layers: Vec<Digest>,
}

impl Snapshot {
    fn at(dir: &Path, name: &str, record: Record, layers: &LayerStore, empty: &Path) -> Snapshot {
        let mut lowerdirs: Vec<PathBuf> = record.layers.iter().rev().map(|l| layers.fs_dir(l)).collect();
        if lowerdirs.is_empty() {
            // overlayfs needs at least one lower directory.
            lowerdirs.push(empty.to_owned());
        }
        Snapshot {
            name: name.to_owned(),
            image: record.image,
            layers: record.layers,
            lowerdirs,
            upperdir: dir.join("upper"),
            workdir: dir.join("work"),
            target: dir.join("rootfs"),
        }
    }

    fn overlay(&self) -> OverlayMount {
        let dir = self.target.parent().unwrap_or(Path::new("/")).to_owned();
        OverlayMount { dir, lowerdirs: self.lowerdirs.clone() }
    }

    /// Mounts the overlay at `target` in the caller's mount namespace, id-mapped to `ids` if given; does
    /// nothing if it is mounted already. Blocks.
    pub fn mount(&self, ids: Option<&MappedIds>) -> Result<(), ImageError> {
        let overlay = self.overlay();
        ids.map_or_else(|| overlay.mount(), |ids| overlay.mount_mapped(ids))
            .map_err(ImageError::io("mount overlay on", &self.target))
    }

    /// Unmounts the overlay, lazily if it is in use; does nothing if it is not mounted. Blocks.
    pub fn unmount(&self) -> Result<(), ImageError> {
        self.overlay().unmount().map_err(ImageError::io("unmount", &self.target))
    }

    pub fn is_mounted(&self) -> Result<bool, ImageError> {
        self.overlay().is_mounted().map_err(ImageError::io("stat", &self.target))
    }

    /// Returns the disk usage of what the container has written. Walks the writable layer; blocks.
    pub fn usage(&self) -> Result<DiskUsage, ImageError> {
        disk_usage(&self.upperdir).map_err(ImageError::io("walk", &self.upperdir))
    }
}

/// All snapshots of a store. All methods block.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    root: PathBuf,
    empty: PathBuf,
    ingest: PathBuf,
    layers: LayerStore,
}

impl SnapshotStore {
    /// Opens or creates the folders of the store.
    pub fn open(root: &Path, layers: LayerStore) -> Result<SnapshotStore, ImageError> {
        let store = SnapshotStore {
            root: root.join("snapshots"),
            empty: root.join("empty"),
            ingest: root.join("ingest"),
            layers,
        };
        for dir in [&store.root, &store.empty] {
            fs::create_dir_all(dir).map_err(ImageError::io("create", dir))?;
        }
        Ok(store)
    }

    /// Creates a snapshot over `layers` (chain ids, bottom first), which must be unpacked.
    pub fn create(&self, name: &str, image: Digest, layers: Vec<Digest>) -> Result<Snapshot, ImageError> {
        check_name(name)?;
        let dir = self.root.join(name);
        if dir.exists() {
            return Err(ImageError::SnapshotExists(name.to_owned()));
        }
        let record = Record { image, layers };
        let json =
            serde_json::to_vec(&record).map_err(|e| ImageError::io("encode", &dir)(io::Error::other(e)))?;
        let snapshot = Snapshot::at(&dir, name, record, &self.layers, &self.empty);
        let (staging, ()) = create_unique(&self.ingest, "snapshot", |path| fs::create_dir(path))
            .map_err(ImageError::io("create a folder in", &self.ingest))?;
        let made = OverlayMount::prepare(&staging, &snapshot.lowerdirs)
            .and_then(|()| fs::write(staging.join("snapshot.json"), json))
            .and_then(|()| fs::rename(&staging, &dir));
        if let Err(e) = made {
            let _ = crate::remove_folder(&staging);
            if dir.exists() {
                return Err(ImageError::SnapshotExists(name.to_owned()));
            }
            return Err(ImageError::io("create snapshot", &dir)(e));
        }
        Ok(snapshot)
    }

    pub fn get(&self, name: &str) -> Result<Option<Snapshot>, ImageError> {
        check_name(name)?;
        let dir = self.root.join(name);
        let path = dir.join("snapshot.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ImageError::io("read", &path)(e)),
        };
        let record = serde_json::from_slice(&bytes)
            .map_err(|e| ImageError::io("parse", &path)(io::Error::new(io::ErrorKind::InvalidData, e)))?;
        Ok(Some(Snapshot::at(&dir, name, record, &self.layers, &self.empty)))
    }

    /// Returns every snapshot, sorted by name. A snapshot whose record cannot be read (after a crash of the
    /// machine) is skipped; its folder is removed when it is removed by name.
    pub fn list(&self) -> Result<Vec<Snapshot>, ImageError> {
        let mut out = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(ImageError::io("list", &self.root))? {
            let entry = entry.map_err(ImageError::io("list", &self.root))?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            match self.get(&name) {
                Ok(found) => out.extend(found),
                Err(error) => tracing::warn!(snapshot = name, error = error.chain(), "unreadable snapshot"),
            }
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// Unmounts and removes the snapshot; does nothing if it does not exist. [`SnapshotStore::empty_trash`]
    /// frees its space.
    pub fn remove(&self, name: &str) -> Result<(), ImageError> {
        check_name(name)?;
        let dir = self.root.join(name);
        if !dir.exists() {
            return Ok(());
        }
        let overlay = OverlayMount { dir: dir.clone(), lowerdirs: Vec::new() };
        overlay.unmount().map_err(ImageError::io("unmount", &overlay.target()))?;
        layers::discard(self.layers.trash_dir(), &dir).map_err(ImageError::io("discard", &dir))
    }

    pub fn empty_trash(&self) {
        layers::empty_trash(self.layers.trash_dir());
    }

    /// Returns the chain ids that must not be collected.
    pub fn layers_in_use(&self) -> Result<BTreeSet<Digest>, ImageError> {
        Ok(self.list()?.into_iter().flat_map(|snapshot| snapshot.layers).collect())
    }
}

fn check_name(name: &str) -> Result<(), ImageError> {
    let good = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-'))
        && !name.starts_with('.');
    if good { Ok(()) } else { Err(ImageError::SnapshotName(name.chars().take(MAX_NAME + 1).collect())) }
}
