//! Checks a data folder that no server uses: its store, its files and their modes; and repairs what can be
//! repaired.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bytes::Bytes;
use knarr_storage::{Checked, Embedded, Fault, FaultKind, OpenError, RepairError, damage};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::certificates::Files;
use super::finding::Finding;
use super::keep::Kept;
use super::quiet::quietly;
use crate::layout::Layout;

const CLOSED: &str = "it is closed to others";
/// How deep folders are followed below `pki/`.
const DEPTH: usize = 4;
/// The largest file of `pki/` that is read.
const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// The contents of a folder's store, and what is wrong with it.
pub struct Store {
    pub findings: Vec<Finding>,
    pub revision: u64,
    pub kvs: Vec<(Bytes, Bytes)>,
}

/// Reads the store. Keys that were set aside as damaged are among the findings, not in `kvs`.
pub fn store(layout: &Layout) -> Result<Store> {
    let checked = match quietly(|| Embedded::check(layout.store()))? {
        Ok(checked) => checked,
        Err(OpenError::Format { found, supported, .. }) => {
            let problem = format!("it has format {found}, this knarr reads {supported}: use a newer one");
            let findings = vec![Finding::error("store", "store.redb", problem)];
            return Ok(Store { findings, revision: 0, kvs: Vec::new() });
        }
        Err(OpenError::Locked(path)) => anyhow::bail!(
            "{} is in use, but no server answers at {}: is it still starting?",
            path.display(),
            layout.admin_socket().display()
        ),
        Err(error) => return Err(error.into()),
    };
    let readable = checked.kvs.iter().filter(|kv| damage(&kv.value).is_none());
    Ok(Store {
        findings: findings(&checked),
        revision: checked.revision,
        kvs: readable.map(|kv| (kv.key.clone(), kv.value.clone())).collect(),
    })
}

pub fn findings(checked: &Checked) -> Vec<Finding> {
    let mut findings: Vec<Finding> = checked.faults.iter().map(finding).collect();
    if checked.is_unreadable() {
        // A file that has lost rows is not rewritten.
        findings.iter_mut().for_each(|finding| finding.repair = None);
    }
    findings
}

fn finding(fault: &Fault) -> Finding {
    let name = fault.key.as_ref().map_or("store.redb".into(), |key| String::from_utf8_lossy(key));
    let advice = match fault.kind {
        FaultKind::Unreadable => ": bring back a backup with `knarr restore`",
        FaultKind::Key => ": it is set aside; delete it, or restore it from a backup",
        _ => "",
    };
    Finding::error("store", name, format!("{}{advice}", fault.reason)).repair(fault.repair())
}

/// Reads the files of `pki/`, following links; also returns findings for those that cannot be read.
pub fn files(layout: &Layout) -> (Files, Vec<Finding>) {
    let (mut files, mut findings) = (Files::new(), Vec::new());
    walk(&layout.pki(), "pki", DEPTH, Links::Files, &mut |path, name, is_folder| {
        if is_folder || name.ends_with(".new") {
            return;
        }
        let read = fs::metadata(path).and_then(|of| match of.len() {
            _ if !of.is_file() => Err(io::Error::other("it leads to what is no file")),
            0..=FILE_BYTES => fs::read(path),
            _ => Err(io::ErrorKind::FileTooLarge.into()),
        });
        match read {
            Ok(content) => drop(files.insert(name.to_owned(), content)),
            // A link without a target.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => findings.push(Finding::error("file", name, format!("it cannot be read: {error}"))),
        }
    });
    (files, findings)
}

/// Finds keys and folders that other users than the owner may read or change.
pub fn modes(layout: &Layout) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut look = |path: &Path, name: &str, is_folder: bool| {
        // In a closed folder only write permissions matter.
        let secret = if is_folder { !name.contains('/') } else { !name.ends_with(".crt") };
        let Ok(of) = fs::symlink_metadata(path) else { return };
        let open = of.mode() & if secret { 0o077 } else { 0o022 };
        if !of.is_symlink() && open != 0 {
            let problem = format!("others may read or change it: its mode is {:04o}", of.mode() & 0o7777);
            findings.push(Finding::error("file", name, problem).repair(Some(CLOSED)));
        }
    };
    for (path, name) in [(layout.root().to_owned(), "."), (layout.store(), "store"), (layout.pki(), "pki")] {
        look(&path, name, true);
    }
    look(&layout.store().join("store.redb"), "store/store.redb", false);
    look(&layout.admin_kubeconfig(), "admin.kubeconfig", false);
    walk(&layout.pki(), "pki", DEPTH, Links::None, &mut look);
    findings
}

/// Which links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    None,
    /// Links to files.
    Files,
}

/// Calls `look` for all files and folders in a folder.
fn walk(folder: &Path, name: &str, depth: usize, links: Links, look: &mut impl FnMut(&Path, &str, bool)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(of) = fs::symlink_metadata(&path) else { continue };
        let Some(last) = path.file_name().and_then(|last| last.to_str()) else { continue };
        let name = format!("{name}/{last}");
        let is_link = links == Links::Files && of.is_symlink() && !path.is_dir();
        if of.is_dir() || of.is_file() || is_link {
            look(&path, &name, of.is_dir());
        }
        if of.is_dir() && depth > 0 {
            walk(&path, &name, depth - 1, links, look);
        }
    }
}

/// Repairs what the findings mark as repairable, and marks it as repaired. Everything is copied to `kept`
/// first; returns whether the copies are needed.
pub fn repair(layout: &Layout, findings: &mut Vec<Finding>, kept: &Path) -> Result<bool> {
    let in_words = || format!("cannot copy the data to {}: nothing was repaired", kept.display());
    let mut kept = Kept::new(kept, &layout.pki()).with_context(in_words)?;
    if findings.iter().any(|finding| finding.area == "store" && finding.repair.is_some()) {
        match repair_store(layout, &kept)? {
            Ok(unread) => {
                kept.need();
                mark(findings, |finding| finding.area == "store");
                findings.extend(unread);
            }
            Err(RepairError::Keep(error)) => return Err(error).with_context(in_words),
            Err(error) => {
                kept.drop_store();
                let problem = format!("it was not repaired: {:#}", anyhow::Error::new(error));
                findings.push(Finding::error("store", "store.redb", problem));
            }
        }
    }
    if findings.iter().any(|finding| finding.area != "store" && finding.repair.is_some()) {
        kept.need();
    }
    for finding in findings.iter_mut().filter(|finding| finding.repair.is_some()) {
        let done = match finding.area {
            "certificate" => remove_credentials(&layout.root().join(&finding.name)),
            "file" => close(layout.root(), &finding.name),
            _ => continue,
        };
        match done {
            Ok(()) => finding.repaired = true,
            Err(error) => finding.problem += &format!("; it was not repaired: {error}"),
        }
    }
    Ok(kept.is_needed())
}

/// Repairs the store; returns a finding about what could not be copied before.
fn repair_store(layout: &Layout, kept: &Kept) -> Result<Result<Option<Finding>, RepairError>> {
    let mut unread = 0;
    let keep = |file: &Path| kept.add_store(file).map(|left_out| unread = left_out);
    let repaired = quietly(|| Embedded::repair(layout.store(), keep))?;
    let problem = format!("{unread} bytes of it could not be read; the copy has zeros there");
    Ok(repaired.map(|_| (unread > 0).then(|| Finding::warning("store", "store.redb", problem))))
}

fn mark(findings: &mut [Finding], of: impl Fn(&Finding) -> bool) {
    findings.iter_mut().filter(|f| of(f) && f.repair.is_some()).for_each(|f| f.repaired = true);
}

fn remove_credentials(certificate: &Path) -> io::Result<()> {
    for file in [certificate.to_owned(), certificate.with_extension("key")] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes other users' permissions. It follows no link, because another user could have put one there.
fn close(root: &Path, name: &str) -> io::Result<()> {
    let root = fs::File::open(root)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    let opened = match openat2(&root, name, OpenHow::new().flags(flags).resolve(resolve)) {
        // The file was removed together with its certificate.
        Err(Errno::ENOENT) => return Ok(()),
        opened => fs::File::from(opened?),
    };
    let of = opened.metadata()?;
    if !of.is_file() && !of.is_dir() {
        return Err(io::Error::other("it is no longer a file or a folder"));
    }
    let mask = if name.ends_with(".crt") { 0o755 } else { 0o700 };
    opened.set_permissions(Permissions::from_mode(of.mode() & mask))
}
