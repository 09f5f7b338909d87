//! Layers: each is unpacked once into its own folder, for use as an overlayfs lower directory.

mod attributes;
mod decompress;
mod guard;
mod stack;
mod unpack;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::content::create_unique;
use super::digest::{Digest, HashingReader};
use super::error::ErrorKind;

pub use decompress::decompress;
pub use guard::TarGuard;

/// Limits of one unpacked layer.
#[derive(Debug, Clone, Copy)]
pub struct LayerLimits {
    /// Bytes of the uncompressed tar.
    pub bytes: u64,
    /// The number of files, directories and links.
    pub entries: u64,
}

impl Default for LayerLimits {
    fn default() -> LayerLimits {
        LayerLimits { bytes: 256 << 30, entries: 10_000_000 }
    }
}

/// Why a layer could not be unpacked or managed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("malformed layer archive")]
    Archive(#[source] io::Error),
    #[error("wrong diff id: layer is {actual}, the image config says {expected}")]
    DiffId { expected: Digest, actual: Digest },
    #[error("{path:?} leaves the layer")]
    Escape { path: String },
    #[error("{path:?}: {reason}")]
    Entry { path: String, reason: &'static str },
    #[error("more than {0} entries")]
    TooManyEntries(u64),
}

impl LayerError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            LayerError::Io { .. } => ErrorKind::Io,
            LayerError::DiffId { .. } => ErrorKind::DigestMismatch,
            _ => ErrorKind::InvalidImage,
        }
    }

    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LayerError {
        let path = path.to_owned();
        move |source| LayerError::Io { action, path, source }
    }
}

/// Facts about an unpacked layer, in `layer.json` beside its `fs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerMeta {
    pub diff_id: Digest,
    pub bytes: u64,
    pub inodes: u64,
    /// The boot in which it was unpacked: until its files are known to be on disk, it is valid in this boot
    /// only.
    boot_id: String,
}

/// The unpacked layers under `root/layers/<chain id>/`. All methods block.
#[derive(Debug, Clone)]
pub struct LayerStore {
    root: PathBuf,
    ingest: PathBuf,
    trash: PathBuf,
}

const SYNCED: &str = "synced";

impl LayerStore {
    /// Opens or creates the folders of the store.
    pub fn open(root: &Path) -> Result<LayerStore, LayerError> {
        let store =
            LayerStore { root: root.join("layers"), ingest: root.join("ingest"), trash: root.join("trash") };
        for dir in [&store.root, &store.ingest, &store.trash] {
            fs::create_dir_all(dir).map_err(LayerError::io("create", dir))?;
        }
        Ok(store)
    }

    /// Returns the directory that overlayfs mounts.
    pub fn fs_dir(&self, chain: &Digest) -> PathBuf {
        self.root.join(chain.hex()).join("fs")
    }

    /// Returns whether the layer exists. A layer is complete when its folder exists, because that is renamed
    /// into place last.
    pub fn has(&self, chain: &Digest) -> bool {
        self.root.join(chain.hex()).exists()
    }

    pub fn meta(&self, chain: &Digest) -> Option<LayerMeta> {
        let bytes = fs::read(self.root.join(chain.hex()).join("layer.json")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Returns the chain ids of all layers, in order.
    pub fn list(&self) -> Result<Vec<Digest>, LayerError> {
        let mut out = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(LayerError::io("list", &self.root))? {
            let entry = entry.map_err(LayerError::io("list", &self.root))?;
            out.extend(entry.file_name().to_str().and_then(|name| Digest::from_hex(name).ok()));
        }
        out.sort();
        Ok(out)
    }

    /// Unpacks `blob` on top of `lowers` (chain ids, bottom first), unless that was done before.
    pub fn unpack(
        &self,
        lowers: &[Digest],
        diff_id: Digest,
        blob: File,
        limits: LayerLimits,
    ) -> Result<Digest, LayerError> {
        let chain = Digest::chain(lowers.last().copied(), diff_id);
        if self.has(&chain) {
            return Ok(chain);
        }
        let (staging, ()) = create_unique(&self.ingest, "layer", |path| fs::create_dir(path))
            .map_err(LayerError::io("create a folder in", &self.ingest))?;
        let result = self.unpack_into(&staging, lowers, diff_id, blob, limits);
        let result = result.and_then(|()| {
            let target = self.root.join(chain.hex());
            match fs::rename(&staging, &target) {
                Ok(()) => Ok(()),
                // Another process was faster, with the same result.
                Err(_) if self.has(&chain) => Err(None),
                Err(e) => Err(Some(LayerError::io("rename into place", &target)(e))),
            }
            .or_else(|e| e.map_or(Ok(()), Err))
        });
        if staging.exists() {
            let _ = crate::remove_folder(&staging);
        }
        result.map(|()| chain)
    }

    fn unpack_into(
        &self,
        staging: &Path,
        lowers: &[Digest],
        diff_id: Digest,
        blob: File,
        limits: LayerLimits,
    ) -> Result<(), LayerError> {
        let target = staging.join("fs");
        let stack = lowers.iter().rev().map(|lower| self.fs_dir(lower)).collect();
        let plain = decompress(blob).map_err(LayerError::Archive)?;
        let mut reader = TarGuard::new(HashingReader::new(plain, limits.bytes));
        let done = unpack::unpack(&mut reader, &target, stack, limits.entries)?;
        let (actual, _) = reader.into_inner().finish().map_err(LayerError::Archive)?;
        if actual != diff_id {
            return Err(LayerError::DiffId { expected: diff_id, actual });
        }
        let meta = LayerMeta { diff_id, bytes: done.bytes, inodes: done.inodes, boot_id: boot_id() };
        let path = staging.join("layer.json");
        let json = serde_json::to_vec(&meta).map_err(|e| LayerError::io("encode", &path)(e.into()))?;
        fs::write(&path, json).map_err(LayerError::io("write", &path))
    }

    /// Writes all unpacked files to disk, then marks the layers that were complete before as synced.
    pub fn sync(&self) -> Result<(), LayerError> {
        let unsynced: Vec<_> = self
            .list()?
            .iter()
            .map(|chain| self.root.join(chain.hex()).join(SYNCED))
            .filter(|marker| !marker.exists())
            .collect();
        if unsynced.is_empty() {
            return Ok(());
        }
        let dir = File::open(&self.root).map_err(LayerError::io("open", &self.root))?;
        nix::unistd::syncfs(&dir).map_err(|e| LayerError::io("sync", &self.root)(e.into()))?;
        for marker in unsynced {
            // A layer may have been collected meanwhile.
            let _ = File::create(marker);
        }
        Ok(())
    }

    /// Removes layers whose files may not have reached the disk before a crash of the machine. They are
    /// unpacked again from their blobs when needed.
    pub fn drop_unsynced(&self) -> Result<(), LayerError> {
        let boot = boot_id();
        for chain in self.list()? {
            let synced = self.root.join(chain.hex()).join(SYNCED).exists();
            if !synced && self.meta(&chain).is_none_or(|meta| meta.boot_id != boot) {
                tracing::warn!(layer = %chain, "layer was not on disk when the machine stopped, dropping it");
                self.discard(&chain)?;
            }
        }
        Ok(())
    }

    /// Moves the layer to the trash at once; [`empty_trash`] frees its space.
    pub fn discard(&self, chain: &Digest) -> Result<(), LayerError> {
        let path = self.root.join(chain.hex());
        discard(&self.trash, &path).map_err(LayerError::io("discard", &path))
    }

    pub fn trash_dir(&self) -> &Path {
        &self.trash
    }
}

/// Renames `path` into the trash under a new name; does nothing if it does not exist.
pub(super) fn discard(trash: &Path, path: &Path) -> io::Result<()> {
    let moved = create_unique(trash, "gone", |slot| match fs::rename(path, slot) {
        // The slot is left from an earlier process with the same id.
        Err(e) if matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory) => {
            Err(io::ErrorKind::AlreadyExists.into())
        }
        result => result,
    });
    match moved {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map(drop),
    }
}

/// Removes what is in the trash. What cannot be removed now is tried again the next time.
pub(super) fn empty_trash(trash: &Path) {
    let Ok(entries) = fs::read_dir(trash) else { return };
    for entry in entries.flatten() {
        // Another process may empty the trash at the same time.
        if let Err(error) = crate::remove_folder(&entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "cannot remove discarded files");
        }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
