//! The record beside a volume's folder, from which it is unpublished after a restart: `vol_data.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::error::{Error, Result};
use super::super::mounts;
use super::identity::VolumeId;

const FILE: &str = "vol_data.json";
/// The size above which a record is refused, in bytes.
const MAX_BYTES: u64 = 1 << 20;
const EPHEMERAL: &str = "Ephemeral";
const PERSISTENT: &str = "Persistent";

/// The record of a published or staged volume, with upstream's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub volume: VolumeId,
    /// The name of the PersistentVolume, or of the inline volume in its pod; `None` in the record of a staged
    /// volume.
    pub spec_name: Option<String>,
    pub node_name: String,
    pub ephemeral: bool,
}

impl Record {
    fn fields(&self) -> BTreeMap<&'static str, String> {
        let volume = &self.volume;
        let mut fields =
            BTreeMap::from([("driverName", volume.driver.clone()), ("volumeHandle", volume.handle.clone())]);
        if let Some(name) = &self.spec_name {
            let mode = if self.ephemeral { EPHEMERAL } else { PERSISTENT };
            fields.insert("specVolID", name.clone());
            fields.insert("nodeName", self.node_name.clone());
            fields.insert("attachmentID", volume.attachment_name(&self.node_name));
            fields.insert("volumeLifecycleMode", mode.to_owned());
        }
        fields
    }

    /// Writes the record into the folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_vec(&self.fields())
            .map_err(|e| Error::failed(format!("kubernetes.io/csi: failed to save volume data file: {e}")))?;
        fs::write(&path, text).map_err(Error::file("write", &path))
    }

    /// Reads the record in the folder, if one exists.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let meta = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(Error::file("read", &path))?,
        };
        if meta.len() > MAX_BYTES {
            return Err(Error::failed(format!("{} is too long", path.display())));
        }
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        let mut fields: BTreeMap<String, String> = serde_json::from_slice(&text).map_err(|e| {
            let path = path.display();
            Error::failed(format!("kubernetes.io/csi: failed to parse volume data file [{path}]: {e}"))
        })?;
        let mut take = |name: &str| fields.remove(name).unwrap_or_default();
        let volume = VolumeId { driver: take("driverName"), handle: take("volumeHandle") };
        if !volume.is_safe() {
            return Err(Error::failed(format!("{} names no volume", path.display())));
        }
        Ok(Some(Self {
            volume,
            spec_name: Some(take("specVolID")).filter(|name| !name.is_empty()),
            node_name: take("nodeName"),
            ephemeral: take("volumeLifecycleMode") == EPHEMERAL,
        }))
    }
}

/// Removes the folder that was given to a driver, the record beside it, and the record's folder. Does nothing
/// while something is mounted there.
pub fn remove(mount: &Path) -> Result<()> {
    if mounts::mounted_at(mount)?.is_some() {
        return Ok(());
    }
    let gone = |result: io::Result<()>, path: &Path| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    };
    // The target of a block volume is a file.
    let removed = match fs::symlink_metadata(mount) {
        Ok(meta) if !meta.is_dir() => fs::remove_file(mount),
        _ => fs::remove_dir(mount),
    };
    gone(removed, mount)?;
    let Some(folder) = mount.parent() else { return Ok(()) };
    let file = folder.join(FILE);
    gone(fs::remove_file(&file), &file)?;
    gone(fs::remove_dir(folder), folder)
}

/// Returns the records in `folder/*`, with their folders. Records that cannot be read are logged and left out.
pub fn below(folder: &Path) -> Vec<(PathBuf, Record)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let records = entries.filter_map(|entry| match Record::load(&entry.path()) {
        Ok(record) => Some((entry.path(), record?)),
        Err(error) => {
            tracing::warn!(%error, "a volume's record cannot be read");
            None
        }
    });
    records.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again() {
        let root = std::env::temp_dir().join(format!("knarr-csi-{:016x}", fastrand::u64(..)));
        let folder = root.join("v");
        fs::create_dir_all(folder.join("mount")).unwrap();
        assert_eq!(Record::load(&folder).unwrap(), None);
        let staged = Record {
            volume: VolumeId::new("d", "h"),
            spec_name: None,
            node_name: String::new(),
            ephemeral: false,
        };
        staged.save(&folder).unwrap();
        assert_eq!(Record::load(&folder).unwrap().as_ref(), Some(&staged));
        let inline =
            Record { spec_name: Some("data".into()), node_name: "n".into(), ephemeral: true, ..staged };
        inline.save(&folder).unwrap();
        assert_eq!(below(&root), [(folder.clone(), inline)]);
        fs::write(folder.join("mount/kept"), "").unwrap();
        assert!(remove(&folder.join("mount")).is_err());
        fs::remove_file(folder.join("mount/kept")).unwrap();
        remove(&folder.join("mount")).unwrap();
        remove(&folder.join("mount")).unwrap();
        assert!(!folder.exists());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(FILE), r#"{"driverName": "../..", "volumeHandle": "h"}"#).unwrap();
        assert!(Record::load(&folder).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
