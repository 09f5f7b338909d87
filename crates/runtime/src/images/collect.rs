//! Garbage collection of blobs that no name refers to, and of layers that neither an image nor a snapshot
//! needs.
//!
//! A user of content that no name refers to yet (a pull, an import, a new snapshot) holds a [`Lease`], a shared
//! lock on a file; collecting needs the exclusive lock. The kernel releases the lock however the holder ends,
//! and it also excludes other processes. If a lease is held, collecting is postponed until the last one in this
//! process is released.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::catalog::Catalog;
use super::content::ContentStore;
use super::digest::Digest;
use super::error::ImageError;
use super::layers::LayerStore;
use super::oci::{self, Document, MAX_MANIFEST_BYTES};
use super::snapshot::SnapshotStore;

/// What a collection removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    pub blobs: Vec<Digest>,
    /// Chain ids.
    pub layers: Vec<Digest>,
    pub bytes: u64,
}

/// Collects unused content. All methods block.
pub struct Collector {
    lock_path: PathBuf,
    content: ContentStore,
    layers: LayerStore,
    snapshots: SnapshotStore,
    catalog: Arc<Catalog>,
    pending: AtomicBool,
}

/// A shared lock that prevents collecting.
pub struct Lease {
    lock: Option<File>,
    collector: Arc<Collector>,
}

impl Collector {
    pub fn new(
        root: &Path,
        content: ContentStore,
        layers: LayerStore,
        snapshots: SnapshotStore,
        catalog: Arc<Catalog>,
    ) -> Collector {
        let lock_path = root.join("lease.lock");
        Collector { lock_path, content, layers, snapshots, catalog, pending: AtomicBool::new(false) }
    }

    fn lock_file(&self) -> Result<File, ImageError> {
        let path = &self.lock_path;
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(ImageError::io("open", path))
    }

    /// Takes a lease; waits while a collection runs, which is short.
    pub fn lease(self: &Arc<Self>) -> Result<Lease, ImageError> {
        let lock = self.lock_file()?;
        lock.lock_shared().map_err(ImageError::io("lock", &self.lock_path))?;
        Ok(Lease { lock: Some(lock), collector: self.clone() })
    }

    /// Runs `work` if no lease is held.
    fn alone<T>(&self, work: impl FnOnce() -> Result<T, ImageError>) -> Result<Option<T>, ImageError> {
        let lock = self.lock_file()?;
        match lock.try_lock() {
            Ok(()) => work().map(Some),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(e)) => Err(ImageError::io("lock", &self.lock_path)(e)),
        }
    }

    /// Removes unfinished work after a start, unless another process holds a lease.
    pub fn tidy(&self) -> Result<(), ImageError> {
        let ingest = self.content.ingest_dir();
        self.alone(|| {
            for entry in fs::read_dir(ingest).map_err(ImageError::io("list", ingest))?.flatten() {
                let path = entry.path();
                let removed = match entry.file_type() {
                    Ok(kind) if kind.is_dir() => crate::remove_folder(&path),
                    _ => fs::remove_file(&path),
                };
                removed.map_err(ImageError::io("remove", &path))?;
            }
            self.layers.drop_unsynced().map_err(|source| ImageError::Io {
                action: "check the layers in",
                path: self.lock_path.clone(),
                source: std::io::Error::other(source),
            })
        })?;
        self.snapshots.empty_trash();
        Ok(())
    }

    /// Collects now; if a lease is held, marks the collection as pending and returns `None`.
    pub fn collect(&self) -> Result<Option<Collected>, ImageError> {
        self.pending.store(true, Ordering::SeqCst);
        let collected = self.alone(|| {
            self.pending.store(false, Ordering::SeqCst);
            self.sweep()
        })?;
        if collected.is_some() {
            self.snapshots.empty_trash();
        }
        Ok(collected)
    }

    fn sweep(&self) -> Result<Collected, ImageError> {
        let refs = self.catalog.refs()?;
        let mut blobs = BTreeSet::new();
        let mut layers = self.snapshots.layers_in_use()?;
        for target in refs.values() {
            blobs.insert(target.descriptor.digest);
            blobs.insert(target.manifest);
            // Damaged documents refer to nothing; their content cannot be used any more.
            if let Ok(content) = self.catalog.content(&target.manifest) {
                blobs.insert(content.id);
                blobs.extend(content.layers.iter().map(|layer| layer.digest));
                layers.extend(content.chain_ids.iter().copied());
            }
            self.nested_indexes(&target.descriptor.digest, &mut blobs);
        }
        let mut collected = Collected::default();
        for (digest, size) in self.content.list()? {
            if !blobs.contains(&digest) {
                self.content.remove(&digest)?;
                collected.bytes += size;
                collected.blobs.push(digest);
            }
        }
        for chain in self.layers.list().map_err(layer_error)? {
            if !layers.contains(&chain) {
                collected.bytes += self.layers.meta(&chain).map_or(0, |meta| meta.bytes);
                self.layers.discard(&chain).map_err(layer_error)?;
                collected.layers.push(chain);
            }
        }
        Ok(collected)
    }

    /// Adds indexes between `index` and the manifest to `blobs`.
    fn nested_indexes(&self, index: &Digest, blobs: &mut BTreeSet<Digest>) {
        let Ok(bytes) = self.content.read(index, MAX_MANIFEST_BYTES) else { return };
        if let Ok(Document::Index(index)) = oci::parse_document(&bytes, "") {
            blobs.extend(index.manifests.iter().filter(|d| d.is_index()).map(|d| d.digest));
        }
    }
}

fn layer_error(error: super::layers::LayerError) -> ImageError {
    match error {
        super::layers::LayerError::Io { action, path, source } => ImageError::Io { action, path, source },
        other => ImageError::Io {
            action: "collect",
            path: PathBuf::from("layers"),
            source: std::io::Error::other(other),
        },
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.lock = None;
        if !self.collector.pending.load(Ordering::SeqCst) {
            return;
        }
        let collector = self.collector.clone();
        let work = move || {
            if let Err(error) = collector.collect() {
                tracing::warn!(error = error.chain(), "cannot collect unused image content");
            }
        };
        // A lease may be released on an async thread, which must not block.
        match tokio::runtime::Handle::try_current() {
            Ok(handle) => drop(handle.spawn_blocking(work)),
            Err(_) => work(),
        }
    }
}
