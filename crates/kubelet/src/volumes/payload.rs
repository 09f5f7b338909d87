//! The files of a configMap, secret, downwardAPI or projected volume, computed without any I/O.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};
use sha2::{Digest, Sha256};

use super::error::{Error, Result};
use super::field_ref;

/// The `defaultMode` if the API server has not set one.
pub const DEFAULT_MODE: i32 = 0o644;
const MAX_PATH_BYTES: usize = 4096;
const MAX_NAME_BYTES: usize = 255;

/// The content, mode and owner of one file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProjection {
    /// Shared by all files that project the same key.
    pub data: Bytes,
    pub mode: u32,
    pub uid: Option<u32>,
}

/// The files of a volume by their path relative to it.
pub type Payload = BTreeMap<String, FileProjection>;

/// More than the objects of a volume can reasonably hold: `items` may project one key many times.
const MAX_BYTES: usize = 32 << 20;
const MAX_FILES: usize = 10_000;
/// The size of the tmpfs of a memory volume: room for two payloads, as old files are removed after the new ones
/// are written, plus a partly filled page per file, and folders.
pub const TMPFS_BYTES: u64 = 2 * (MAX_BYTES + MAX_FILES * (4 << 10)) as u64 + (4 << 20);

/// The bytes and files that a payload may still use. Upstream has no such limits.
pub struct Room {
    bytes: usize,
    files: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: MAX_BYTES, files: MAX_FILES }
    }
}

impl Room {
    fn take(&mut self, file: &FileProjection) -> Result<()> {
        match (self.bytes.checked_sub(file.data.len()), self.files.checked_sub(1)) {
            (Some(bytes), Some(files)) => {
                *self = Self { bytes, files };
                Ok(())
            }
            _ => Err(Error::failed(format!(
                "the volume would have more than {MAX_FILES} files or {MAX_BYTES} bytes"
            ))),
        }
    }

    /// Subtracts all files of one of several sources.
    pub fn take_all(&mut self, payload: &Payload) -> Result<()> {
        payload.values().try_for_each(|file| self.take(file))
    }
}

/// A hash by which payloads are compared.
pub type Fingerprint = [u8; 32];

/// Returns the fingerprint of a payload.
pub fn fingerprint(payload: &Payload) -> Fingerprint {
    let mut hash = Sha256::new();
    for (path, file) in payload {
        let uid = file.uid.map_or(u64::MAX, u64::from);
        for number in [path.len() as u64, file.data.len() as u64, u64::from(file.mode), uid] {
            hash.update(number.to_le_bytes());
        }
        hash.update(path.as_bytes());
        hash.update(&file.data);
    }
    hash.finalize().into()
}

fn mode_bits(mode: Option<i32>, default: i32) -> u32 {
    // Validation allows 0 to 0777; other bits are cut off.
    (mode.unwrap_or(default) as u32) & 0o777
}

fn key_values<'a>(
    all: impl Iterator<Item = (&'a String, &'a [u8])>,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    missing: impl Fn(&str) -> Option<Error>,
) -> Result<Payload> {
    let all = all.map(|(k, v)| (k.as_str(), Bytes::copy_from_slice(v)));
    let all: BTreeMap<&str, Bytes> = all.collect();
    let file = |data: &Bytes, mode| FileProjection { data: data.clone(), mode, uid: None };
    let mut payload = Payload::new();
    match items.filter(|items| !items.is_empty()) {
        None => {
            for (key, data) in all {
                payload.insert(key.to_owned(), file(&data, mode_bits(None, default_mode)));
            }
        }
        Some(items) => {
            for item in items {
                match all.get(item.key.as_str()) {
                    Some(data) => {
                        payload.insert(item.path.clone(), file(data, mode_bits(item.mode, default_mode)));
                    }
                    None => match missing(&item.key) {
                        Some(error) => return Err(error),
                        None => continue,
                    },
                }
            }
        }
    }
    Ok(payload)
}

/// Returns the files of a ConfigMap; with `optional`, items whose key is missing are left out.
pub fn config_map(
    object: &ConfigMap,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
) -> Result<Payload> {
    let binary = object.binary_data.iter().flatten().map(|(k, ByteString(v))| (k, v.as_slice()));
    let text = object.data.iter().flatten().map(|(k, v)| (k, v.as_bytes()));
    let missing = |key: &str| {
        (!optional).then(|| Error::failed(format!("configmap references non-existent config key: {key}")))
    };
    key_values(binary.chain(text), items, default_mode, missing)
}

/// Returns the files of a Secret; with `optional`, items whose key is missing are left out.
pub fn secret(
    object: &Secret,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
) -> Result<Payload> {
    let data = object.data.iter().flatten().map(|(k, ByteString(v))| (k, v.as_slice()));
    let missing =
        |key: &str| (!optional).then(|| Error::failed(format!("references non-existent secret key: {key}")));
    key_values(data, items, default_mode, missing)
}

/// Returns the files for fields of the pod. `allocatable` stands in for limits that containers do not have.
pub fn downward_api(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: i32,
    allocatable: &field_ref::Allocatable,
) -> Result<Payload> {
    let mut payload = Payload::new();
    let mut causes = Vec::new();
    let mut room = Room::default();
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_ref::metadata_field(pod, &field.field_path),
            (None, Some(resource)) => {
                field_ref::find_container(pod, resource.container_name.as_deref().unwrap_or(""))
                    .and_then(|c| field_ref::resource_field(resource, c, allocatable))
            }
            (None, None) => Ok(String::new()),
        };
        match value {
            Ok(text) => {
                let mode = mode_bits(item.mode, default_mode);
                let file = FileProjection { data: text.into(), mode, uid: None };
                room.take(&file)?;
                payload.insert(clean(&item.path), file);
            }
            Err(error) => causes.push(error.to_string()),
        }
    }
    Error::aggregate(causes).map_or(Ok(payload), Err)
}

/// Returns the path without empty and `.` parts.
fn clean(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let absolute = if path.starts_with('/') { "/" } else { "" };
    format!("{absolute}{}", parts.join("/"))
}

/// Returns the payload with clean paths.
///
/// # Errors
///
/// Refuses paths that lead out of the volume or clash with its internal files, and more files or bytes than a
/// volume may have.
pub fn validated(payload: Payload) -> Result<Payload> {
    let mut checked = Payload::new();
    Room::default().take_all(&payload)?;
    for (path, file) in payload {
        if let Some(fault) = path_fault(&path) {
            return Err(Error::failed(fault));
        }
        checked.insert(clean(&path), file);
    }
    Ok(checked)
}

fn path_fault(path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(format!("invalid path: must not be empty: {path:?}"));
    }
    if path.starts_with('/') {
        return Some(format!("invalid path: must be relative path: {path}"));
    }
    if path.len() > MAX_PATH_BYTES {
        return Some(format!("invalid path: must be less than or equal to {MAX_PATH_BYTES} characters"));
    }
    for part in path.split('/') {
        if part == ".." {
            return Some(format!("invalid path: must not contain '..': {path}"));
        }
        if part.len() > MAX_NAME_BYTES {
            return Some(format!(
                "invalid path: filenames must be less than or equal to {MAX_NAME_BYTES} characters"
            ));
        }
    }
    if clean(path).starts_with("..") {
        return Some(format!("invalid path: must not start with '..': {path}"));
    }
    if path.contains('\0') || clean(path).is_empty() {
        return Some(format!("invalid path: {path:?}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectFieldSelector;

    fn item(key: &str, path: &str, mode: Option<i32>) -> KeyToPath {
        KeyToPath { key: key.into(), path: path.into(), mode, ..KeyToPath::default() }
    }

    fn map() -> ConfigMap {
        ConfigMap {
            data: Some([("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())].into()),
            binary_data: Some([("c".to_owned(), ByteString(vec![0, 255]))].into()),
            ..ConfigMap::default()
        }
    }

    fn shape(payload: &Payload) -> Vec<(&str, &[u8], u32)> {
        payload.iter().map(|(p, f)| (p.as_str(), &f.data[..], f.mode)).collect()
    }

    #[test]
    fn config_map_whole_and_by_items() {
        let whole = config_map(&map(), None, 0o644, false).unwrap();
        assert_eq!(shape(&whole), [("a", &b"1"[..], 0o644), ("b", b"2", 0o644), ("c", &[0, 255][..], 0o644)]);
        let items = [item("a", "x/y", Some(0o400)), item("c", "z", None)];
        let some = config_map(&map(), Some(&items), 0o440, false).unwrap();
        assert_eq!(shape(&some), [("x/y", &b"1"[..], 0o400), ("z", &[0, 255][..], 0o440)]);
    }

    #[test]
    fn one_key_is_not_multiplied() {
        let mut object = map();
        object.data.get_or_insert_default().insert("big".into(), "x".repeat(1 << 20));
        let shown = |key: &str, count: usize| {
            let items: Vec<KeyToPath> = (0..count).map(|n| item(key, &format!("d/{n}"), None)).collect();
            config_map(&object, Some(&items), 0o644, false).unwrap()
        };
        let fits = shown("big", 32);
        assert!(fits.values().all(|file| file.data.as_ptr() == fits["d/0"].data.as_ptr()), "copied");
        assert_eq!(validated(fits).unwrap().len(), 32);
        let refused = "the volume would have more than 10000 files or 33554432 bytes";
        assert_eq!(validated(shown("big", 33)).unwrap_err().to_string(), refused);
        assert_eq!(validated(shown("a", 10_000)).unwrap().len(), 10_000);
        assert_eq!(validated(shown("a", 10_001)).unwrap_err().to_string(), refused);
    }

    #[test]
    fn fields_of_the_pod_are_not_multiplied() {
        let mut pod = Pod::default();
        pod.metadata.annotations = Some([("big".to_owned(), "x".repeat(200 << 10))].into());
        let shown = |count: usize| {
            let item = |n: usize| DownwardAPIVolumeFile {
                path: n.to_string(),
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.annotations['big']".into(),
                    ..ObjectFieldSelector::default()
                }),
                ..DownwardAPIVolumeFile::default()
            };
            let items: Vec<DownwardAPIVolumeFile> = (0..count).map(item).collect();
            downward_api(&pod, &items, 0o644, &field_ref::Allocatable::default()).map(|files| files.len())
        };
        assert_eq!(shown(100).unwrap(), 100);
        assert!(shown(1000).is_err());
    }

    #[test]
    fn missing_keys() {
        let items = [item("a", "a", None), item("no", "no", None)];
        let error = config_map(&map(), Some(&items), 0o644, false).unwrap_err();
        assert_eq!(error.to_string(), "configmap references non-existent config key: no");
        assert_eq!(config_map(&map(), Some(&items), 0o644, true).unwrap().len(), 1);
        let error = secret(&Secret::default(), Some(&items), 0o644, false).unwrap_err();
        assert_eq!(error.to_string(), "references non-existent secret key: a");
    }

    #[test]
    fn paths_stay_inside() {
        let table = [
            ("a/b", None),
            ("a//./b", None),
            ("...", Some("must not start")),
            ("", Some("must not be empty")),
            ("/a", Some("must be relative")),
            ("a/../b", Some("must not contain '..'")),
            ("..data", Some("must not start with '..'")),
            ("./..data/x", Some("must not start with '..'")),
            (".", Some("invalid path")),
        ];
        for (path, want) in table {
            let fault = path_fault(path);
            match want {
                None => assert_eq!(fault, None, "{path}"),
                Some(want) => {
                    assert!(fault.as_deref().is_some_and(|f| f.contains(want)), "{path}: {fault:?}")
                }
            }
        }
    }

    #[test]
    fn fingerprints_differ_in_every_part() {
        let one = |path: &str, data: &[u8], mode, uid| {
            fingerprint(&Payload::from([(
                path.to_owned(),
                FileProjection { data: Bytes::copy_from_slice(data), mode, uid },
            )]))
        };
        let base = one("a", b"b", 1, None);
        for other in [
            one("ab", b"", 1, None),
            one("a", b"c", 1, None),
            one("a", b"b", 2, None),
            one("a", b"b", 1, Some(0)),
        ] {
            assert_ne!(base, other);
        }
        assert_eq!(base, one("a", b"b", 1, None));
    }
}
