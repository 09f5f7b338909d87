//! Test fixtures: temporary folders and small images.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::config::{ConfigBlob, ImageConfig, RootFs};
use super::digest::Digest;
use super::oci::{DOCKER_MANIFEST, Descriptor, Manifest, OCI_CONFIG, OCI_LAYER_TAR, Platform};

/// A folder that is removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("knarr-images-{}-{serial}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A store's syncing thread may still create a marker file inside.
        for _ in 0..50 {
            match std::fs::remove_dir_all(&self.0) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// A tar under construction.
pub struct Tar(tar::Builder<Vec<u8>>);

impl Tar {
    pub fn new() -> Tar {
        Tar(tar::Builder::new(Vec::new()))
    }

    fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_mtime(1_000_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header
    }

    /// Adds an entry with the name as given, dots and slashes included.
    fn put(mut self, mut header: tar::Header, name: &str, content: &[u8]) -> Tar {
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub fn file(self, name: &str, content: impl AsRef<[u8]>) -> Tar {
        self.file_mode(name, content, 0o644)
    }

    pub fn file_mode(self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> Tar {
        let content = content.as_ref();
        self.put(Tar::header(tar::EntryType::Regular, mode, content.len()), name, content)
    }

    pub fn owned(self, name: &str, uid: u64, gid: u64, mode: u32) -> Tar {
        let mut header = Tar::header(tar::EntryType::Regular, mode, 0);
        header.set_uid(uid);
        header.set_gid(gid);
        self.put(header, name, b"")
    }

    pub fn dir(self, name: &str, mode: u32) -> Tar {
        self.put(Tar::header(tar::EntryType::Directory, mode, 0), name, b"")
    }

    pub fn link(self, kind: tar::EntryType, name: &str, target: &str) -> Tar {
        let mut header = Tar::header(kind, 0o777, 0);
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        self.put(header, name, b"")
    }

    pub fn symlink(self, name: &str, target: &str) -> Tar {
        self.link(tar::EntryType::Symlink, name, target)
    }

    pub fn hard_link(self, name: &str, target: &str) -> Tar {
        self.link(tar::EntryType::Link, name, target)
    }

    pub fn device(self, kind: tar::EntryType, name: &str, major: u32, minor: u32) -> Tar {
        let mut header = Tar::header(kind, 0o620, 0);
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
        self.put(header, name, b"")
    }

    pub fn xattr(mut self, name: &str, value: &[u8]) -> Tar {
        let key = format!("SCHILY.xattr.{name}");
        self.0.append_pax_extensions([(key.as_str(), value)]).unwrap();
        self
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// An image in memory: its blobs, and the descriptor of its manifest.
pub struct TestImage {
    pub blobs: Vec<(Digest, Vec<u8>)>,
    pub manifest: Descriptor,
    pub id: Digest,
}

impl TestImage {
    /// `layers` are pairs (stored bytes, uncompressed bytes).
    pub fn new(layers: &[(Vec<u8>, Vec<u8>)], config: ImageConfig) -> TestImage {
        let platform = Platform::host();
        let blob = ConfigBlob {
            created: None,
            architecture: platform.architecture,
            os: platform.os,
            variant: platform.variant,
            config,
            rootfs: RootFs {
                kind: "layers".into(),
                diff_ids: layers.iter().map(|(_, plain)| Digest::of(plain)).collect(),
            },
        };
        let config = serde_json::to_vec(&blob).unwrap();
        let describe =
            |media: &str, bytes: &[u8]| Descriptor::new(media, Digest::of(bytes), bytes.len() as u64);
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(DOCKER_MANIFEST.into()),
            config: describe(OCI_CONFIG, &config),
            layers: layers.iter().map(|(stored, _)| describe(OCI_LAYER_TAR, stored)).collect(),
        };
        let json = serde_json::to_vec(&manifest).unwrap();
        let mut blobs: Vec<_> =
            layers.iter().map(|(stored, _)| (Digest::of(stored), stored.clone())).collect();
        let id = Digest::of(&config);
        blobs.push((id, config));
        let manifest = describe(DOCKER_MANIFEST, &json);
        blobs.push((manifest.digest, json));
        TestImage { blobs, manifest, id }
    }

    pub fn plain(layers: &[Vec<u8>]) -> TestImage {
        let layers: Vec<_> = layers.iter().map(|layer| (layer.clone(), layer.clone())).collect();
        TestImage::new(&layers, ImageConfig::default())
    }

    /// Adds the blobs to an OCI layout archive.
    pub fn add_to(&self, mut tar: Tar) -> Tar {
        for (digest, bytes) in &self.blobs {
            tar = tar.file(&format!("blobs/sha256/{}", digest.hex()), bytes);
        }
        tar
    }

    /// Returns an OCI layout archive with only this image.
    pub fn oci_archive(&self, name: &str) -> Vec<u8> {
        let index = serde_json::json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": self.manifest.media_type, "digest": self.manifest.digest,
                "size": self.manifest.size, "annotations": {"io.containerd.image.name": name},
            }],
        });
        self.add_to(Tar::new().file("oci-layout", "{}").file("index.json", index.to_string())).bytes()
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Returns whether the test runs as root. Layers contain owners, devices and whiteouts, which only root can
/// create.
pub fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}
