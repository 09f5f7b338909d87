//! User namespaces: a pod with `hostUsers: false` does not run in the host's.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/userns`, KEP-127.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::config::PodDirs;
use crate::pod;
use crate::runtime::{IdRange, RuntimeFeatures};

/// The number of ids of each pod, and the first id of the first pod. Source: upstream's kubelet.
const IDS: u32 = 65_536;
/// The maximal number of pods, above that of a node.
const MOST_PODS: u32 = 4096;
/// The file beside the pod's other files, with the name that upstream's kubelet uses.
const FILE: &str = "userns";

#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error("{what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("parse {}: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{} names no range of {IDS} ids", path.display())]
    NoRange { path: PathBuf },
    #[error("all {MOST_PODS} ranges of ids for user namespaces are in use")]
    Exhausted,
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RangeError {
    let path = path.to_owned();
    move |source| RangeError::File { what, path, source }
}

/// The content of the file: the same ranges for users and groups.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// Allocates a range of ids to every pod that no other pod of the node has.
///
/// The ranges are stored in the pods' folders only: they survive a restart, and a range becomes free when its
/// pod's folder is removed.
#[derive(Debug, Default)]
pub struct UserNamespaces {
    /// Locked while a range is chosen, so that two pods do not choose the same.
    choosing: Mutex<()>,
}

impl UserNamespaces {
    /// Returns the pod's range, which is chosen at the first call. Blocks.
    pub fn range_of(&self, dirs: &PodDirs, uid: &str) -> Result<IdRange, RangeError> {
        let _choosing = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = dirs.pod_dir(uid);
        if let Some(range) = read(&folder.join(FILE))? {
            return Ok(range);
        }
        let mut used = BTreeSet::new();
        let pods = dirs.pods();
        for entry in fs::read_dir(&pods).map_err(file_error("list", &pods))? {
            let path = entry.map_err(file_error("list", &pods))?.path().join(FILE);
            used.extend(read(&path)?.map(|range| range.first));
        }
        let first = (1..=MOST_PODS).map(|n| n * IDS).find(|first| !used.contains(first));
        let range = IdRange { first: first.ok_or(RangeError::Exhausted)?, count: IDS };
        write(&folder.join(FILE), range)?;
        Ok(range)
    }
}

fn read(path: &Path) -> Result<Option<IdRange>, RangeError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(file_error("read", path)(error)),
    };
    let record: Record = serde_json::from_slice(&text)
        .map_err(|source| RangeError::Parse { path: path.to_owned(), source })?;
    match record.uid_mappings.first() {
        Some(Mapping { host_id, container_id: 0, length: IDS }) if host_id % IDS == 0 && *host_id > 0 => {
            Ok(Some(IdRange { first: *host_id, count: IDS }))
        }
        _ => Err(RangeError::NoRange { path: path.to_owned() }),
    }
}

/// Writes the file under another name and renames it, so that a crash leaves no partial file.
fn write(path: &Path, range: IdRange) -> Result<(), RangeError> {
    let mapping = Mapping { host_id: range.first, container_id: 0, length: range.count };
    let record = Record { uid_mappings: vec![mapping], gid_mappings: vec![mapping] };
    let text =
        serde_json::to_vec(&record).map_err(|source| RangeError::Parse { path: path.to_owned(), source })?;
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new).map_err(file_error("create", &new))?;
    io::Write::write_all(&mut file, &text).map_err(file_error("write", &new))?;
    file.sync_all().map_err(file_error("write", &new))?;
    fs::rename(&new, path).map_err(file_error("create", path))
}

/// Returns whether the kernel supports user namespaces, and their maximal number is not set to 0.
pub fn host_has_them() -> bool {
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    Path::new("/proc/self/ns/user").exists() && most.trim().parse::<u64>().is_ok_and(|most| most > 0)
}

/// Returns whether the pod asks for a user namespace.
pub fn wanted(pod: &Pod) -> bool {
    pod::spec(pod).host_users == Some(false)
}

/// Returns why the handler cannot run the pod's sandbox.
pub fn check(pod: &Pod, handler: &str, features: &RuntimeFeatures) -> Result<(), String> {
    if !wanted(pod) {
        return Ok(());
    }
    let known = features.handlers.iter().find(|h| h.name == handler);
    if known.is_some_and(|h| h.user_namespaces) {
        return Ok(());
    }
    let mut message = "can't set `spec.hostUsers: false`, ".to_owned();
    message.push_str(&match handler {
        "" => "runtime does not support user namespaces".to_owned(),
        handler => format!("RuntimeClass handler {handler:?} does not support user namespaces"),
    });
    if known.is_none() && !features.handlers.is_empty() {
        message.push_str(&format!(": the handler {handler:?} is not known"));
    }
    Err(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::RuntimeHandler;
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn only_handlers_that_have_them() {
        let handler = |name: &str, user_namespaces| RuntimeHandler {
            name: name.into(),
            user_namespaces,
            ..RuntimeHandler::default()
        };
        let listed = RuntimeFeatures {
            handlers: vec![handler("", false), handler("runc", true), handler("old", false)],
            ..RuntimeFeatures::default()
        };
        let check = |host_users, name: &str, features: &RuntimeFeatures| {
            let spec = PodSpec { host_users, ..PodSpec::default() };
            check(&Pod { spec: Some(spec), ..Pod::default() }, name, features)
        };
        for host_users in [None, Some(true)] {
            assert_eq!(check(host_users, "", &listed), Ok(()));
        }
        assert_eq!(check(Some(false), "runc", &listed), Ok(()));
        let cannot = "can't set `spec.hostUsers: false`, ";
        for (name, what) in [
            ("", "runtime does not support user namespaces"),
            ("old", "RuntimeClass handler \"old\" does not support user namespaces"),
            (
                "new",
                "RuntimeClass handler \"new\" does not support user namespaces: the handler \"new\" is not known",
            ),
        ] {
            assert_eq!(check(Some(false), name, &listed), Err(format!("{cannot}{what}")));
        }
        let silent = RuntimeFeatures::default();
        assert_eq!(
            check(Some(false), "", &silent),
            Err(format!("{cannot}runtime does not support user namespaces"))
        );
    }

    #[test]
    fn ranges_are_the_pods_own_and_last() {
        let root = std::env::temp_dir().join(format!("knarr-userns-{}", std::process::id()));
        let dirs = PodDirs::new(&root);
        for uid in ["a", "b", "c"] {
            fs::create_dir_all(dirs.pod_dir(uid)).unwrap();
        }
        let range = |uid: &str| UserNamespaces::default().range_of(&dirs, uid).map(|range| range.first);
        assert_eq!((range("a").unwrap(), range("b").unwrap()), (IDS, 2 * IDS));
        assert_eq!(range("a").unwrap(), IDS, "the same after a restart");
        fs::remove_dir_all(dirs.pod_dir("a")).unwrap();
        assert_eq!(range("c").unwrap(), IDS, "free again");
        // A file that cannot be read may contain any range.
        fs::write(dirs.pod_dir("b").join(FILE), "{").unwrap();
        fs::create_dir_all(dirs.pod_dir("d")).unwrap();
        assert!(matches!(range("d"), Err(RangeError::Parse { .. })));
        fs::remove_dir_all(root).unwrap();
    }
}
