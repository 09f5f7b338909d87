//! Blobs on disk under `blobs/sha256/`: written to a temporary file, verified, synced and then renamed into
//! place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::digest::{Digest, Hasher};
use super::error::ContentError;

/// Copy buffer for large content.
pub(super) const COPY_BUFFER_BYTES: usize = 256 << 10;

/// A content-addressed store. Clones share it. All methods block.
#[derive(Clone, Debug)]
pub struct ContentStore {
    blobs: Arc<PathBuf>,
    ingest: Arc<PathBuf>,
}

impl ContentStore {
    /// Opens or creates `root/blobs/sha256` and `root/ingest`.
    pub fn open(root: &Path) -> Result<ContentStore, ContentError> {
        let blobs = root.join("blobs").join("sha256");
        let ingest = root.join("ingest");
        for dir in [&blobs, &ingest] {
            fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        }
        Ok(ContentStore { blobs: Arc::new(blobs), ingest: Arc::new(ingest) })
    }

    /// Returns the path of a blob, whether or not it exists.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.blobs.join(digest.hex())
    }

    /// Returns the size in bytes; `None` if the blob is missing.
    pub fn size(&self, digest: &Digest) -> Option<u64> {
        fs::metadata(self.blob_path(digest)).ok().map(|m| m.len())
    }

    pub fn has(&self, digest: &Digest) -> bool {
        self.size(digest).is_some()
    }

    /// Opens a blob without verifying it.
    pub fn open_blob(&self, digest: &Digest) -> Result<File, ContentError> {
        let path = self.blob_path(digest);
        File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ContentError::Missing(*digest),
            _ => ContentError::Io { action: "open", path, source },
        })
    }

    /// Reads a small blob as a whole and verifies its digest.
    pub fn read(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ContentError> {
        let mut file = self.open_blob(digest)?;
        let path = self.blob_path(digest);
        let size = file.metadata().map_err(io_error("stat", &path))?.len();
        if size > limit {
            return Err(ContentError::TooLarge { digest: *digest, size, limit });
        }
        let mut bytes = Vec::with_capacity(size as usize);
        Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes).map_err(io_error("read", &path))?;
        let actual = Digest::of(&bytes);
        if actual != *digest {
            return Err(ContentError::Mismatch { expected: *digest, actual });
        }
        Ok(bytes)
    }

    /// Stores a small blob; writes nothing if the store already has it.
    pub fn write(&self, bytes: &[u8]) -> Result<Digest, ContentError> {
        let digest = Digest::of(bytes);
        if !self.has(&digest) {
            let mut ingest = self.ingest()?;
            ingest.append(bytes)?;
            ingest.commit(Some(digest), None)?;
        }
        Ok(digest)
    }

    /// Starts writing a blob whose digest may not be known yet.
    pub fn ingest(&self) -> Result<Ingest, ContentError> {
        let (path, file) = create_unique(&self.ingest, "blob", |path| {
            OpenOptions::new().write(true).create_new(true).open(path)
        })
        .map_err(io_error("create a file in", &self.ingest))?;
        Ok(Ingest { blobs: self.blobs.clone(), path, file, hasher: Some(Hasher::new()), kept: false })
    }

    /// Removes a blob and returns its size; 0 if it does not exist.
    pub fn remove(&self, digest: &Digest) -> Result<u64, ContentError> {
        let path = self.blob_path(digest);
        let size = self.size(digest).unwrap_or(0);
        match fs::remove_file(&path) {
            Ok(()) => Ok(size),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(source) => Err(ContentError::Io { action: "remove", path, source }),
        }
    }

    /// Returns every blob with its size, in digest order; skips names that are not digests.
    pub fn list(&self) -> Result<Vec<(Digest, u64)>, ContentError> {
        let mut out = Vec::new();
        for entry in fs::read_dir(&*self.blobs).map_err(io_error("list", &self.blobs))? {
            let entry = entry.map_err(io_error("list", &self.blobs))?;
            let Some(digest) = entry.file_name().to_str().and_then(|n| Digest::from_hex(n).ok()) else {
                continue;
            };
            // A blob may be removed during the listing.
            if let Ok(metadata) = entry.metadata() {
                out.push((digest, metadata.len()));
            }
        }
        out.sort();
        Ok(out)
    }

    /// The folder for unfinished files, which are renamed into place later; on the same file system as the
    /// store.
    pub fn ingest_dir(&self) -> &Path {
        &self.ingest
    }
}

/// A blob being written. Dropping it without [`Ingest::commit`] removes what was written.
#[derive(Debug)]
pub struct Ingest {
    blobs: Arc<PathBuf>,
    path: PathBuf,
    file: File,
    hasher: Option<Hasher>,
    kept: bool,
}

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hasher({} bytes)", self.bytes())
    }
}

impl Ingest {
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ContentError> {
        self.file.write_all(bytes).map_err(io_error("write", &self.path))?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }

    pub fn written(&self) -> u64 {
        self.hasher.as_ref().map_or(0, Hasher::bytes)
    }

    /// Discards what was written so far, to start again.
    pub fn reset(&mut self) -> Result<(), ContentError> {
        use std::io::Seek;
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(io_error("truncate", &self.path))?;
        self.hasher = Some(Hasher::new());
        Ok(())
    }

    /// Verifies, syncs and renames the blob into place. The blob is durable when this returns.
    pub fn commit(
        mut self,
        expected: Option<Digest>,
        size: Option<u64>,
    ) -> Result<(Digest, u64), ContentError> {
        let hasher = self.hasher.take().unwrap_or_default();
        let bytes = hasher.bytes();
        if let Some(expected) = size.filter(|expected| *expected != bytes) {
            return Err(ContentError::Size { expected, actual: bytes });
        }
        let digest = hasher.finish();
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(ContentError::Mismatch { expected, actual: digest });
        }
        let target = self.blobs.join(digest.hex());
        self.file.sync_data().map_err(io_error("sync", &self.path))?;
        fs::rename(&self.path, &target).map_err(io_error("rename into place", &target))?;
        self.kept = true;
        sync_dir(&self.blobs).map_err(io_error("sync", &self.blobs))?;
        Ok((digest, bytes))
    }
}

impl Write for Ingest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes[..n]);
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        if !self.kept {
            // A file that is left behind is removed at the next open.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a file with a unique name in `dir`, also among processes: `create` must fail if the name exists.
pub(super) fn create_unique<T>(
    dir: &Path,
    prefix: &str,
    create: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    const ATTEMPTS: usize = 1000;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{prefix}-{}-{serial}", std::process::id()));
        match create(&path) {
            Ok(value) => return Ok((path, value)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into()))
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces a file so that readers, also after a crash, see either the old or the new content as a whole.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let (temp, mut file) =
        create_unique(dir, ".new", |path| OpenOptions::new().write(true).create_new(true).open(path))?;
    let done = file
        .write_all(bytes)
        .and_then(|()| file.sync_data())
        .and_then(|()| fs::rename(&temp, path))
        .and_then(|()| sync_dir(dir));
    if done.is_err() {
        let _ = fs::remove_file(&temp);
    }
    done
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ContentError {
    let path = path.to_owned();
    move |source| ContentError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::fixture::TempDir;

    #[test]
    fn a_blob_appears_only_when_it_is_verified() {
        let dir = TempDir::new();
        let store = ContentStore::open(dir.path()).unwrap();
        let digest = store.write(b"hello").unwrap();
        assert_eq!(store.read(&digest, 100).unwrap(), b"hello");
        assert!(matches!(store.read(&digest, 4), Err(ContentError::TooLarge { .. })));

        let mut ingest = store.ingest().unwrap();
        ingest.append(b"bad").unwrap();
        let wanted = Digest::of(b"good");
        assert!(matches!(ingest.commit(Some(wanted), None), Err(ContentError::Mismatch { .. })));
        let mut ingest = store.ingest().unwrap();
        ingest.append(b"good").unwrap();
        assert!(matches!(ingest.commit(Some(wanted), Some(5)), Err(ContentError::Size { .. })));
        assert!(!store.has(&wanted));
        assert_eq!(fs::read_dir(store.ingest_dir()).unwrap().count(), 0, "nothing is left behind");
        assert_eq!(store.list().unwrap(), vec![(digest, 5)]);
    }

    #[test]
    fn a_damaged_blob_is_noticed() {
        let dir = TempDir::new();
        let store = ContentStore::open(dir.path()).unwrap();
        let digest = store.write(b"hello").unwrap();
        fs::write(store.blob_path(&digest), b"hellO").unwrap();
        assert!(matches!(store.read(&digest, 100), Err(ContentError::Mismatch { .. })));
        store.remove(&digest).unwrap();
        assert!(matches!(store.read(&digest, 100), Err(ContentError::Missing(_))));
        assert_eq!(store.remove(&digest).unwrap(), 0);
    }
}
