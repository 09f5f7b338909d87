//! [`ImageStore`]: the images and snapshots under one folder, for async callers.
//!
//! Several processes may have the same folder open: names are read again when the file has changed, and a lock
//! file prevents one process from collecting what another is using.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::catalog::{Catalog, Content, Image};
use super::collect::{Collected, Collector, Lease};
use super::content::ContentStore;
use super::error::ImageError;
use super::layers::{LayerLimits, LayerStore};
use super::locks::DigestLocks;
use super::measured::Measured;
use super::overlay::MappedIds;
use super::reference::Reference;
use super::snapshot::{Snapshot, SnapshotStore};
use super::usage::{DiskUsage, FsInfo, fs_info};

/// A handle to the store that is cheap to clone; clones share the store.
#[derive(Clone)]
pub struct ImageStore {
    pub(super) inner: Arc<Inner>,
}

/// The result of removing a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    pub untagged: Vec<String>,
    /// `None` if collecting must wait until a pull or import has ended.
    pub collected: Option<Collected>,
}

pub(super) struct Inner {
    pub root: PathBuf,
    pub content: ContentStore,
    pub layers: LayerStore,
    pub snapshots: SnapshotStore,
    pub catalog: Arc<Catalog>,
    pub collector: Arc<Collector>,
    pub locks: DigestLocks,
    measured: Measured,
    pub limits: LayerLimits,
    syncing: AtomicBool,
}

impl std::fmt::Debug for ImageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ImageStore({})", self.inner.root.display())
    }
}

impl ImageStore {
    /// Opens or creates the store in `dir`, and removes unfinished work of an earlier process.
    pub async fn open(dir: impl Into<PathBuf>) -> Result<ImageStore, ImageError> {
        let dir = dir.into();
        tokio::task::spawn_blocking(move || ImageStore::open_blocking(&dir, LayerLimits::default()))
            .await
            .map_err(|_| ImageError::Panicked("opening the image store"))?
    }

    pub(super) fn open_blocking(dir: &Path, limits: LayerLimits) -> Result<ImageStore, ImageError> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(dir).map_err(ImageError::io("create", dir))?;
        let root = dir.canonicalize().map_err(ImageError::io("resolve", dir))?;
        // Images contain set-uid programs, which other users must not reach by path.
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o711))
            .map_err(ImageError::io("set the mode of", &root))?;
        let content = ContentStore::open(&root)?;
        let layers = LayerStore::open(&root).map_err(|e| ImageError::Io {
            action: "open the layers in",
            path: root.clone(),
            source: std::io::Error::other(e),
        })?;
        for name in ["layers", "ingest", "trash", "blobs"] {
            let path = root.join(name);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))
                .map_err(ImageError::io("set the mode of", &path))?;
        }
        let snapshots = SnapshotStore::open(&root, layers.clone())?;
        let catalog = Arc::new(Catalog::open(&root, content.clone())?);
        let collector = Arc::new(Collector::new(
            &root,
            content.clone(),
            layers.clone(),
            snapshots.clone(),
            catalog.clone(),
        ));
        collector.tidy()?;
        let inner = Inner {
            root,
            content,
            layers,
            snapshots,
            catalog,
            collector,
            locks: DigestLocks::default(),
            measured: Measured::default(),
            limits,
            syncing: AtomicBool::new(false),
        };
        Ok(ImageStore { inner: Arc::new(inner) })
    }

    /// Returns all images, sorted by id.
    pub async fn list(&self) -> Result<Vec<Image>, ImageError> {
        self.blocking("listing images", |inner| inner.catalog.list()).await
    }

    /// Returns the image that `name` refers to: an id, the beginning of one, a tag or a digest reference.
    pub async fn get(&self, name: &str) -> Result<Option<Image>, ImageError> {
        let name = name.to_owned();
        self.blocking("finding an image", move |inner| inner.catalog.find(&name)).await
    }

    /// Adds another name to the image.
    pub async fn tag(&self, name: &str, as_reference: &Reference) -> Result<(), ImageError> {
        let (name, new) = (name.to_owned(), as_reference.clone());
        self.blocking("tagging an image", move |inner| {
            let _lease = inner.collector.lease()?;
            let image = inner.catalog.find(&name)?.ok_or_else(|| ImageError::NoImage(name.clone()))?;
            let target = inner.catalog.refs()?.into_values().find(|t| t.manifest == image.manifest);
            inner.catalog.tag(&new, &target.ok_or(ImageError::NoImage(name))?)
        })
        .await
    }

    /// Removes a tag, or the whole image by id, and the content that is no longer needed. Layers that snapshots
    /// use stay until the snapshots are removed.
    pub async fn remove(&self, name: &str) -> Result<Removed, ImageError> {
        let name = name.to_owned();
        self.blocking("removing an image", move |inner| {
            let untagged = inner.catalog.remove(&name)?.iter().map(Reference::to_string).collect();
            Ok(Removed { untagged, collected: inner.collector.collect()? })
        })
        .await
    }

    /// Removes content that no image and no snapshot needs, for example that of failed pulls. Returns `None` if
    /// it must wait until a pull or import has ended; it then runs automatically.
    pub async fn collect(&self) -> Result<Option<Collected>, ImageError> {
        self.blocking("collecting content", |inner| inner.collector.collect()).await
    }

    /// Returns the file system of the store and its usage by blobs and layers.
    pub async fn fs_info(&self) -> Result<FsInfo, ImageError> {
        self.blocking("measuring the image store", Inner::fs_info).await
    }

    /// Creates a writable root file system from `image` (any name that [`ImageStore::get`] accepts), not yet
    /// mounted.
    pub async fn create_snapshot(&self, name: &str, image: &str) -> Result<Snapshot, ImageError> {
        let (name, image) = (name.to_owned(), image.to_owned());
        self.blocking("creating a snapshot", move |inner| {
            let _lease = inner.collector.lease()?;
            let image = inner.catalog.find(&image)?.ok_or(ImageError::NoImage(image))?;
            inner.unpack(&*inner.catalog.content(&image.manifest)?)?;
            inner.snapshots.create(&name, image.id, image.layers)
        })
        .await
    }

    /// Returns the snapshot with this name.
    pub async fn snapshot(&self, name: &str) -> Result<Option<Snapshot>, ImageError> {
        let name = name.to_owned();
        self.blocking("finding a snapshot", move |inner| inner.snapshots.get(&name)).await
    }

    /// Returns all snapshots, sorted by name, including those of earlier processes.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, ImageError> {
        self.blocking("listing snapshots", |inner| inner.snapshots.list()).await
    }

    /// Mounts the snapshot, id-mapped to a user namespace if one is given, and returns the path of the
    /// container's root. If it is mounted already, only returns the path.
    pub async fn mount_snapshot(&self, name: &str, ids: Option<MappedIds>) -> Result<PathBuf, ImageError> {
        let name = name.to_owned();
        self.blocking("mounting a snapshot", move |inner| {
            let snapshot = inner.existing(&name)?;
            snapshot.mount(ids.as_ref()).map(|()| snapshot.target)
        })
        .await
    }

    /// Unmounts the snapshot; written files are kept. Does nothing if it is not mounted.
    pub async fn unmount_snapshot(&self, name: &str) -> Result<(), ImageError> {
        let name = name.to_owned();
        self.blocking("unmounting a snapshot", move |inner| inner.existing(&name)?.unmount()).await
    }

    /// Unmounts and removes the snapshot with all written files. Does nothing if it does not exist.
    pub async fn remove_snapshot(&self, name: &str) -> Result<(), ImageError> {
        let name = name.to_owned();
        self.blocking("removing a snapshot", move |inner| {
            inner.snapshots.remove(&name)?;
            inner.measured.forget(&name);
            inner.snapshots.empty_trash();
            Ok(())
        })
        .await
    }

    /// Returns the bytes and inodes of the container's writable layer, as measured some seconds ago, or longer
    /// ago if the layer is large. `None` while that is not known.
    pub async fn snapshot_usage(&self, name: &str) -> Result<Option<DiskUsage>, ImageError> {
        let wanted = name.to_owned();
        let snapshot = self.blocking("finding a snapshot", move |inner| inner.existing(&wanted)).await?;
        Ok(self.inner.measured.usage(name, move || snapshot.usage()).await)
    }

    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Arc<Inner>) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(|_| ImageError::Panicked(what))?
    }

    pub(super) async fn lease(&self) -> Result<Lease, ImageError> {
        self.blocking("locking the image store", |inner| inner.collector.lease()).await
    }
}

impl Inner {
    fn existing(&self, name: &str) -> Result<Snapshot, ImageError> {
        self.snapshots.get(name)?.ok_or_else(|| ImageError::NoSnapshot(name.to_owned()))
    }

    /// Unpacks every layer that is not unpacked yet. The caller must hold a lease.
    pub fn unpack(self: &Arc<Self>, content: &Content) -> Result<(), ImageError> {
        for at in 0..content.layers.len() {
            self.unpack_layer(content, at)?;
        }
        self.sync_later();
        Ok(())
    }

    /// Unpacks one layer; those below it must be unpacked.
    pub fn unpack_layer(&self, content: &Content, at: usize) -> Result<(), ImageError> {
        let chain = content.chain_ids[at];
        if self.layers.has(&chain) {
            return Ok(());
        }
        let _turn = self.locks.blocking_lock(chain);
        let layer = content.layers[at].digest;
        let blob = self.content.open_blob(&layer)?;
        self.layers
            .unpack(&content.chain_ids[..at], content.diff_ids[at], blob, self.limits)
            .map(drop)
            .map_err(|source| ImageError::Layer { layer, source })
    }

    /// Syncs unpacked files to disk in the background. Until then, they would be unpacked again from their
    /// blobs after a crash of the machine.
    pub fn sync_later(self: &Arc<Self>) {
        if self.syncing.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = self.clone();
        let thread = std::thread::Builder::new().name("image-sync".into()).spawn(move || {
            inner.syncing.store(false, Ordering::SeqCst);
            if let Err(error) = inner.layers.sync() {
                tracing::warn!(%error, "cannot sync image layers to disk");
            }
        });
        if thread.is_err() {
            self.syncing.store(false, Ordering::SeqCst);
        }
    }

    fn fs_info(self: &Arc<Self>) -> Result<FsInfo, ImageError> {
        let mut info = fs_info(&self.root).map_err(ImageError::io("stat", &self.root))?;
        for (_, bytes) in self.content.list()? {
            info.used += DiskUsage { bytes, inodes: 1 };
        }
        let layers = self.layers.list().map_err(|e| ImageError::Io {
            action: "list the layers in",
            path: self.root.clone(),
            source: std::io::Error::other(e),
        })?;
        for meta in layers.iter().filter_map(|chain| self.layers.meta(chain)) {
            info.used += DiskUsage { bytes: meta.bytes, inodes: meta.inodes };
        }
        Ok(info)
    }
}
