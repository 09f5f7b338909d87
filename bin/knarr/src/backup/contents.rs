//! The contents of a backup: the store's keys, the cluster's keys and certificates, and a few other files.

use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use knarr_storage::{Snapshot, damage};

use super::archive::{Manifest, Writer};
use super::seal::Passphrase;
use crate::layout::Layout;
use crate::pki;

pub const ADMIN_KUBECONFIG: &str = "admin.kubeconfig";
/// Where a restore writes the encryption configuration, below the data folder.
pub const ENCRYPTION_CONFIG: &str = "encryption-provider-config.yaml";
/// Keys with which servers mark whose store it is; a restore writes its own marks.
const MARKS: &[u8] = b"/cluster/";
/// How deep folders are followed below `pki/`.
const DEPTH: usize = 4;
/// The largest file that a backup includes.
const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Where the files of a backup are read from.
#[derive(Debug, Clone)]
pub struct Source {
    pub layout: Layout,
    pub node: String,
    /// Whether the store is in etcd.
    pub shared_store: bool,
    /// The file of the server's `--encryption-provider-config`.
    pub encryption_config: Option<PathBuf>,
}

/// Returns whether a key is one of the servers' marks, which no backup contains.
pub fn is_mark(key: &[u8]) -> bool {
    key.starts_with(MARKS)
}

/// The complete contents of a backup.
pub struct Contents {
    manifest: Manifest,
    files: Vec<(String, Vec<u8>)>,
    snapshot: Snapshot,
}

/// Collects the files that belong to a snapshot.
pub fn prepare(source: &Source, mut snapshot: Snapshot, now: Timestamp) -> Result<Contents> {
    snapshot.kvs.retain(|kv| !is_mark(&kv.key));
    if !source.layout.pki().join("ca.key").exists() {
        let root = source.layout.root().display();
        bail!("{root} holds no keys of a cluster: name a server's data folder with --data-dir");
    }
    let _unchanged = pki::lock_to_read(&source.layout.pki())?;
    let files = files(source)?;
    let manifest = Manifest {
        knarr_version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster_identity: pki::identity_in(&source.layout.pki())?,
        node: source.node.clone(),
        store: if source.shared_store { "etcd" } else { "embedded" }.to_owned(),
        revision: snapshot.revision,
        time: now.to_string(),
        keys: snapshot.kvs.len() as u64,
        damaged: snapshot.kvs.iter().filter(|kv| damage(&kv.value).is_some()).count() as u64,
        leases: snapshot.leases.len() as u64,
        files: files.len() as u64,
    };
    Ok(Contents { manifest, files, snapshot })
}

impl Contents {
    /// Writes a complete archive; returns its manifest and the output.
    pub fn write<W: Write>(self, passphrase: Option<&Passphrase>, output: W) -> Result<(Manifest, W)> {
        let write = || -> std::io::Result<W> {
            let mut writer = Writer::new(output, passphrase, &self.manifest)?;
            for (path, content) in &self.files {
                writer.file(path, content)?;
            }
            for (id, ttl_seconds) in &self.snapshot.leases {
                writer.lease(*id, *ttl_seconds)?;
            }
            for kv in &self.snapshot.kvs {
                writer.key(&kv.key, &kv.value, kv.lease)?;
            }
            writer.finish()
        };
        let output = write().context("cannot write the backup")?;
        Ok((self.manifest, output))
    }
}

/// Returns the files by their paths below the data folder.
fn files(source: &Source) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    collect(&source.layout.pki(), "pki", DEPTH, &mut files)?;
    let kubeconfig = source.layout.admin_kubeconfig();
    if kubeconfig.exists() {
        files.push((ADMIN_KUBECONFIG.to_owned(), read(&kubeconfig)?));
    }
    if let Some(path) = &source.encryption_config {
        files.push((ENCRYPTION_CONFIG.to_owned(), read(path)?));
    }
    Ok(files)
}

/// Collects the files of a folder and its subfolders, following links; leaves out temporary files and names
/// that no server uses.
fn collect(folder: &Path, path: &str, depth: usize, files: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let in_folder = || format!("cannot read {}", folder.display());
    let mut entries =
        fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).with_context(in_folder)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.ends_with(".new")) else { continue };
        let path = format!("{path}/{name}");
        let kind = fs::metadata(entry.path()).with_context(in_folder)?;
        if kind.is_dir() {
            if depth == 0 {
                bail!("{} lies deeper than a backup can hold", entry.path().display());
            }
            collect(&entry.path(), &path, depth - 1, files)?;
        } else if kind.is_file() && is_allowed(&path) {
            files.push((path, read(&entry.path())?));
        } else {
            tracing::warn!("{} is not in the backup: it is none of a server's files", entry.path().display());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let read = || -> std::io::Result<Option<Vec<u8>>> {
        if fs::metadata(path)?.len() > FILE_BYTES {
            return Ok(None);
        }
        fs::read(path).map(Some)
    };
    match read().with_context(|| format!("cannot read {}", path.display()))? {
        Some(content) => Ok(content),
        None => bail!("{} is too large for a backup", path.display()),
    }
}

/// Returns whether a backup may contain a file of this path, and a restore may write it.
pub fn is_allowed(path: &str) -> bool {
    if path == ADMIN_KUBECONFIG || path == ENCRYPTION_CONFIG {
        return true;
    }
    let Some(below) = path.strip_prefix("pki/") else { return false };
    let plain = |name: &str| {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
        !name.is_empty() && name.bytes().all(is_plain) && name != "." && name != ".."
    };
    below.split('/').all(plain)
        && below.split('/').count() <= DEPTH + 1
        && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_below_the_data_folder() {
        for (path, allowed) in [
            ("pki/ca.key", true),
            ("pki/front-proxy/ca.crt", true),
            ("admin.kubeconfig", true),
            ("pki/../../etc/passwd", false),
            ("/etc/passwd", false),
            ("pki//ca.key", false),
            ("pki/", false),
            ("pki/.", false),
            ("pki", false),
            ("store/store.redb", false),
            ("pki/a/b/c/d/e/f", false),
            ("pki/a\0b", false),
        ] {
            assert_eq!(is_allowed(path), allowed, "{path}");
        }
    }
}
