//! `hostPath` volumes: a path of the node.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::error::{Error, Result};
use super::plugin::{Ready, SetUp, VolumePlugin, blocking};

pub struct HostPathPlugin;

#[async_trait]
impl VolumePlugin for HostPathPlugin {
    fn name(&self) -> &'static str {
        "host-path"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.host_path.is_some()
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let Some(source) = task.volume.host_path.clone() else {
            return Err(Error::failed("spec does not reference an HostPath volume type"));
        };
        let path = PathBuf::from(source.path);
        let ready = Ready::at(&path);
        let wanted = source.type_.unwrap_or_default();
        blocking(move || prepare(&path, &wanted)).await?;
        Ok(ready)
    }
}

/// Checks that `path` has the type `wanted`, and creates it if the type ends with `OrCreate`.
pub fn prepare(path: &Path, wanted: &str) -> Result<()> {
    if path.components().any(|c| c == Component::ParentDir) {
        let shown = path.display();
        return Err(Error::failed(format!("invalid HostPath `{shown}`: must not contain '..'")));
    }
    let kind = file_type(path);
    match wanted {
        // An empty type is not checked; a missing folder is created, as container runtimes do.
        "" if matches!(kind, Ok(None)) => make_dir(path),
        "" => Ok(()),
        "DirectoryOrCreate" if matches!(kind, Ok(None)) => make_dir(path),
        "FileOrCreate" if matches!(kind, Ok(None)) => make_file(path),
        "DirectoryOrCreate" | "Directory" => expect(path, kind, "Directory", "directory"),
        "FileOrCreate" | "File" => expect(path, kind, "File", "file"),
        "Socket" => expect(path, kind, "Socket", "socket file"),
        "CharDevice" => expect(path, kind, "CharDevice", "character device"),
        "BlockDevice" => expect(path, kind, "BlockDevice", "block device"),
        other => Err(Error::failed(format!("{other} is an invalid volume type"))),
    }
}

/// Returns the type of a path as `hostPath.type` names it, `None` if it does not exist; links are followed.
fn file_type(path: &Path) -> io::Result<Option<&'static str>> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = meta.file_type();
    Ok(Some(if kind.is_dir() {
        "Directory"
    } else if kind.is_file() {
        "File"
    } else if kind.is_socket() {
        "Socket"
    } else if kind.is_char_device() {
        "CharDevice"
    } else if kind.is_block_device() {
        "BlockDevice"
    } else {
        ""
    }))
}

fn expect(path: &Path, kind: io::Result<Option<&str>>, wanted: &str, word: &str) -> Result<()> {
    let shown = path.display();
    let unknown = match kind {
        Ok(Some(kind)) if kind == wanted => return Ok(()),
        Ok(Some("")) => {
            "only recognise file, directory, socket, block device and character device".to_owned()
        }
        Ok(Some(kind)) => {
            return Err(Error::failed(format!(
                "hostPath type check failed: {shown} is not a {word}, it's a {kind}"
            )));
        }
        Ok(None) => format!("path {:?} does not exist", shown.to_string()),
        Err(error) => error.to_string(),
    };
    Err(Error::failed(format!(
        "hostPath type check failed, {shown} is not a {word}, unable to determine its type: {unknown}"
    )))
}

fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create", path))
}

fn make_file(path: &Path) -> Result<()> {
    let made = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
    made.map(drop).map_err(Error::file("create", path))
}
