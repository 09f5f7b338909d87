//! A target for image archives whose one layer is the input, imported and unpacked into a temporary folder.

use std::path::PathBuf;

use knarr_runtime::images::{ImageStore, ImportOptions};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use crate::Target;

/// The largest layer: a compressed one may unpack to far more.
const MOST: usize = 16 << 10;

struct Store {
    runtime: Runtime,
    store: ImageStore,
    folder: PathBuf,
}

impl Store {
    fn open() -> Option<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
        let folder = std::env::temp_dir().join(format!("knarr-fuzz-images-{}", std::process::id()));
        let store = runtime.block_on(ImageStore::open(&folder)).ok()?;
        Some(Self { runtime, store, folder })
    }

    fn import(&self, archive: Vec<u8>) {
        self.runtime.block_on(async {
            let imported =
                self.store.import_from(std::io::Cursor::new(archive), ImportOptions::default()).await;
            if imported.is_ok() {
                let _ = self.store.remove(NAME).await;
            }
            let _ = self.store.collect().await;
        });
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const NAME: &str = "knarr.local/fuzz:1";

/// Builds an archive in the form of `docker save`.
fn archive(layer: &[u8]) -> std::io::Result<Vec<u8>> {
    let diff_id: String = Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]);
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in [
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", layer),
        ("manifest.json", manifest.to_string().as_bytes()),
    ] {
        append(&mut tar, tar::EntryType::Regular, name, None, content)?;
    }
    tar.into_inner()
}

fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    kind: tar::EntryType,
    name: &str,
    link: Option<&str>,
    content: &[u8],
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    if let Some(link) = link {
        header.set_link_name_literal(link)?;
    }
    header.set_cksum();
    tar.append_data(&mut header, name, content)
}

/// Returns layers with each kind of entry that unpacking knows.
fn corpus() -> std::io::Result<Vec<Vec<u8>>> {
    use tar::EntryType as Kind;
    let mut plain = tar::Builder::new(Vec::new());
    append(&mut plain, Kind::Directory, "d/", None, b"")?;
    append(&mut plain, Kind::Regular, "d/f", None, b"content")?;
    append(&mut plain, Kind::Link, "d/hard", Some("d/f"), b"")?;
    append(&mut plain, Kind::Symlink, "d/link", Some("../../etc"), b"")?;
    append(&mut plain, Kind::Char, "d/null", None, b"")?;
    append(&mut plain, Kind::Fifo, "d/fifo", None, b"")?;
    append(&mut plain, Kind::Regular, "d/link/passwd", None, b"x")?;
    let mut whiteouts = tar::Builder::new(Vec::new());
    append(&mut whiteouts, Kind::Regular, "a/.wh.b", None, b"")?;
    append(&mut whiteouts, Kind::Regular, "a/.wh..wh..opq", None, b"")?;
    append(&mut whiteouts, Kind::XHeader, "x", None, b"30 SCHILY.xattr.user.a=12345\n20 path=very/long/n\n")?;
    append(&mut whiteouts, Kind::Regular, "f", None, b"")?;
    Ok(vec![plain.into_inner()?, whiteouts.into_inner()?])
}

pub fn all() -> Vec<Target> {
    let store = std::cell::OnceCell::new();
    let run = move |input: &[u8]| {
        let input = &input[..input.len().min(MOST)];
        if let (Some(store), Ok(archive)) = (store.get_or_init(Store::open), archive(input)) {
            store.import(archive);
        }
    };
    vec![Target { name: "layer", corpus: corpus().unwrap_or_default(), run: Box::new(run) }]
}
