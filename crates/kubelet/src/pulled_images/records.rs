//! The records of image pulls on disk, in the format of upstream's kubelet.
//!
//! ```text
//! DIR/image_manager/pulling/sha256-<of the image's name>    ImagePullIntent
//! DIR/image_manager/pulled/sha256-<of the image's id>       ImagePulledRecord
//! ```
//!
//! Each file is durable before the call that writes it returns: if a record were lost in a power failure, a
//! private image would count as preloaded.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

const VERSIONS: [&str; 2] = ["kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// Records have a few kilobytes; a larger file was not written by the kubelet.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot parse {}: {reason}", path.display())]
    Parse { path: PathBuf, reason: String },
}

/// A pull that has begun, by the `image` of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullIntent {
    pub image: String,
}

/// The credentials by which an image was pulled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePulledRecord {
    pub last_updated_time: Time,
    /// The runtime's id of the image.
    pub image_ref: String,
    /// By repository: `host/path`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

/// Which pods may use an image without pulling it. If all fields are empty, none may.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullCredentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<ImagePullSecret>,
    /// Whether every pod of the node may use the image, as it was pulled without credentials of the pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A Secret, and the hash of its credential that the registry accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImagePullSecret {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The SHA-256 in hexadecimal.
    pub credential_hash: String,
}

/// Reads and writes the records. All calls block.
#[derive(Debug, Clone)]
pub struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
}

impl Records {
    pub fn new(kubelet_dir: &Path) -> Self {
        let root = kubelet_dir.join("image_manager");
        Self { pulling: root.join("pulling"), pulled: root.join("pulled") }
    }

    pub fn write_intent(&self, image: &str) -> Result<(), RecordError> {
        let intent = ImagePullIntent { image: image.to_owned() };
        write(&self.pulling, &file_name(image), "ImagePullIntent", &intent)
    }

    /// Returns whether an intent exists, readable or not.
    pub fn has_intent(&self, image: &str) -> Result<bool, RecordError> {
        let path = self.pulling.join(file_name(image));
        path.try_exists().map_err(file_error("look for", &path))
    }

    pub fn delete_intent(&self, image: &str) -> Result<(), RecordError> {
        delete(&self.pulling.join(file_name(image)))
    }

    /// Returns the intents; those that cannot be read are logged and left out.
    pub fn intents(&self) -> Result<Vec<ImagePullIntent>, RecordError> {
        list(&self.pulling, "ImagePullIntent")
    }

    pub fn write_record(&self, record: &ImagePulledRecord) -> Result<(), RecordError> {
        write(&self.pulled, &file_name(&record.image_ref), "ImagePulledRecord", record)
    }

    /// Returns the record of an image, or an error if it cannot be read.
    pub fn record(&self, image_ref: &str) -> Result<Option<ImagePulledRecord>, RecordError> {
        let path = self.pulled.join(file_name(image_ref));
        let record: Option<ImagePulledRecord> = read(&path, "ImagePulledRecord")?;
        Ok(record.filter(|record| record.image_ref == image_ref))
    }

    pub fn records(&self) -> Result<Vec<ImagePulledRecord>, RecordError> {
        list(&self.pulled, "ImagePulledRecord")
    }

    pub fn delete_record(&self, image_ref: &str) -> Result<(), RecordError> {
        delete(&self.pulled.join(file_name(image_ref)))
    }
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    let path = path.to_owned();
    move |source| RecordError::File { what, path, source }
}

pub(super) fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_name(of: &str) -> String {
    format!("sha256-{}", hex_sha256(of.as_bytes()))
}

fn write(dir: &Path, name: &str, kind: &str, content: &impl Serialize) -> Result<(), RecordError> {
    let path = dir.join(name);
    let unreadable =
        |error: serde_json::Error| RecordError::Parse { path: path.clone(), reason: error.to_string() };
    let mut value = serde_json::to_value(content).map_err(unreadable)?;
    value["kind"] = Value::from(kind);
    value["apiVersion"] = Value::from(VERSIONS[0]);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(file_error("create", dir))?;
    let new = path.with_extension("tmp");
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(value.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    })();
    written.map_err(file_error("write", &path))
}

fn delete(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", path)(error)),
        _ => Ok(()),
    }
}

fn read<T: DeserializeOwned>(path: &Path, kind: &str) -> Result<Option<T>, RecordError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error("read", path)(error)),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES), &mut bytes)
        .map_err(file_error("read", path))?;
    let wrong = |reason: String| RecordError::Parse { path: path.to_owned(), reason };
    let mut value: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let fields = value.as_object_mut().ok_or_else(|| wrong("not an object".to_owned()))?;
    let (found, version) = (fields.remove("kind"), fields.remove("apiVersion"));
    let known = VERSIONS.iter().any(|known| version.as_ref().is_some_and(|version| version == known));
    if found.is_none_or(|found| found != kind) || !known {
        return Err(wrong(format!("not of kind {kind}")));
    }
    serde_json::from_value(value).map(Some).map_err(|error| wrong(error.to_string()))
}

fn list<T: DeserializeOwned>(dir: &Path, kind: &str) -> Result<Vec<T>, RecordError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("list", dir)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(file_error("list", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.starts_with("sha256-") || name.ends_with(".tmp") {
            continue;
        }
        match read(&path, kind) {
            Ok(record) => found.extend(record),
            Err(error) => tracing::warn!(%error, "skipped a record of image pulls that cannot be read"),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn records_are_files_as_upstreams_kubelet_writes_them() {
        let dir = super::super::tests::Folder::new();
        let records = Records::new(&dir.0);
        records.write_intent("busybox").unwrap();
        assert!(records.has_intent("busybox").unwrap() && !records.has_intent("busybox:1").unwrap());
        let path = dir.0.join("image_manager/pulling").join(format!("sha256-{}", hex_sha256(b"busybox")));
        let text: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let wanted = serde_json::json!(
            {"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": "busybox"}
        );
        assert_eq!(text, wanted);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(mode(&dir.0.join("image_manager")), 0o700);

        // The form of upstream's test data, in both versions.
        for version in ["v1alpha1", "v1beta1"] {
            let text = format!(
                r#"{{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/{version}","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"ref","credentialMapping":{{"docker.io/a/b":{{"kubernetesSecrets":[{{"uid":"u","namespace":"default","name":"s","credentialHash":"h"}}]}},"docker.io/a/c":{{"nodePodsAccessible":true}}}}}}"#
            );
            fs::create_dir_all(dir.0.join("image_manager/pulled")).unwrap();
            fs::write(dir.0.join("image_manager/pulled").join(file_name("ref")), text).unwrap();
            let record = records.record("ref").unwrap().unwrap();
            assert_eq!(record.credential_mapping["docker.io/a/b"].kubernetes_secrets[0].name, "s");
            assert!(record.credential_mapping["docker.io/a/c"].node_pods_accessible);
            records.write_record(&record).unwrap();
            assert_eq!(records.records().unwrap(), [record]);
        }
        records.delete_record("ref").unwrap();
        assert_eq!(records.record("ref").unwrap(), None);
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        let dir = super::super::tests::Folder::new();
        let records = Records::new(&dir.0);
        let path = dir.0.join("image_manager/pulled").join(file_name("ref"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for text in [
            "",
            "[]",
            "{}",
            r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"x"}"#,
        ] {
            fs::write(&path, text).unwrap();
            assert!(matches!(records.record("ref"), Err(RecordError::Parse { .. })), "{text}");
        }
    }
}
