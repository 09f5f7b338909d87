//! Disk usage of a folder, and the capacity of its file system.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Disk space, in bytes of allocated blocks and in inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub bytes: u64,
    pub inodes: u64,
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: DiskUsage) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

/// The file system that holds the images, and the part of it that they use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsInfo {
    pub capacity_bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    /// The usage of blobs and unpacked layers; the containers' writable layers are counted separately.
    pub used: DiskUsage,
}

/// The limits of a walk and of the memory that it needs.
#[derive(Debug, Clone, Copy)]
struct Limits {
    entries: u64,
    /// Bytes of the paths of folders that are still to be read.
    path_bytes: usize,
    /// The number of remembered files with several links. Of further ones, each link counts as its share of the
    /// file.
    links: usize,
}

const LIMITS: Limits = Limits { entries: 2_000_000, path_bytes: 16 << 20, links: 1 << 18 };

/// Walks `dir` without leaving it or its file system; files with several links count once. Files that are
/// removed during the walk are not counted, and neither are those beyond two million.
pub fn disk_usage(dir: &Path) -> io::Result<DiskUsage> {
    walk(dir, LIMITS)
}

fn walk(dir: &Path, limits: Limits) -> io::Result<DiskUsage> {
    let root = fs::symlink_metadata(dir)?;
    let mut usage = DiskUsage { bytes: root.blocks() * 512, inodes: 1 };
    let mut linked = HashSet::new();
    let (mut seen, mut path_bytes) = (0, 0);
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        path_bytes -= dir.as_os_str().len().min(path_bytes);
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > limits.entries {
                return Ok(usage);
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != root.dev() {
                continue;
            }
            let mut part = DiskUsage { bytes: metadata.blocks() * 512, inodes: 1 };
            if metadata.nlink() > 1 && !metadata.is_dir() {
                if linked.contains(&metadata.ino()) {
                    continue;
                } else if linked.len() < limits.links {
                    linked.insert(metadata.ino());
                } else {
                    part.bytes /= metadata.nlink();
                }
            }
            usage += part;
            let path = entry.path();
            let room = path_bytes + path.as_os_str().len() <= limits.path_bytes;
            if metadata.is_dir() && room {
                path_bytes += path.as_os_str().len();
                todo.push(path);
            }
        }
    }
    Ok(usage)
}

/// Returns the capacity of the file system, with `used` still empty.
pub fn fs_info(path: &Path) -> io::Result<FsInfo> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let fragment = stat.fragment_size();
    Ok(FsInfo {
        capacity_bytes: stat.blocks() * fragment,
        available_bytes: stat.blocks_available() * fragment,
        inodes: stat.files(),
        inodes_free: stat.files_available(),
        used: DiskUsage::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::fixture::TempDir;

    #[test]
    fn hard_links_count_once() {
        let dir = TempDir::new();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("a"), vec![1; 10_000]).unwrap();
        fs::hard_link(dir.path().join("a"), dir.path().join("d/b")).unwrap();
        let usage = disk_usage(dir.path()).unwrap();
        assert_eq!(usage.inodes, 3);
        assert!((10_000..40_000).contains(&usage.bytes), "{usage:?}");
        let few = Limits { links: 0, ..LIMITS };
        let parts = walk(dir.path(), few).unwrap();
        assert_eq!(parts.bytes, usage.bytes, "each link counts as half");
        let info = fs_info(dir.path()).unwrap();
        assert!(info.capacity_bytes > info.available_bytes && info.available_bytes > 0);
    }

    #[test]
    fn walks_have_an_end() {
        let dir = TempDir::new();
        for n in 0..100 {
            fs::create_dir(dir.path().join(n.to_string())).unwrap();
            fs::write(dir.path().join(n.to_string()).join("file"), "x").unwrap();
        }
        let inodes = |limits| walk(dir.path(), limits).unwrap().inodes;
        assert_eq!(inodes(LIMITS), 201);
        assert_eq!(inodes(Limits { entries: 50, ..LIMITS }), 51);
        let one_folder = dir.path().join("00").as_os_str().len();
        assert_eq!(inodes(Limits { path_bytes: one_folder, ..LIMITS }), 102);
    }
}
