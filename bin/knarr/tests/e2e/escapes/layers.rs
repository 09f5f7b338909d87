//! Layers of images with any entry that an archive may have, and archives in the form of `docker save`.

use std::fs::{self, File};
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde_json::json;
use tar::{Builder, EntryType, Header};

/// A layer that is being built.
pub struct Layer(Builder<Vec<u8>>);

impl Layer {
    pub fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    /// Adds an entry with exactly this name: `..` and a leading `/` are kept.
    fn entry(mut self, kind: EntryType, path: &str, target: &str, mode: u32, data: &[u8]) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(data.len() as u64);
        let raw = header.as_ustar_mut().expect("a header of that kind");
        raw.name[..path.len()].copy_from_slice(path.as_bytes());
        raw.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.0.append(&header, data).expect("in memory");
        self
    }

    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, "", mode, b"")
    }

    pub fn file(self, path: &str, mode: u32, data: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, path, "", mode, data.as_ref())
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, target, 0o777, b"")
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, target, 0o644, b"")
    }

    pub fn program(self, path: &str, source: &Path) -> Self {
        let data = fs::read(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
        self.file(path, 0o755, data)
    }

    pub fn done(self) -> Vec<u8> {
        self.0.into_inner().expect("in memory")
    }
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes an archive of images: a name, and the layers from the lowest on.
pub fn save(path: &Path, images: &[(&str, Vec<&[u8]>)]) {
    let mut archive = Builder::new(File::create(path).expect("file"));
    let mut add = |name: &str, data: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(data.len() as u64);
        archive.append_data(&mut header, name, data).expect("file");
    };
    let (mut saved, mut written) = (Vec::new(), Vec::new());
    for (name, layers) in images {
        let sums: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
        for (sum, layer) in sums.iter().zip(layers) {
            if !written.contains(sum) {
                add(&format!("{sum}.tar"), layer);
                written.push(sum.clone());
            }
        }
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            // The user is found by name in the image's own passwd file.
            "config": {"User": "root", "Env": ["LD_PRELOAD=/lib/library.so"]},
            "rootfs": {"type": "layers", "diff_ids": sums.iter().map(|sum| format!("sha256:{sum}")).collect::<Vec<_>>()},
        });
        let config = config.to_string();
        let config_name = format!("{}.json", sha256(config.as_bytes()));
        add(&config_name, config.as_bytes());
        let layers: Vec<String> = sums.iter().map(|sum| format!("{sum}.tar")).collect();
        saved.push(json!({"Config": config_name, "RepoTags": [name], "Layers": layers}));
    }
    add("manifest.json", json!(saved).to_string().as_bytes());
    archive.finish().expect("file");
}
